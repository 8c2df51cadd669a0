"""Arguments of a call as hashable data: each input is a `Slot`, lists and dictionaries are marked tuples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espalier_trainer.training.execution import RewritesRefusedError


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of the input with this number."""

    number: int


def frozen(arguments: Any, slot: Callable[[Any], Slot | None]) -> Hashable:
    """Return (nested) arguments as hashable data; `slot` returns the place of an input, None for anything else.

    Raise `RewritesRefusedError` for an argument that cannot be converted.
    """
    if (found := slot(arguments)) is not None:
        return found
    if isinstance(arguments, list | tuple) and type(arguments) is not torch.Size:
        mark = "list" if isinstance(arguments, list) else "tuple"
        return (mark, *(frozen(item, slot) for item in arguments))
    if isinstance(arguments, dict):
        return ("dict", *((key, frozen(value, slot)) for key, value in arguments.items()))
    if isinstance(arguments, slice):
        return ("slice", *(frozen(part, slot) for part in (arguments.start, arguments.stop, arguments.step)))
    if not isinstance(arguments, Hashable):
        raise RewritesRefusedError(f"an operation has an argument of type {type(arguments).__name__}")
    return arguments


def thawed(data: Any, inputs: Sequence[Any]) -> Any:
    """Return the original arguments of `frozen`, with these inputs."""
    if isinstance(data, Slot):
        return inputs[data.number]
    if not isinstance(data, tuple) or isinstance(data, torch.Size) or not data:
        return data
    mark, *items = data
    if mark == "dict":
        return {key: thawed(value, inputs) for key, value in items}
    parts = [thawed(item, inputs) for item in items]
    if mark == "slice":
        return slice(*parts)
    return parts if mark == "list" else tuple(parts)


def filled(data: Any, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments that were frozen as `(arguments, settings)`."""
    arguments, settings = thawed(data, inputs)
    return tuple(arguments), dict(settings)


def as_template(args: tuple[Any, ...], kwargs: Mapping[str, Any], slot: Callable[[Any], Slot | None]) -> Hashable:
    """Return positional and keyword arguments as one hashable value."""
    return frozen((tuple(args), dict(kwargs)), slot)
