"""Which cores the operator has, and which all that makes load: so that neither takes the other's time."""

from __future__ import annotations

import os


def move(pid: int, cores: frozenset[int]) -> None:
    """Let a process (0: this one) and what it starts from now on run on `cores` only; nothing happens without any."""
    if cores:
        os.sched_setaffinity(pid, cores)


def shared_out() -> tuple[frozenset[int], frozenset[int]]:
    """Return the operator's core, and the others of this process; `ValueError` where there is only one."""
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        raise ValueError("--apart needs two cores: one for the operator, one for all else")
    return frozenset((last,)), frozenset(others)
