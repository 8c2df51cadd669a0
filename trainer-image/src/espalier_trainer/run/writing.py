"""Writes checkpoints in the background, from a copy in memory, while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Written:
    """What came of writing the checkpoint of a step."""

    step: int
    path: Path | None
    """None: it could not be written."""
    seconds: float
    error: Exception | None = None
    """Why not."""


class Writer:
    """At most one checkpoint is in flight. Not thread-safe: the training loop's own.

    The copy is kept for the next checkpoint, and its memory is prepared before the first one: memory that is new costs
    several times as long to fill as to copy. At the end of the process the interpreter waits for a checkpoint in
    flight.
    """

    def __init__(self, store: CheckpointStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._flight: Future[Written] | None = None
        self._room: Checkpoint | None = None
        self._preparing: Future[Checkpoint] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is in flight and not taken, or memory is being prepared."""
        return self._flight is not None or (self._preparing is not None and not self._preparing.done())

    @property
    def prepared(self) -> bool:
        """Whether there is memory for a copy, or soon will be."""
        return self._room is not None or self._preparing is not None

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Begin to make memory for the copy of a checkpoint like this one; does nothing while one is in flight."""
        if self._flight is None:
            earlier, room = self._preparing, self._room
            self._preparing = self._threads.submit(
                lambda: checkpoint.room(room if earlier is None else earlier.result())
            )

    def start(self, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint and begin to write it."""
        if self._flight is not None:
            raise RuntimeError("a checkpoint is in flight")
        self._room = checkpoint.copied(self._made())
        self._flight = self._threads.submit(self._written, self._room)

    def take(self, *, wait: bool = False) -> Written | None:
        """Return what came of the checkpoint in flight; None if there is none, or, unless `wait`, if it is not done."""
        flight = self._flight
        if flight is None or not (wait or flight.done()):
            return None
        self._flight = None
        return flight.result()

    def write(self, checkpoint: Checkpoint) -> Written:
        """Write a checkpoint now. None is in flight."""
        return self._written(checkpoint)

    def _made(self) -> Checkpoint | None:
        """Return the memory for the next copy, as far as there is some; waits for what is being prepared."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            self._room = preparing.result()
        return self._room

    def _written(self, checkpoint: Checkpoint) -> Written:
        began, step = self._clock(), checkpoint.state.step
        try:
            path = self._store.save(checkpoint)
        except Exception as error:
            return Written(step, None, self._clock() - began, error)
        return Written(step, path, self._clock() - began)
