"""Execution of tasks of cases side by side on the cores; results stay in a folder and are not computed again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, Self, TypeVar

import torch

from espalier_core.base import Record
from espalier_lab.growth.children import led_by_parent
from espalier_lab.growth.judge.case import CaseError, Cases, JudgeCase
from espalier_lab.run_store import RunFolder

RecordT = TypeVar("RecordT", bound=Record)
RecordT_co = TypeVar("RecordT_co", bound=Record, covariant=True)
Watcher = Callable[[int, int, float | None], None]
"""Receives finished tasks, all tasks, and the seconds left, None if unknown."""


class JudgeTask(Protocol[RecordT_co]):
    """A task for one case; can be pickled."""

    @property
    def place(self) -> int:
        """Index of its case."""

    def file(self, case: JudgeCase) -> str:
        """Return the name of the file for its record."""

    def record(self) -> type[RecordT_co]:
        """Return the class of its record."""

    def __call__(self, case: JudgeCase) -> RecordT_co:
        """Do it; raise `CaseError`."""


_cases: Sequence[JudgeCase] | None = None


def _set_up(make: Cases) -> None:
    global _cases
    led_by_parent()
    torch.set_num_threads(1)
    _cases = make()


def _work(task: JudgeTask[RecordT]) -> RecordT:
    if _cases is None:
        raise RuntimeError("a worker has no cases; `_set_up` makes them")
    return task(_cases[task.place])


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Runner:
    """Runs tasks of the same cases, in processes that are started with the first task."""

    def __init__(self, make: Cases, cases: Sequence[JudgeCase], folder: Path, parallel: int) -> None:
        """`cases` are created by `make`; workers create their own, as not every function can be pickled."""
        self._make, self._cases, self._runs, self._parallel = make, cases, RunFolder(folder), parallel
        self._pool: ProcessPoolExecutor | None = None
        self._others: list[BaseProcess] = []
        """Processes that already ran and are not part of the pool."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            if kind is not None:  # a task takes minutes, and its result is not needed any more
                for child in active_children():
                    if child not in self._others:
                        child.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, tasks: Sequence[JudgeTask[RecordT]], watcher: Watcher, clock: Callable[[], float]) -> list[RecordT]:
        """Return the records of all tasks, in their order.

        Raise `CaseError` if a task fails; finished results stay in the folder.
        """
        files = [task.file(self._cases[task.place]) for task in tasks]
        known = [self._runs.whole(file, task.record()) for file, task in zip(files, tasks, strict=True)]
        done = {number: record for number, record in enumerate(known) if record is not None}
        waiting = [number for number in range(len(tasks)) if number not in done]
        watcher(len(done), len(tasks), None)
        began, before = clock(), len(done)
        for number, record in self._results(tasks, waiting):
            self._runs.write(files[number], record)
            done[number] = record
            left = (clock() - began) / (len(done) - before) * (len(tasks) - len(done))
            watcher(len(done), len(tasks), left)
        return [done[number] for number in range(len(tasks))]

    def _results(self, tasks: Sequence[JudgeTask[RecordT]], waiting: Sequence[int]) -> Iterator[tuple[int, RecordT]]:
        if self._parallel < 2 or (self._pool is None and len(waiting) < 2):
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                for number in waiting:
                    yield number, tasks[number](self._cases[tasks[number].place])
            finally:
                torch.set_num_threads(threads)
            return
        if self._pool is None:
            workers = min(self._parallel, len(waiting))
            self._others = list(active_children())
            self._pool = ProcessPoolExecutor(workers, get_context("spawn"), _set_up, (self._make,))
        # Workers inherit the mask: before they are set up, which takes seconds, Ctrl-C would end each with a traceback.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {self._pool.submit(_work, tasks[number]): number for number in waiting}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool as error:
                raise CaseError(
                    "a worker ended while it trained (out of memory, or a crash below Python); --parallel 1 trains in "
                    "this process and shows where"
                ) from error
