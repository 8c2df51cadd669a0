"""Options shared by the commands of `espalier policies`."""

from __future__ import annotations

from pathlib import Path

from espalier_cli.errors import InputError
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.learned.files import AllocationPolicy, write_policy

MOST_NODES = 1000


def cluster_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes in `48,96`. Raise `InputError`."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(1 <= size <= MOST_NODES for size in sizes):
        raise InputError(f"--nodes: {text!r} is not one or several numbers from 1 to {MOST_NODES}, as 48,96")
    return sizes


def type_indices(names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the types of jobs without these; None for all. Raise `InputError`."""
    known = source().names
    for name in names:
        if name not in known:
            raise InputError(f"--without-type: unknown type {name!r}; choose from {', '.join(known)}")
    if len(set(names)) == len(known):
        raise InputError("--without-type: no type is left; leave one out")
    return tuple(index for index, name in enumerate(known) if name not in names) if names else None


def require_folder(output: Path) -> None:
    """Raise `InputError` if there is no folder for `output`: before minutes of learning, not after."""
    if not output.parent.is_dir():
        raise InputError(f"--output: {output.parent} is not a folder; create it first")


def write(policy: AllocationPolicy, output: Path) -> None:
    """Write a policy file. Raise `InputError` if it cannot be written."""
    try:
        write_policy(policy, output)
    except OSError as error:
        raise InputError(f"--output: {output}: cannot be written: {error.strerror or error}") from error
