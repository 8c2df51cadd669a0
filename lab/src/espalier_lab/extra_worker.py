"""The extra worker of a study's runs: a separate process that joins one run after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import torch

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.builtin_loop.worker import BuiltinWorker
from espalier_trainer.data import load_data
from espalier_trainer.elastic.membership import WorkerIdentity
from espalier_trainer.elastic.team import Team
from espalier_trainer.models.zoo import build_model
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.network import new_network

_SPAWN: Final = get_context("spawn")
END_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 120.0


class ExtraWorker:
    """One process, which ends with the `with` block."""

    def __init__(self) -> None:
        """Start it."""
        self._runs, theirs = _SPAWN.Pipe()
        self._over = _SPAWN.Event()
        self._process = _SPAWN.Process(target=_follow, args=(theirs, self._over), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self._over.set()
        self._runs.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @contextmanager
    def following(self, job: AdaptiveTrainingJob, seed: int) -> Iterator[Rendezvous]:
        """Let it join a run within the context; yield the rendezvous with the leader.

        Raise `RuntimeError` if it fails, or does not leave at the end.
        """
        with TemporaryDirectory(prefix="espalier-study-") as folder:
            place = str(Path(folder) / "rendezvous")
            self._over.clear()
            self._runs.send((job.model_dump_json(by_alias=True, exclude_none=True), seed, place))
            try:
                yield Rendezvous(place)
            finally:
                self._leave()

    def _leave(self) -> None:
        self._over.set()
        if not self._runs.poll(END_SECONDS):
            raise RuntimeError(f"the extra worker did not leave within {END_SECONDS:.0f} s")
        if failure := self._runs.recv():
            raise RuntimeError(f"the extra worker failed: {failure}")


def await_worker(team: Team) -> None:
    """Wait until the extra worker has started, so that its start is not part of a comparison."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while team.waiting < 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the extra worker did not come within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.02)


def _follow(runs: Connection, over: Event) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            text, seed, place = runs.recv()
        except EOFError:
            return
        try:
            _take_part(AdaptiveTrainingJob.model_validate_json(text), seed, place, over)
        except Exception as error:  # report any error to the run that waits for this process
            runs.send(f"{type(error).__name__}: {error}")
        else:
            runs.send("")


def _take_part(job: AdaptiveTrainingJob, seed: int, place: str, over: Event) -> None:
    training = job.spec.training
    data = load_data(training.dataset)
    model = build_model(training.model, data.classes, data.example_input())
    start, _ = new_network(model, training.optimizer, data.example_input(), job.spec.adaptation.described_insertion)

    def leave() -> bool:
        leader = parent_process()
        return over.is_set() or leader is None or not leader.is_alive()

    BuiltinWorker(job, start, data, torch.device("cpu"), seed, WorkerIdentity(), stop=leave).run(Rendezvous(place))
