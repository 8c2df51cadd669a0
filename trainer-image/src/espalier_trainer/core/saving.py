"""Converts a run to its checkpoint and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from safetensors import SafetensorError
from torch import Tensor

from espalier_trainer import randomness
from espalier_trainer.checkpoint import Checkpoint, CheckpointIdentity, CheckpointState, CheckpointStore
from espalier_trainer.core.batching import Batching
from espalier_trainer.core.hooks import Hooks
from espalier_trainer.core.state import TrainingState
from espalier_trainer.errors import LossNotFiniteError
from espalier_trainer.examples import ExampleShape
from espalier_trainer.journal import Journal
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.network import OPTIMIZER_PREFIX, Network
from espalier_trainer.optimizers import optimizer_state
from espalier_trainer.progress import Progress


def capture(
    identity: CheckpointIdentity,
    trained: TrainingState,
    progress: Progress,
    used_seconds: float,
    hooks: Hooks,
    batching: Batching,
    example: ExampleInput | None = None,
) -> Checkpoint:
    """Return the run as a checkpoint."""
    network = trained.network
    hooked, kept = hooks.capture()
    groups, tensors, values = optimizer_state(network.optimizer, network.module)
    random_values, random_tensors = randomness.capture(trained.device)
    state = CheckpointState(
        identity=identity,
        architecture=network.architecture,
        growth=network.history,
        epoch=progress.epoch,
        step=progress.step,
        cursor=progress.cursor,
        epoch_loss_sum=progress.epoch_loss_sum,
        used_seconds=used_seconds,
        example=ExampleShape.of(example) if isinstance(example, Tensor) else None,
        consultations=progress.consultations,
        adaptations=tuple(progress.adaptations),
        metrics=progress.metric_tuple(),
        depth_before=progress.depth_before,
        parameters_before=progress.parameters_before,
        max_step_gap_seconds=progress.max_step_gap_seconds,
        schedule=trained.state(),
        shrinking=hooked,
        batching=batching.state(),
        optimizer_groups=tuple(groups),
        optimizer_values=values,
        random=random_values,
    )
    training = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in tensors.items()} | random_tensors | kept
    training |= trained.tensors()
    return Checkpoint(state, network.module.state_dict(), training)


def progress_of(state: CheckpointState) -> Progress:
    """Return the progress of the run in a checkpoint."""
    return Progress(
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
    )


@dataclass
class Saver:
    """Writes the checkpoints of a run when they are due; with `store` None none are written."""

    store: CheckpointStore | None
    interval_seconds: float
    """In budget seconds."""
    clock: Callable[[], float]
    wanted: bool = False
    """Save at the next step boundary (after a growth)."""
    _saved_at: float = 0.0

    def begin(self, used_seconds: float) -> None:
        """Start the interval now."""
        self._saved_at = used_seconds

    def is_due(self, used_seconds: float) -> bool:
        """Return whether the interval is over or a checkpoint is wanted."""
        return self.wanted or used_seconds - self._saved_at >= self.interval_seconds

    def save(self, capture: Callable[[], Checkpoint], network: Network, progress: Progress, journal: Journal) -> str:
        """Write a checkpoint; if that fails, warn. Returns why none was written, '' if one was, or none is kept.

        Raises `LossNotFiniteError` for a network with NaN or infinite values, which is never written, and
        `SupersededError` if a later leader has taken over.
        """
        self.wanted = False
        if self.store is None:
            return ""
        if not network.is_finite():
            rate = progress.metrics.get("learning_rate", 0.0)
            raise LossNotFiniteError(f"the weights after step {progress.step} are not finite", rate)
        started = self.clock()
        try:
            path = self.store.save(capture())
        except (OSError, SafetensorError) as error:
            newest = self.store.newest()
            kept = "there is none yet" if newest is None else f"the last is {newest}"
            problem = f"{self.store.folder}: no checkpoint of step {progress.step} was written ({error}); {kept}"
            journal.warn("CheckpointFailed", problem)
            return problem
        journal.saved(str(path), self.clock() - started)
        return ""
