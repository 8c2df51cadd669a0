"""An optimizer for the grown model that remembers what the old one knew."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from espalier_api.architecture import GrowthError
from espalier_trainer.net2net.kernel import centred

_SIGNED = frozenset({"exp_avg", "momentum_buffer", "grad_avg", "prev", "ax"})
"""States of torch's optimizers that have the sign of a gradient or of the weight: of a new tap they are 0."""


def grow_optimizer(optimizer: Optimizer, old_model: nn.Module, new_model: nn.Module) -> Optimizer:
    """Return an optimizer like `optimizer` over `new_model`, which was grown from `old_model`.

    Same class, same groups in the same order with their hyperparameters; moments and step counts of kept parameters
    (found by name) are copied, since growth leaves their gradients as they were. Of a kernel that grew (`grow_kernel`),
    new taps have a first moment of 0 and the kernel's mean second moment: with 0, after many steps, Adam's first step
    would be several times its learning rate. A new parameter starts without state
    and joins the group of the parameter of its own kind (a weight of as many dimensions, a bias) that comes before
    it in the model, so that groups "with and without weight decay" stay what they are; parameters that the old
    optimizer did not train are not considered. `optimizer` keeps working on `old_model`. Learning-rate schedulers
    and hooks belong to the old optimizer and are not carried over.

    Raises `GrowthError` for LBFGS, whose state is not by parameter, and where `new_model` lacks or reshapes a
    parameter of `old_model`.
    """
    if isinstance(optimizer, LBFGS):
        raise GrowthError("LBFGS keeps one history over all parameters, which growth would invalidate; build a new one")
    names = {id(parameter): name for name, parameter in old_model.named_parameters()}
    replaced = dict(new_model.named_parameters())
    group_of: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    members: list[list[tuple[str, Tensor]]] = []
    successors: list[tuple[Tensor, Tensor]] = []
    for index, group in enumerate(optimizer.param_groups):
        kept: list[tuple[str, Tensor]] = []
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            successor = parameter if name is None else _successor(name, parameter, replaced)
            if name is not None:
                group_of[name] = index
            kept.append((name or f"group{index}.{place}", successor))
            successors.append((parameter, successor))
        members.append(kept)
        groups.append({key: value for key, value in group.items() if key not in ("params", "param_names")})
    for name, parameter in replaced.items():
        if name not in names.values():
            index = _group_for(name, replaced, group_of)
            group_of[name] = index
            members[index].append((name, parameter))
    named = any("param_names" in group for group in optimizer.param_groups)
    for new_group, kept in zip(groups, members, strict=True):
        new_group["params"] = kept if named else [parameter for _, parameter in kept]
    grown = construct(type(optimizer), groups, optimizer.defaults)
    for parameter, successor in successors:
        if parameter in optimizer.state:
            state = optimizer.state[parameter]
            grown.state[successor] = {key: _carried(key, value, parameter, successor) for key, value in state.items()}
    return grown


def _successor(name: str, parameter: Tensor, replaced: Mapping[str, Tensor]) -> Tensor:
    successor = replaced.get(name)
    if successor is None or not (successor.shape == parameter.shape or _has_grown_kernel(parameter, successor)):
        found = "no such parameter" if successor is None else f"shape {tuple(successor.shape)}"
        raise GrowthError(
            f"parameter {name!r} of shape {tuple(parameter.shape)}: found {found} in the new model; "
            "pass the model that was grown from the old one"
        )
    return successor


def _group_for(name: str, parameters: Mapping[str, Tensor], group_of: Mapping[str, int]) -> int:
    """Return the group of the nearest trained parameter before `name`, of its kind if there is one."""
    order = list(parameters)
    place = order.index(name)
    # Behind the model's first layers there may be none before it: then the nearest after it.
    near = [*reversed(order[:place]), *order[place + 1 :]]
    trained = [other for other in near if other in group_of]
    kind = (name.rpartition(".")[2], parameters[name].dim())
    alike = [other for other in trained if (other.rpartition(".")[2], parameters[other].dim()) == kind]
    return group_of[(alike or trained)[0]] if trained else 0


def construct(kind: type[Optimizer], groups: list[dict[str, Any]], defaults: Mapping[str, Any]) -> Optimizer:
    """Return an optimizer of this class over `groups`, with those of the defaults that it takes."""
    known = inspect.signature(kind).parameters
    arguments = {name: value for name, value in defaults.items() if name in known}
    return cast(Optimizer, cast(Any, kind)(groups, **arguments))


def _has_grown_kernel(parameter: Tensor, successor: Tensor) -> bool:
    """Tell whether the two are convolutions' weights that differ in what `grow_kernel` changes."""
    if parameter.dim() != successor.dim() or parameter.dim() < 3 or parameter.shape[:2] != successor.shape[:2]:
        return False
    return all(
        new >= old and (new - old) % 2 == 0 for new, old in zip(successor.shape[2:], parameter.shape[2:], strict=True)
    )


def _carried(key: str, value: Any, parameter: Tensor, successor: Tensor) -> Any:
    """Return a copy of one parameter's state, of the successor's shape where it had the parameter's."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone(memory_format=torch.preserve_format)
    if value.shape != parameter.shape or value.shape == successor.shape:
        return value
    taps = tuple(range(2, value.dim()))
    return centred(value, successor.shape[2:], None if key in _SIGNED else value.mean(taps, keepdim=True))
