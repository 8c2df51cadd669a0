"""What the commands of `espalier policies` share."""

from __future__ import annotations

from espalier_cli.errors import InputError
from espalier_scheduling.allocation.source import source

MOST_NODES = 1000


def cluster_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes that `48,96` names. Raises `InputError`."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(1 <= size <= MOST_NODES for size in sizes):
        raise InputError(f"--nodes: {text!r} is not one or several numbers from 1 to {MOST_NODES}, as 48,96")
    return sizes


def type_indices(names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the types of jobs without these; None for all. Raises `InputError`."""
    known = source().names
    for name in names:
        if name not in known:
            raise InputError(f"--without-type: {name!r} is none; choose one of {', '.join(known)}")
    if len(set(names)) == len(known):
        raise InputError("--without-type: no type is left; leave one out")
    return tuple(index for index, name in enumerate(known) if name not in names) if names else None
