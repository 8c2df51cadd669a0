"""Optimizers for grown models: the state of the old optimizer is kept, with its attributes, hooks and schedulers.

A parameter that growth added is trained by the optimizer, and in the group, of a neighbour in the old model. The choice
depends on the two models only. So of several optimizers over one model (generator and discriminator, or one for
matrices and one for the rest), exactly one takes each new parameter, and none needs to know the others. `Several`
treats them as one.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.blocks import STACK, GrownStack
from espalier_trainer.optimizers.building import lay_moments


class Several(Optimizer):
    """View of several optimizers as one. The members keep groups and state: a user goes on to step each member."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        # The base class's constructor is skipped: it would create groups and a state of its own.
        self.members = tuple(members)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all members, in order; the dictionaries are the members' own."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The states of all members by parameter; the dictionary is a copy, its values are the members' own."""
        return {parameter: state for member in self.members for parameter, state in member.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all members."""
        for member in self.members:
            member.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all members."""
        for member in self.members:
            member.step()

    def each(self, function: Callable[[Optimizer], Optimizer]) -> Several:
        """Return `Several` with the results of `function` for the members."""
        return Several([function(member) for member in self.members])


def members_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the members of `Several`, or the optimizer itself."""
    return optimizer.members if isinstance(optimizer, Several) else (optimizer,)


Carry = Callable[[str, Tensor], Tensor]
"""Function from the name and the old value of one of a parameter's states (`exp_avg`, ...) to its new value."""


@torch.inference_mode(False)  # tensors made in that mode could never be trained
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
    (`neighbours`): the parameter of the same kind of the layer that it was inserted after, so that groups
    "with and without weight decay" stay consistent.
    If the optimizer does not hold that neighbour, it does not take the new parameter either: of several optimizers
    over one model, each passed through this function, exactly one trains it. Parameters that the old optimizer did not
    train are ignored. `optimizer` keeps working on `old_model`. Its other attributes (counts of steps, random
    generators) are copied; both share its hooks and their handles. `schedulers` go on with the new optimizer: those of
    torch, transformers, timm, pytorch_optimizer, and any other that holds the optimizer in its attributes.

    Raises `GrowthError` for an optimizer that holds none of `old_model`'s parameters, or some of `new_model`'s; for one
    that wraps another, or cannot be rebuilt from its groups and defaults; for LBFGS, whose state is not kept by
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
    """Give new parameters a momentum of zeros: torch's fused SGD needs a momentum for all parameters or for none."""
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

    Raises `GrowthError` with the constructor's own reason where it refuses them; `added` names the parameters that
    growth has put into the groups.
    """
    known = inspect.signature(kind).parameters
    arguments = {name: value for name, value in defaults.items() if name in known}
    # The constructor of a user's optimizer may raise anything for arguments or parameters that it does not accept.
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
    """Raise `GrowthError` for an optimizer that cannot be carried over, or that does not train `old_model`."""
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


def neighbours(old_model: nn.Module, new_model: nn.Module) -> dict[str, str]:
    """Return, for each parameter that only `new_model` has, the parameter of `old_model` whose group it joins.

    In this order: the parameter of the same kind (a weight with as many dimensions, a bias) of the layer before the new
    one; the nearest of the same kind in the same part of the model; any of that layer; the nearest of all. Frozen
    parameters count only if there are no others. Empty where `old_model` has no parameters.
    """
    old, new = dict(old_model.named_parameters()), dict(new_model.named_parameters())
    trained = {name: parameter for name, parameter in old.items() if parameter.requires_grad} or old
    layers = dict(_layers_before(new_model))
    found: dict[str, str] = {}
    for place, (name, parameter) in enumerate(new.items()):
        if name in old or not trained:
            continue
        layer = next((layers[stack] for stack in layers if name.startswith(f"{stack}.")), None)
        near = list(_by_distance(list(new), place, layer, trained))
        found[name] = _nearest(name, parameter, layer, near, trained)
    return found


def _nearest(name: str, parameter: Tensor, layer: str | None, near: list[str], trained: Mapping[str, Tensor]) -> str:
    kind = (name.rpartition(".")[2], parameter.dim())
    part = (layer or name).partition(".")[0]
    alike = [other for other in near if (other.rpartition(".")[2], trained[other].dim()) == kind]
    own = [other for other in near if layer is not None and other.rpartition(".")[0] == layer]
    ways = (
        [other for other in alike if other in own],
        [other for other in alike if other.partition(".")[0] == part],
        own,
        near,
    )
    return next(way[0] for way in ways if way)


def _by_distance(names: list[str], place: int, layer: str | None, trained: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the trained parameters: those before the new one, nearest first, then those after it."""
    own = [index for index, name in enumerate(names) if layer is not None and name.rpartition(".")[0] == layer]
    start = own[-1] + 1 if own else place
    yield from (name for name in [*reversed(names[:start]), *names[start:]] if name in trained)


