"""Sets by key that are there only while they hold something. No I/O."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def discard(sets: dict[K, set[V]], key: K, value: V) -> None:
    """Take `value` out of a set, and the set away with its last: names of nodes and pools are new again and again."""
    if (found := sets.get(key)) is not None:
        found.discard(value)
        if not found:
            del sets[key]
