"""Processes that train runs, one run each at a time. They end with the process that started them."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from espalier_core.growth.architecture import GrowthError
from espalier_lab.growth.children import led_by_parent
from espalier_lab.growth.collect.plan import CollectionRun
from espalier_lab.growth.collect.state import WorkFolder
from espalier_lab.growth.collect.training import CollectError, Collection, RunRecord, train
from espalier_trainer.errors import TrainerError


@dataclass(frozen=True, slots=True)
class _Failed:
    message: str


@dataclass
class CollectionWorkers:
    """`count` processes for one collection; a context manager."""

    count: int
    collection: Collection
    folder: WorkFolder
    _processes: dict[Connection, BaseProcess] = field(init=False, default_factory=dict)
    _training: dict[Connection, CollectionRun] = field(init=False, default_factory=dict)

    def __enter__(self) -> CollectionWorkers:
        """Start them."""
        # Its server imports torch once, with the part that optimizers import on first use. Each process is a fork of
        # it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([train.__module__, "torch._dynamo"])
        for _ in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self.collection, self.folder), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is noticed
            self._processes[ours] = process
        return self

    def __exit__(self, *error: object) -> None:
        """End them, even in the middle of a run."""
        for end, process in self._processes.items():
            process.terminate()
            process.join()
            end.close()

    @property
    def idle(self) -> int:
        """Number of idle processes."""
        return len(self._processes) - len(self._training)

    def begin(self, run: CollectionRun) -> None:
        """Give a run to an idle process."""
        end = next(end for end in self._processes if end not in self._training)
        self._training[end] = run
        end.send(run)

    def finished(self) -> list[tuple[CollectionRun, RunRecord]]:
        """Wait until at least one run is finished; raise `CollectError` if one failed or a process died."""
        finished: list[tuple[CollectionRun, RunRecord]] = []
        for end in wait(list(self._training)):
            if not isinstance(end, Connection):
                raise TypeError(f"waited for {end!r}")
            run = self._training.pop(end)
            try:
                answer = end.recv()
            except (EOFError, ConnectionResetError) as error:
                self._processes[end].join()
                raise CollectError(
                    f"{run.key}: its process ended with code {self._processes[end].exitcode} "
                    "(a negative one is a signal: -9 mostly means that memory ran out; lower --parallel)"
                ) from error
            if isinstance(answer, _Failed):
                raise CollectError(answer.message)
            finished.append((run, answer))
        return finished


def _work(end: Connection, collection: Collection, folder: WorkFolder) -> None:
    led_by_parent()
    torch.set_num_threads(1)
    while True:
        try:
            run = end.recv()
        except EOFError:
            return
        end.send(_trained(run, collection, folder))


def _trained(run: CollectionRun, collection: Collection, folder: WorkFolder) -> RunRecord | _Failed:
    try:
        start = None if run.parent is None else folder.checkpoint(run.parent)
        if run.parent is not None and start is None:
            return _Failed(f"{run.key}: the checkpoint of {run.parent.key} is gone from {folder.path}; run it again")
        record, checkpoint = train(collection, run, start)
        if checkpoint is not None:
            folder.save(run, checkpoint)
    except (CollectError, TrainerError, GrowthError, OSError) as error:
        return _Failed(str(error))
    return record
