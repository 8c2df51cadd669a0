"""Which cores the operator has, and which all that makes load: so that neither takes the other's time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def move(pid: int, cores: frozenset[int]) -> None:
    """Let a process (0: this one) and what it starts from now on run on `cores` only; nothing happens without any."""
    if cores:
        os.sched_setaffinity(pid, cores)


@contextmanager
def also_on(cores: frozenset[int]) -> Iterator[None]:
    """Let what is started meanwhile run on `cores` too, in addition to those of this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before | cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def shared_out() -> tuple[frozenset[int], frozenset[int]]:
    """Return the operator's core, and the others of this process; `ValueError` where there is only one."""
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        raise ValueError("--apart needs two cores: one for the operator, one for all else")
    return frozenset((last,)), frozenset(others)