def _layers_before(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield, for each stack of inserted blocks, its path and the path of the layer before it."""
    for path, module in model.named_modules():
        if isinstance(module, GrownStack) and module.origin is not None:
            host, layer = module.origin
            # The model may have become a part of another: the layer's path gets the same prefix as the host's.
            stack = f"{host}.{STACK}" if host else STACK
            yield path, path.removesuffix(stack) + layer


_CONSTRUCTED = ("param_groups", "state", "defaults")
_OPAQUE = (Tensor, nn.Module, type, FunctionType, MethodType, BuiltinFunctionType, ModuleType)


def hand_over(
    old: Optimizer, new: Optimizer, successors: Mapping[Tensor, Tensor], schedulers: Iterable[object] = ()
) -> None:
    """Give `new`, which was made from `old`, its hooks, copies of its other attributes, and its schedulers.

    `successors` maps the parameters of `old` to those of `new`. Attributes that hold parameters stay as constructed,
    with the entries of parameters that kept their shapes added. Raises `GrowthError`, with no scheduler changed, for a
    scheduler that does not hold `old`.
    """
    places = [place for scheduler in schedulers for place in _places(scheduler, old)]
    memo: dict[int, Any] = {id(parameter): after for parameter, after in successors.items()} | {id(old): new}
    holding = dict(with_parameters(old))
    for name, value in vars(old).items():
        if name in _CONSTRUCTED or isinstance(value, nn.Module) or (callable(value) and hasattr(type(old), name)):
            continue
        if name.endswith("_hooks"):
            setattr(new, name, value)  # the same dictionary, which the hooks' handles reference
        elif name not in holding:
            setattr(new, name, _copied(value, memo))
        elif isinstance(value, dict) and isinstance(found := getattr(new, name, None), dict):
            same = {key: each for key, each in value.items() if _keeps_its_shape(key, successors)}
            found.update(copy.deepcopy(same, memo))
    states: Any = {key: value for key, value in old.state.items() if not isinstance(key, Tensor)}
    new.state.update(_copied(states, memo))
    if getattr(old.step, "_wrapped_by_lr_sched", False):
        _track(new)
    for holder, key in places:
        holder[key] = new


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    # A third-party object may raise anything when copied: a process group, for example.
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def with_parameters(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the attributes, besides groups and state, that hold parameters of the optimizer."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, value in vars(optimizer).items():
        if name not in _CONSTRUCTED and any(id(leaf) in held for leaf in _leaves(value)):
            yield name, value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _keeps_its_shape(key: Any, successors: Mapping[Tensor, Tensor]) -> bool:
    return isinstance(key, Tensor) and key in successors and successors[key].shape == key.shape


def _places(scheduler: object, optimizer: Optimizer) -> list[tuple[Any, Any]]:
    """Return the containers in a scheduler that hold the optimizer, each with its key there."""
    found: list[tuple[Any, Any]] = []
    seen: set[int] = {id(optimizer)}
    waiting: list[Any] = [scheduler]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen.add(id(value))
        holder = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", {})
        items = [*(holder.items() if isinstance(holder, dict) else enumerate(holder))]
        found += [(holder, key) for key, each in items if each is optimizer]
        waiting += [each for _, each in items]
    if not found:
        raise GrowthError(
            f"the scheduler {type(scheduler).__name__} is not one of this {type(optimizer).__name__}; give each "
            "optimizer its own"
        )
    return found


def _track(optimizer: Optimizer) -> None:
    """Record calls of `step`, as torch's schedulers do, which otherwise warn."""
    step: Callable[..., Any] = type(optimizer).step
    own = weakref.ref(optimizer)

    @wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        alive: Any = own()
        alive._opt_called = True
        return step(alive, *args, **kwargs)

    wrapper._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = wrapper  # type: ignore[method-assign]
