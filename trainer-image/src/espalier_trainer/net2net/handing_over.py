"""What goes over to the optimizer of a grown model besides groups and state: attributes, hooks and schedulers."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from espalier_core.growth.architecture import GrowthError

_CONSTRUCTED = ("param_groups", "state", "defaults")
_OPAQUE = (Tensor, nn.Module, type, FunctionType, MethodType, BuiltinFunctionType, ModuleType)


def hand_over(
    old: Optimizer, new: Optimizer, successors: Mapping[Tensor, Tensor], schedulers: Iterable[object] = ()
) -> None:
    """Give `new`, which was made of `old`, its hooks, copies of its other attributes, and its schedulers.

    `successors` are the parameters of `new` by those of `old`. Attributes that hold parameters are as the constructor
    made them, with the entries of parameters that kept their shapes. Raises `GrowthError`, with no scheduler changed,
    for one that does not hold `old`.
    """
    places = [place for scheduler in schedulers for place in _places(scheduler, old)]
    memo: dict[int, Any] = {id(parameter): after for parameter, after in successors.items()} | {id(old): new}
    holding = dict(with_parameters(old))
    for name, value in vars(old).items():
        if name in _CONSTRUCTED or isinstance(value, nn.Module) or (callable(value) and hasattr(type(old), name)):
            continue
        if name.endswith("_hooks"):
            setattr(new, name, value)  # the same dictionary, of which the handles of hooks know
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
    # Whatever an object of somebody else's raises that cannot be copied, such as a group of processes.
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
    """Return the dictionaries and lists in a scheduler that hold the optimizer, with the keys of it there."""
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
    """Note calls of `step`, as torch's schedulers do, which warn where nobody does."""
    step: Callable[..., Any] = type(optimizer).step
    own = weakref.ref(optimizer)

    @wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        alive: Any = own()
        alive._opt_called = True
        return step(alive, *args, **kwargs)

    wrapper._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = wrapper  # type: ignore[method-assign]
