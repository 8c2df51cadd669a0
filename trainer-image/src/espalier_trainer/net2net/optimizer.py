"""An optimizer for the grown model that keeps the state of the old one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.handing_over import hand_over
from espalier_trainer.net2net.membership import neighbours
from espalier_trainer.net2net.several import Several
from espalier_trainer.optimizers.layout import lay_moments

Carry = Callable[[str, Tensor], Tensor]
"""Returns the new value of one of a parameter's states (`exp_avg`, ...), given its name and its old value."""


@torch.inference_mode(False)  # what is made in that mode could never be trained
def grow_optimizer(
    optimizer: Optimizer,
    old_model: nn.Module,
    new_model: nn.Module,
    reshaped: Mapping[str, Carry] = MappingProxyType({}),
    *,
    schedulers: Iterable[object] = (),
) -> Optimizer:
    """Return an optimizer like `optimizer` over `new_model`, which was grown from `old_model`.

    The class, the groups and their hyperparameters, and the order of groups and parameters stay the same. A parameter
    that was kept (found by name) keeps its step count, and its moments are copied, since growth does not change its
    gradients. For a parameter in `reshaped`, that function converts each state of the parameter's old shape. A new
    parameter starts without state, or with a momentum of zeros in a fused SGD. It joins the group of its neighbour
    (`membership.neighbours`): the parameter of the same kind of the layer that it was inserted after, so that groups
    "with and without weight decay" stay consistent.
    If the optimizer does not hold that neighbour, it does not take the new parameter either: of several optimizers
    over one model, each passed through this function, exactly one trains it. Parameters that the old optimizer did not
    train are ignored. `optimizer` keeps working on `old_model`. What else it keeps (counts of steps, random generators)
    is copied; its hooks and their handles are those of both. `schedulers` go on with the new optimizer: those of torch,
    transformers, timm, pytorch_optimizer, and whatever else holds the optimizer in its attributes.

    Raises `GrowthError` for an optimizer that holds none of `old_model`'s parameters, or some of `new_model`'s; for one
    that wraps another, or cannot be built again from its groups and defaults; for LBFGS, whose state is not kept by
    parameter; where `new_model` lacks a parameter of `old_model`; and where a parameter that is not in `reshaped` has
    another shape.
    """
    if isinstance(optimizer, Several):
        return optimizer.each(lambda one: grow_optimizer(one, old_model, new_model, reshaped))
    _check(optimizer, old_model, new_model)
    names = {id(parameter): name for name, parameter in old_model.named_parameters()}
    replaced = dict(new_model.named_parameters())
    group_of: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    members: list[list[tuple[str, Tensor]]] = []
    states: dict[Tensor, dict[str, Any]] = {}
    successors: dict[Tensor, Tensor] = {}
    for index, group in enumerate(optimizer.param_groups):
        kept: list[tuple[str, Tensor]] = []
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            successor, carry = parameter, reshaped.get(name or "")
            if name is not None:
                successor = _successor(name, parameter, replaced, may_differ=carry is not None)
                group_of[name] = index
            successors[parameter] = successor
            kept.append((group["param_names"][place] if "param_names" in group else "", successor))
            if parameter in optimizer.state:
                states[successor] = {
                    key: _carried(key, value, parameter, carry) for key, value in optimizer.state[parameter].items()
                }
        members.append(kept)
        groups.append({key: value for key, value in group.items() if key not in ("params", "param_names")})
    added = [(name, group_of[by]) for name, by in neighbours(old_model, new_model).items() if by in group_of]
    for name, index in added:
        members[index].append((name, replaced[name]))
    named = any("param_names" in group for group in optimizer.param_groups)
    for new_group, kept in zip(groups, members, strict=True):
        new_group["params"] = kept if named else [parameter for _, parameter in kept]
    grown = construct(type(optimizer), groups, optimizer.defaults, [name for name, _ in added])
    grown.state.update(states)
    _begin_momentum(grown)
    lay_moments(grown)
    hand_over(optimizer, grown, successors, schedulers)
    return grown


