"""From a run to its checkpoint and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from espalier_api.job import AdaptiveTrainingJob
from espalier_trainer import randomness
from espalier_trainer.checkpoint import Checkpoint, CheckpointIdentity, CheckpointState, CheckpointStore
from espalier_trainer.distillation.shrinking import Shrinker
from espalier_trainer.distillation.trial import untried
from espalier_trainer.errors import CheckpointMismatchError, LossNotFiniteError
from espalier_trainer.narrator import Narrator
from espalier_trainer.network import OPTIMIZER_PREFIX, Network, resumed_network
from espalier_trainer.optimizers import optimizer_state
from espalier_trainer.progress import Progress
from espalier_trainer.schedules import Schedule


class Stated(Protocol):
    """What decides on the learning rate, as far as a checkpoint keeps it."""

    def state(self) -> dict[str, object]:
        """Return its state, as JSON types."""


def identity(job: AdaptiveTrainingJob, seed: int) -> CheckpointIdentity:
    """Return what must be equal for a checkpoint to be resumed from."""
    training = job.spec.training
    return CheckpointIdentity(
        job=job.key,
        model=training.model.model_dump_json(by_alias=True, exclude_none=True),
        dataset=training.dataset.name or training.dataset.entrypoint or "",
        optimizer=training.optimizer.name,
        batch_size=training.batch_size,
        seed=seed,
    )


def capture(
    own: CheckpointIdentity,
    network: Network,
    progress: Progress,
    schedule: Stated,
    used_seconds: float,
    device: torch.device,
    shrinker: Shrinker | None = None,
) -> Checkpoint:
    """Return the run as a checkpoint."""
    shrinking, kept = (None, {}) if shrinker is None else shrinker.capture()
    groups, tensors, values = optimizer_state(network.optimizer, network.module)
    random_values, random_tensors = randomness.capture(device)
    state = CheckpointState(
        identity=own,
        architecture=network.architecture,
        growth=network.history,
        epoch=progress.epoch,
        step=progress.step,
        cursor=progress.cursor,
        epoch_loss_sum=progress.epoch_loss_sum,
        used_seconds=used_seconds,
        consultations=progress.consultations,
        adaptations=tuple(progress.adaptations),
        metrics=progress.metric_tuple(),
        depth_before=progress.depth_before,
        parameters_before=progress.parameters_before,
        max_step_gap_seconds=progress.max_step_gap_seconds,
        schedule=schedule.state(),
        shrinking=shrinking,
        optimizer_groups=tuple(groups),
        optimizer_values=values,
        random=random_values,
    )
    training = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in tensors.items()} | random_tensors | kept
    model: dict[str, Tensor] = network.module.state_dict()
    return Checkpoint(state, model, training)


def restore(
    own: CheckpointIdentity,
    checkpoint: Checkpoint,
    start: Network,
    job: AdaptiveTrainingJob,
    schedule: Schedule,
    example_input: Tensor,
    device: torch.device,
    shrinker: Shrinker | None = None,
) -> tuple[Network, Progress]:
    """Return the network and progress of a checkpoint; sets the schedule, the random generators and the shrinker.

    Raises `CheckpointMismatchError` for a checkpoint of another job, model, data set, optimizer or seed.
    """
    state = checkpoint.state
    differences = own.differences(state.identity)
    if differences:
        raise CheckpointMismatchError(
            f"the checkpoint is of another training run ({'; '.join(differences)}); set another checkpoint.path, "
            "or remove the folder to begin anew"
        )
    network = resumed_network(start, checkpoint, job.spec.training.optimizer, example_input)
    if shrinker is not None:
        shrinker.restore(checkpoint, example_input)
    else:
        network = untried(checkpoint, network, start, job.spec.training.optimizer, example_input)
    try:
        schedule.load_state(state.schedule)
    except KeyError as error:
        raise CheckpointMismatchError(
            f"the checkpoint was made with another training.schedule (it has no {error}); "
            "change it back, or remove the checkpoint folder to begin anew"
        ) from error
    randomness.restore(state.random, checkpoint.training, device)
    return network, progress_of(state)


def progress_of(state: CheckpointState) -> Progress:
    """Return where the run of a checkpoint stood."""
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
    """Writes the checkpoints of a run, at its own pace; `store` None keeps nothing."""

    store: CheckpointStore | None
    identity: CheckpointIdentity
    interval_seconds: float
    """In budget seconds."""
    schedule: Stated
    device: torch.device
    clock: Callable[[], float]
    shrinker: Shrinker | None = None
    wanted: bool = False
    """Save at the next step boundary (after a growth)."""
    _saved_at: float = 0.0

    def begin(self, used_seconds: float) -> None:
        """Count the interval from here."""
        self._saved_at = used_seconds

    def is_due(self, used_seconds: float) -> bool:
        """Tell whether the interval is over or a checkpoint is wanted."""
        return self.wanted or used_seconds - self._saved_at >= self.interval_seconds

    def save(self, network: Network, progress: Progress, used_seconds: float, narrator: Narrator) -> None:
        """Write a checkpoint; where that cannot be done, warn and go on.

        Raises `LossNotFiniteError` for a network with NaN or infinity in it, which is never written.
        """
        self.wanted = False
        self._saved_at = used_seconds
        if self.store is None:
            return
        if not network.is_finite():
            rate = progress.metrics.get("learning_rate", 0.0)
            raise LossNotFiniteError(f"the weights after step {progress.step} are not finite", rate)
        started = self.clock()
        try:
            checkpoint = capture(
                self.identity, network, progress, self.schedule, used_seconds, self.device, self.shrinker
            )
            path = self.store.save(checkpoint)
        except (OSError, SafetensorError) as error:
            narrator.warn("CheckpointFailed", f"no checkpoint was written ({error}); training goes on")
        else:
            narrator.saved(str(path), self.clock() - started)
