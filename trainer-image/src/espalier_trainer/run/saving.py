"""Conversion of a run to its checkpoint and back, and writing of checkpoints in the background.

Checkpoints are written from a copy in memory, while training continues.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.checkpoints.examples import known
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.errors import CheckpointMismatchError, LossNotFiniteError
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.history import package_of
from espalier_trainer.optimizers.building import optimizer_state
from espalier_trainer.training.network import OPTIMIZER_PREFIX, Network
from espalier_trainer.training.progress import RunProgress

if TYPE_CHECKING:
    from espalier_trainer.run.run import Run


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of writing a step's checkpoint."""

    step: int
    path: Path | None
    """Path of the checkpoint; None if it could not be written."""
    seconds: float
    error: Exception | None = None
    """Error that prevented it; None if it was written."""


class CheckpointWriter:
    """Writer of at most one checkpoint at a time. Used by the training loop only; not thread-safe.

    The copy is kept for the next checkpoint, and its memory is prepared before the first one: new memory takes several
    times as long to fill as to copy. At the end of the process the interpreter waits for a checkpoint in flight.
    """

    def __init__(self, store: CheckpointStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._flight: Future[WriteResult] | None = None
        self._room: Checkpoint | None = None
        self._preparing: Future[Checkpoint] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is in flight and not taken, or memory is being prepared."""
        return self._flight is not None or (self._preparing is not None and not self._preparing.done())

    @property
    def prepared(self) -> bool:
        """Whether memory for a copy exists or is being prepared."""
        return self._room is not None or self._preparing is not None

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Start allocating memory for the copy of a checkpoint like this one; do nothing while one is in flight."""
        if self._flight is None:
            earlier, room = self._preparing, self._room
            self._preparing = self._threads.submit(
                lambda: checkpoint.room(room if earlier is None else earlier.result())
            )

    def start(self, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint and start writing it."""
        if self._flight is not None:
            raise RuntimeError("a checkpoint is in flight")
        self._room = checkpoint.copied(self._made())
        self._flight = self._threads.submit(self._written, self._room)

    def take(self, *, wait: bool = False) -> WriteResult | None:
        """Return the result of the checkpoint in flight; None without one, or while it is not done, unless `wait`."""
        flight = self._flight
        if flight is None or not (wait or flight.done()):
            return None
        self._flight = None
        return flight.result()

    def write(self, checkpoint: Checkpoint) -> WriteResult:
        """Write a checkpoint now. None is in flight."""
        return self._written(checkpoint)

    def _made(self) -> Checkpoint | None:
        """Return the memory for the next copy, if there is any; wait for memory that is being prepared."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            self._room = preparing.result()
        return self._room

    def _written(self, checkpoint: Checkpoint) -> WriteResult:
        began, step = self._clock(), checkpoint.state.step
        try:
            path = self._store.save(checkpoint)
        except Exception as error:
            return WriteResult(step, None, self._clock() - began, error)
        return WriteResult(step, path, self._clock() - began)


def progress_of(state: CheckpointState) -> RunProgress:
    """Return the progress of the run in a checkpoint."""
    return RunProgress(
        depth_before=state.depth_before,
        parameters_before=state.parameters_before,
        epoch=state.epoch,
        step=state.step,
        cursor=state.cursor,
        epoch_loss_sum=state.epoch_loss_sum,
        consultations=state.consultations,
        adaptations=list(state.adaptations),
        metrics={metric.name: metric.value for metric in state.metrics},
        max_step_gap_seconds=state.max_step_gap_seconds,
        curve=state.curve,
    )


class Saver:
    """Captures a run, restores it, and writes its checkpoints when due; writes none for a run without a store."""

    def __init__(self, run: Run, identity: CheckpointIdentity) -> None:
        """`identity` must match that of a checkpoint for the run to resume from it."""
        self._run, self._identity, self._store = run, identity, run.services.checkpoints
        self._interval = run.job.spec.checkpoint.interval_seconds
        """Budget seconds from the end of one checkpoint to the beginning of the next."""
        self._writer = None if self._store is None else CheckpointWriter(self._store, run.services.clock)
        self.wanted = False
        """Whether to save at the next step boundary (after a growth)."""
        self._saved_at = 0.0

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint, None without one. Raises `CheckpointMismatchError` if all are damaged."""
        store = self._store
        checkpoint = None if store is None else store.load_latest()
        if store is not None and checkpoint is None and (damaged := store.damaged()):
            names = ", ".join(path.name for path in damaged)
            raise CheckpointMismatchError(
                f"{store.folder}: no usable checkpoint is left ({names}); remove the folder (espalier run: --restart) "
                "to train from the beginning, with the whole budget"
            )
        return checkpoint

    def capture(self) -> Checkpoint:
        """Return the part of the run that its members need."""
        run, state, progress = self._run, self._run.state, self._run.progress
        network, example = state.network, run.loop.example
        used = run.scheduler.used_seconds()
        hooked, kept = run.hooks.capture()
        groups, tensors, values = optimizer_state(network.optimizer, network.module)
        random_values, random_tensors = randomness.capture(state.device)
        found = CheckpointState(
            identity=self._identity,
            architecture=network.architecture,
            growth=network.history,
            packages={each.kind: name for each in network.history if (name := package_of(each.action.kind))} or None,
            epoch=progress.epoch,
            step=progress.step,
            cursor=progress.cursor,
            epoch_loss_sum=progress.epoch_loss_sum,
            used_seconds=used,
            example=None if example is None else known(example),
            consultations=progress.consultations,
            adaptations=tuple(progress.adaptations),
            metrics=progress.metric_tuple(),
            depth_before=progress.depth_before,
            parameters_before=progress.parameters_before,
            max_step_gap_seconds=progress.max_step_gap_seconds,
            curve=progress.curve,
            schedule=state.state(),
            shrinking=hooked,
            batching=run.batching.state(),
            execution=network.execution_state,
            optimizer_groups=tuple(groups),
            optimizer_values=values,
            random=random_values,
        )
        training = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in tensors.items()} | random_tensors | kept
        return Checkpoint(found, network.module.state_dict(), training | state.tensors())

    def capture_all(self) -> Checkpoint:
        """Return the whole run, with measurements, which members do not need."""
        checkpoint = self.capture()
        state = checkpoint.state.model_copy(update={"measurements": self._run.meter.measured()})
        return replace(checkpoint, state=state)

    def take_over(self, checkpoint: Checkpoint) -> Network:
        """Continue from a checkpoint; return its network. Raises `CheckpointMismatchError` if another run wrote it."""
        run, state = self._run, checkpoint.state
        self._identity.require(state.identity)
        run.state.load(checkpoint)
        randomness.restore(state.random, checkpoint.training, run.state.device)
        run.batching.load(state.batching)
        run.become(progress_of(state))
        run.meter.restore(state.measurements)
        return run.state.network

    def begin(self) -> None:
        """Start the interval now."""
        self._saved_at = self._run.scheduler.used_seconds()

    def is_due(self) -> bool:
        """Return whether the interval is over or a checkpoint is wanted, and none is in flight."""
        busy = self._writer is not None and self._writer.busy
        return not busy and (self.wanted or self._since_saved() >= self._interval)

    def prepare(self) -> None:
        """Allocate memory for the copy ahead of time, once half of the interval is over."""
        if self._writer is not None and not self._writer.prepared and self._since_saved() >= self._interval / 2:
            self._writer.prepare(self.capture_all())

    def want(self) -> None:
        """Save the run, which has grown, at a step boundary soon: as soon as there is memory for its copy."""
        self.wanted = True
        if self._writer is not None:
            self._writer.prepare(self.capture_all())

    def save(self, *, wait: bool = True) -> str:
        """Write a checkpoint; warn if that fails. Return why none was written; '' if one was, or none is kept.

        Without `wait` it is written from a copy, while training continues, and `collect` reports the result. Raises
        `LossNotFiniteError` for a network with NaN or infinite values, which is never written, and `SupersededError` if
        a later leader has taken over.
        """
        self.wanted, progress = False, self._run.progress
        if self._writer is None:
            return ""
        if not self._run.state.network.is_finite():
            rate = progress.metrics.get("learning_rate", 0.0)
            raise LossNotFiniteError(f"the weights after step {progress.step} are not finite", rate)
        self.collect(wait=True)
        if not wait:
            self._writer.start(self.capture_all())
            return ""
        return self._report(self._writer.write(self.capture_all()))

    def collect(self, *, wait: bool = False) -> None:
        """Report the checkpoint in flight once it is done; `wait` for that. Raises the errors of `save`."""
        written = None if self._writer is None else self._writer.take(wait=wait)
        if written is not None:
            self._report(written)

    def _since_saved(self) -> float:
        return self._run.scheduler.used_seconds() - self._saved_at

    def _report(self, written: WriteResult) -> str:
        # From the end of a save: a model that takes an interval to write would otherwise be written continuously.
        self.begin()
        if written.path is not None:
            self._run.journal.saved(str(written.path), written.step, written.seconds)
        if written.error is None or self._store is None:
            return ""
        if not isinstance(written.error, OSError | SafetensorError):
            raise written.error
        newest = self._store.newest()
        kept = "there is none yet" if newest is None else f"the last is {newest}"
        problem = f"{self._store.folder}: no checkpoint of step {written.step} was written ({written.error}); {kept}"
        self._run.journal.warn("CheckpointFailed", problem)
        return problem
