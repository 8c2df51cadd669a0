"""The runs of a stage on several cores: a process each, with progress that all can see."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Final

import torch

from espalier_agent.study.many_runs import Learnt, Run, learn_many

Told = Callable[[str, int, int], None]
"""Called a few times a second with the stage, the episodes done and those to do, of all runs together."""
_LOOK_SECONDS: Final = 0.5
_done: SynchronizedArray[int] | None = None
"""In a worker: episodes of each process's runs."""


@contextmanager
def workers(processes: int, told: Told) -> Iterator[Callable[[str, Sequence[Run], int], list[Learnt]]]:
    """Give what learns the runs of a stage; its processes end with the block."""
    context = multiprocessing.get_context("spawn")
    done = context.Array("q", processes)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(done,)) as pool:

        def learn(stage: str, runs: Sequence[Run], episodes: int) -> list[Learnt]:
            done[:] = [0] * processes
            shares = [list(runs[first::processes]) for first in range(processes)]
            futures = [pool.submit(_learn, place, share, episodes) for place, share in enumerate(shares) if share]
            _watch(futures, lambda: told(stage, sum(done[:]), episodes * len(runs)))
            found: list[Learnt | None] = [None] * len(runs)
            for first, future in enumerate(futures):
                found[first::processes] = future.result()
            return [learnt for learnt in found if learnt is not None]

        yield learn


def _watch(futures: Sequence[Future[list[Learnt]]], tell: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=_LOOK_SECONDS)
        tell()
        for future in finished:
            future.result()  # a failure ends all at once


def _begin(done: SynchronizedArray[int]) -> None:
    global _done
    _done = done
    torch.set_num_threads(1)


def _learn(place: int, runs: list[Run], episodes: int) -> list[Learnt]:
    counter = _done
    if counter is None:
        raise RuntimeError("a worker was not begun")

    def progress(played: int) -> None:
        counter[place] = played * len(runs)

    return learn_many(runs, episodes, progress)