def _begin_momentum(optimizer: Optimizer) -> None:
    """Give new parameters a momentum of zeros: torch's fused SGD takes a momentum of all parameters or of none."""
    if not isinstance(optimizer, SGD):
        return
    for group in optimizer.param_groups:
        new = [one for one in group["params"] if optimizer.state.get(one, {}).get("momentum_buffer") is None]
        if group["fused"] and len(new) < len(group["params"]):
            for parameter in new:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def construct(
    kind: type[Optimizer], groups: list[dict[str, Any]], defaults: Mapping[str, Any], added: Sequence[str] = ()
) -> Optimizer:
    """Return an optimizer of this class over `groups`, with the defaults that its constructor accepts.

    Raises `GrowthError` with the constructor's own reason where it refuses them; `added` are the names of parameters
    that growth has put into the groups.
    """
    known = inspect.signature(kind).parameters
    arguments = {name: value for name, value in defaults.items() if name in known}
    # Whatever the constructor of a user's optimizer raises for arguments or parameters that it does not take.
    try:
        return cast(Optimizer, cast(Any, kind)(groups, **arguments))
    except Exception as error:
        new = f"; growth added {', '.join(map(repr, added))}, which another optimizer takes if " if added else ""
        remedy = "it holds the same kind of parameter of the layer before" if added else "; build a new one"
        raise GrowthError(
            f"{kind.__name__} cannot be built again from its groups and the settings {sorted(arguments)} "
            f"({type(error).__name__}: {error}){new}{remedy}"
        ) from error


def _check(optimizer: Optimizer, old_model: nn.Module, new_model: nn.Module) -> None:
    """Raise `GrowthError` for an optimizer that cannot be carried over, or that is not of `old_model`."""
    kind = type(optimizer).__name__
    for name, value in getattr(optimizer, "__dict__", {}).items():
        if any(isinstance(one, Optimizer) for one in (value if isinstance(value, list | tuple) else (value,))):
            raise GrowthError(
                f"{kind} wraps another optimizer; give the optimizer in its `.{name}`, and wrap the result again"
            )
    if not isinstance(optimizer, Optimizer):
        raise GrowthError(f"{kind} is not a torch.optim.Optimizer, so its state cannot be carried over; give one")
    if isinstance(optimizer, LBFGS):
        raise GrowthError("LBFGS keeps one history over all parameters, which growth would invalidate; build a new one")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    old, new = ({id(parameter) for parameter in model.parameters()} for model in (old_model, new_model))
    if old_model is not new_model and held & old and not held & (new - old):
        return
    if old_model is new_model:
        found = "the old and the new model are one and the same"
    elif held & (new - old):
        found = "the optimizer holds parameters of the new model"
    else:
        found = "the optimizer holds no parameter of the old model"
    raise GrowthError(
        f"{found}; grow first, then the optimizer, and only then rename: `grown = deepen(model, ...)`, `optimizer = "
        "grow_optimizer(optimizer, model, grown)`, `model = grown` (widen and widen_optimizer alike)"
    )


def _successor(name: str, parameter: Tensor, replaced: Mapping[str, Tensor], *, may_differ: bool) -> Tensor:
    successor = replaced.get(name)
    if successor is None or (successor.shape != parameter.shape and not may_differ):
        found = "no such parameter" if successor is None else f"shape {tuple(successor.shape)}"
        raise GrowthError(
            f"parameter {name!r} of shape {tuple(parameter.shape)}: found {found} in the new model; "
            "pass the model that was grown from the old one"
        )
    return successor


@torch.no_grad()
def _carried(key: str, value: Any, parameter: Tensor, carry: Carry | None) -> Any:
    if not isinstance(value, Tensor):
        if carry is not None and not isinstance(value, int | float | str | None):
            raise GrowthError(
                f"the optimizer's state {key!r} of a parameter of shape {tuple(parameter.shape)} is a "
                f"{type(value).__name__}, which cannot be widened; build a new optimizer"
            )
        return copy.deepcopy(value) if isinstance(value, list | tuple | dict) else value
    value = value.detach().clone(memory_format=torch.preserve_format)
    if carry is None or (value.numel() == 1 and value.shape != parameter.shape):
        return value
    if value.shape != parameter.shape:
        raise GrowthError(
            f"the optimizer's state {key!r} of a parameter of shape {tuple(parameter.shape)} has shape "
            f"{tuple(value.shape)} (factored, as Adafactor's), which cannot be widened; build a new optimizer"
        )
    return carry(key, value)
