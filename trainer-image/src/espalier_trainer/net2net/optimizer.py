"""An optimizer for the grown model that keeps the state of the old one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from espalier_api.architecture import GrowthError

Carry = Callable[[str, Tensor], Tensor]
"""Returns the new value of one of a parameter's states (`exp_avg`, ...), given its name and its old value."""


def grow_optimizer(
    optimizer: Optimizer,
    old_model: nn.Module,
    new_model: nn.Module,
    reshaped: Mapping[str, Carry] = MappingProxyType({}),
) -> Optimizer:
    """Return an optimizer like `optimizer` over `new_model`, which was grown from `old_model`.

    The class, the groups and their hyperparameters, and the order of groups and parameters stay the same. A parameter
    that was kept (found by name) keeps its step count, and its moments are copied, since growth does not change its
    gradients. For a parameter in `reshaped`, that function converts each state of the parameter's old shape. A new
    parameter starts without state. It joins the group of the preceding parameter of the same kind (a weight with as
    many dimensions, a bias), so that groups "with and without weight decay" stay consistent. Parameters that the old
    optimizer did not train are ignored. `optimizer` keeps working on `old_model`. Learning-rate schedulers and hooks
    belong to the old optimizer and are not copied.

    Raises `GrowthError` for LBFGS, whose state is not kept by parameter; where `new_model` lacks a parameter of
    `old_model`; and where a parameter that is not in `reshaped` has another shape.
    """
    if isinstance(optimizer, LBFGS):
        raise GrowthError("LBFGS keeps one history over all parameters, which growth would invalidate; build a new one")
    names = {id(parameter): name for name, parameter in old_model.named_parameters()}
    replaced = dict(new_model.named_parameters())
    group_of: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    members: list[list[tuple[str, Tensor]]] = []
    states: dict[Tensor, dict[str, Any]] = {}
    for index, group in enumerate(optimizer.param_groups):
        kept: list[tuple[str, Tensor]] = []
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            successor, carry = parameter, reshaped.get(name or "")
            if name is not None:
                successor = _successor(name, parameter, replaced, may_differ=carry is not None)
                group_of[name] = index
            kept.append((group["param_names"][place] if "param_names" in group else "", successor))
            if parameter in optimizer.state:
                states[successor] = {
                    key: _carried(key, value, parameter, carry) for key, value in optimizer.state[parameter].items()
                }
        members.append(kept)
        groups.append({key: value for key, value in group.items() if key not in ("params", "param_names")})
    known = set(names.values())
    for name, parameter in replaced.items():
        if name not in known:
            index = _group_for(name, replaced, group_of)
            group_of[name] = index
            members[index].append((name, parameter))
    named = any("param_names" in group for group in optimizer.param_groups)
    for new_group, kept in zip(groups, members, strict=True):
        new_group["params"] = kept if named else [parameter for _, parameter in kept]
    grown = construct(type(optimizer), groups, optimizer.defaults)
    grown.state.update(states)
    return grown


def construct(kind: type[Optimizer], groups: list[dict[str, Any]], defaults: Mapping[str, Any]) -> Optimizer:
    """Return an optimizer of this class over `groups`, with the defaults that its constructor accepts."""
    known = inspect.signature(kind).parameters
    arguments = {name: value for name, value in defaults.items() if name in known}
    return cast(Optimizer, cast(Any, kind)(groups, **arguments))


def _successor(name: str, parameter: Tensor, replaced: Mapping[str, Tensor], *, may_differ: bool) -> Tensor:
    successor = replaced.get(name)
    if successor is None or (successor.shape != parameter.shape and not may_differ):
        found = "no such parameter" if successor is None else f"shape {tuple(successor.shape)}"
        raise GrowthError(
            f"parameter {name!r} of shape {tuple(parameter.shape)}: found {found} in the new model; "
            "pass the model that was grown from the old one"
        )
    return successor


def _group_for(name: str, parameters: Mapping[str, Tensor], group_of: Mapping[str, int]) -> int:
    """Return the group of the nearest trained parameter before `name`, preferably one of the same kind."""
    order = list(parameters)
    place = order.index(name)
    # There may be none before the model's first layers: then the nearest after.
    near = [*reversed(order[:place]), *order[place + 1 :]]
    trained = [other for other in near if other in group_of]
    kind = (name.rpartition(".")[2], parameters[name].dim())
    alike = [other for other in trained if (other.rpartition(".")[2], parameters[other].dim()) == kind]
    return group_of[(alike or trained)[0]] if trained else 0


@torch.no_grad()
def _carried(key: str, value: Any, parameter: Tensor, carry: Carry | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone(memory_format=torch.preserve_format)
    return value if carry is None or value.shape != parameter.shape or not value.dim() else carry(key, value)
