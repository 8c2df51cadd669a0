"""Growth in place: a model becomes its grown copy, and references that a script holds to its parts stay valid.

Growth is tried on a copy, so that a model that cannot grow stays unchanged. Then the model takes over the changes that
growth made to the copy. Its modules, parameters and buffers stay the same objects, and so do the lists, dictionaries
and other objects in its attributes: only objects that growth has added are new.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.optimizer import grow_optimizer, members_of, neighbours, with_parameters
from espalier_trainer.net2net.widening.widen import Widening, widen_optimizer

_PATIENCE: Final = 100
"""Number of gradients of a layer to wait for one of the new layer after it, which may be left out at random."""

_CONTAINERS: Final = (dict, OrderedDict, defaultdict, list, set)
_VALUES: Final = (
    *(int, float, complex, str, bytes, tuple, frozenset, type(None), Enum, range, slice),
    *(torch.dtype, torch.device, torch.memory_format, type, FunctionType, BuiltinFunctionType, ModuleType),
)
"""Types of immutable objects: an attribute gets another object instead."""

Successor = Callable[[Tensor], Tensor]
"""Function from a tensor of the grown copy to the model's own tensor that has taken its place."""


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def grow_in_place(
    model: nn.Module,
    grown: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    widening: Widening | None = None,
) -> None:
    """Turn `model` and its optimizers into `grown`, a grown copy of it, which must not be used afterwards.

    Modules, parameters, optimizers and their groups stay the same objects, so that schedulers, hooks, averages and
    lists that a script holds keep working. Where `grown` is `widened(model, widening)`, pass the widening: a parameter
    that became larger stays the same object with other data, and its gradient is removed. Using a part that growth
    removed from the model raises `GrowthError`, and so does calling the old modules of a list without new ones.


    Raises `GrowthError` as `grow_optimizer` and `widen_optimizer` do, with nothing changed.
    """
    given = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    owned = [one for each in given for one in members_of(each)]
    others = [
        grow_optimizer(one, model, grown) if widening is None else widen_optimizer(one, model, grown, widening)
        for one in owned
    ]
    grow_into(model, grown, list(zip(owned, others, strict=True)))


def grow_into(model: nn.Module, grown: nn.Module, optimizers: Sequence[tuple[Optimizer, Optimizer]] = ()) -> None:
    """Grow in place as `grow_in_place` does; `optimizers` pairs those of `model` with successors for `grown`."""
    added, paths = neighbours(model, grown), {path for path, _ in model.named_modules()}
    successor = become(model, grown)
    for own, new in optimizers:
        if own is not new:
            _take_over(own, new, successor)
    held = dict(model.named_parameters())
    parts: dict[str, list[str]] = {}
    for name, by in added.items():
        if held[name].requires_grad and by in held and held[by].requires_grad:
            parts.setdefault(_newest(name, paths), []).append(name)
    for path, names in parts.items():
        _Bypassed(path, added[names[0]], [held[name] for name in names], held[added[names[0]]])


def become(model: nn.Module, grown: nn.Module) -> Successor:
    """Turn `model` into `grown`, a copy of it that may have grown, as described at `grow_in_place`."""
    if model is grown:
        return lambda tensor: tensor
    before = [*model.named_modules(), *model.named_parameters()]
    memo: dict[int, Any] = {}
    for module in grown.modules():
        for values in (module._parameters, module._buffers, vars(module)):
            memo |= {id(value): value for value in values.values() if isinstance(value, Tensor)}
    pairs = _pairs(model, grown)
    memo |= {id(new): old for old, new in pairs}
    for old, new in pairs:
        if old is not new:
            _take(old, new, memo)
    held = {id(part) for part in (*model.modules(), *model.parameters())}
    for name, part in before:
        if id(part) not in held:
            _forbid(name, part)
    return lambda tensor: memo.get(id(tensor), tensor)


def _pairs(model: nn.Module, grown: nn.Module) -> list[tuple[Any, Any]]:
    """Return pairs of an object of `model` and its counterpart in the copy: modules by path, then the rest."""
    found: list[tuple[Any, Any]] = []
    taken: set[int] = set()
    modules: list[tuple[Any, Any]] = [(model, grown)]
    others: list[tuple[Any, Any]] = []
    while modules or others:
        old, new = modules.pop() if modules else others.pop()
        if old is new:
            found.append((old, new))
        elif id(old) in taken or id(new) in taken:
            continue
        elif isinstance(new, tuple) and isinstance(old, tuple):
            others += zip(old, new, strict=False)
        elif _alike(old, new):
            taken |= {id(old), id(new)}
            found.append((old, new))
            if isinstance(new, nn.Module):
                modules += _shared(old._modules, new._modules)
            others += _parts(old, new)
    return found


def _alike(old: Any, new: Any) -> bool:
    """Return whether an object can take the place of its copy."""
    if isinstance(new, nn.Module):
        return isinstance(old, nn.Module)
    if isinstance(new, Tensor):
        same = type(old) is type(new) and (old.dtype, old.device) == (new.dtype, new.device)
        return same and (old.shape == new.shape or (old.is_leaf and new.is_leaf))
    return type(old) is type(new) and not isinstance(new, _VALUES)


