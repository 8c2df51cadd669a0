"""Numbers of things: as a person reads them, and which there are more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def number_of(number: int, noun: str) -> str:
    """Return `0 GPUs`, `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def repeated(items: Iterable[T]) -> dict[T, int]:
    """Return how often each item occurs that does so more than once, in their order; in time linear in their number."""
    return {item: number for item, number in Counter(items).items() if number > 1}