def _parts(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(new, dict):
        yield from _shared(old, new)
    elif isinstance(new, list):
        yield from zip(old, new, strict=False)
    elif isinstance(new, MethodType):
        yield old.__self__, new.__self__
    elif not isinstance(new, Tensor) and hasattr(new, "__dict__"):
        yield from _shared(vars(old), vars(new))


def _shared(old: dict[Any, Any], new: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return ((old[key], value) for key, value in new.items() if key in old)


def _take(old: Any, new: Any, memo: dict[int, Any]) -> None:
    """Give `old` the contents of `new`, with paired objects replaced by those of the model."""
    if isinstance(new, Tensor):
        _take_values(old, new)
    elif isinstance(new, dict) and type(new) in _CONTAINERS:
        items = [(copy.deepcopy(key, memo), copy.deepcopy(value, memo)) for key, value in new.items()]
        if not _same([*old.items()], items):
            old.clear()
            old.update(items)
    elif isinstance(new, list | set) and type(new) in _CONTAINERS:
        values = [copy.deepcopy(value, memo) for value in new]
        if not _same([(value,) for value in old], [(value,) for value in values]):
            old.clear()
            old.update(values) if isinstance(old, set) else old.extend(values)
    elif hasattr(new, "__dict__") and not isinstance(new, MethodType):
        if type(old) is not type(new):  # the host of a layer
            old.__class__ = type(new)
        for name, value in vars(new).items():
            value = copy.deepcopy(value, memo)
            if name not in vars(old) or not _same([(vars(old)[name],)], [(value,)]):
                vars(old)[name] = value


def _same(old: Sequence[tuple[Any, ...]], new: Sequence[tuple[Any, ...]]) -> bool:
    return len(old) == len(new) and all(
        one is other or (type(one) is type(other) and isinstance(one, int | float | str | bytes) and one == other)
        for ones, others in zip(old, new, strict=True)
        for one, other in zip(ones, others, strict=True)
    )


@torch.no_grad()
def _take_values(old: Tensor, new: Tensor) -> None:
    if old.shape != new.shape:
        old.grad = None
        # An accumulation node held elsewhere keeps the old shape; a change of type makes another node.
        old.data = new.to(torch.float32 if old.dtype != torch.float32 else torch.float64)
        old.data = new.data
    elif not torch.equal(old, new):
        old.detach().copy_(new)
    if old.is_leaf and old.requires_grad != new.requires_grad:
        old.requires_grad_(new.requires_grad)


def _take_over(optimizer: Optimizer, grown: Optimizer, successor: Successor) -> None:
    """Give `optimizer` the contents of `grown`, which `grow_optimizer` made from it."""
    for group, new in zip(optimizer.param_groups, grown.param_groups, strict=True):
        group["params"][:] = [successor(parameter) for parameter in new["params"]]
        if "param_names" in new:
            group["param_names"] = new["param_names"]
    for parameter, state in grown.state.items():
        if not isinstance(parameter, Tensor):
            continue  # state of the optimizer as a whole
        kept = optimizer.state.get(successor(parameter), {})
        if kept.keys() != state.keys() or any(_shape(kept[key]) != _shape(value) for key, value in state.items()):
            optimizer.state[successor(parameter)] = state
    memo: dict[int, Any] = {id(one): successor(one) for group in grown.param_groups for one in group["params"]}
    for name, value in with_parameters(grown):
        setattr(optimizer, name, copy.deepcopy(value, memo))


def _shape(value: Any) -> object:
    return value.shape if isinstance(value, Tensor) else None


def _newest(name: str, paths: set[str]) -> str:
    """Return the path of the outermost new module that holds a parameter, or the parameter's name if none is new."""
    parts = name.split(".")
    outer = (".".join(parts[:length]) for length in range(1, len(parts)))
    return next((path for path in outer if path not in paths), name)


def _forbid(name: str, part: nn.Module | Tensor) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise GrowthError(
            f"the script still uses {name!r} as it was before the growth, and the model has another one in its place; "
            "take it from the model where it is used"
        )

    if isinstance(part, nn.Module):
        part.register_forward_pre_hook(refuse)
    elif part.requires_grad:
        part.register_hook(refuse)  # type: ignore[no-untyped-call]


class _Bypassed:
    """Watch for the first gradient of a new part of a model; raise if the layer before it alone keeps getting some."""

    def __init__(self, path: str, layer: str, parameters: Sequence[Tensor], before: Tensor) -> None:
        self._path, self._layer, self._parameters, self._left = path, layer, parameters, _PATIENCE
        self._hooks: list[Any] = []
        for parameter in parameters:
            self._hook(parameter, self._reached)
        self._hook(before, self._passed)

    def _hook(self, parameter: Tensor, function: Callable[[Tensor], None]) -> None:
        self._hooks.append(parameter.register_post_accumulate_grad_hook(function))  # type: ignore[no-untyped-call]

    def _reached(self, _: Tensor) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _passed(self, _: Tensor) -> None:
        waits = bool(self._hooks) and any(parameter.requires_grad for parameter in self._parameters)
        self._left -= waits
        if waits and self._left < 0:
            raise GrowthError(
                f"{self._layer!r} gets gradients, and {self._path!r}, which growth has added after it, does not: the "
                "script calls the modules of a list that it made before the growth; call the model, or make the list "
                "anew in each step"
            )
