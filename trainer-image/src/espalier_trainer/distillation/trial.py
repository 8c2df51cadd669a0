"""The persistent state of shrinking: sizes, step times, and the larger model while a smaller one is on trial.

A smaller model is chosen by the step times of each model size and number of GPUs.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import Field
from torch import Tensor

from espalier_core.base import Record
from espalier_core.types.job import OptimizerSpec
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.distillation.filling import surviving
from espalier_trainer.optimizers.building import SEPARATOR, optimizer_state
from espalier_trainer.training.network import OPTIMIZER_PREFIX, Network, resumed_network

KEPT = "kept.model."
KEPT_OPTIMIZER = "kept.optimizer."
LESSON = "lesson."
"""Prefixes of tensors in `training.safetensors`."""


class EarlierSize(Record):
    """An earlier size of the model: everything needed to rebuild it, without its weights."""

    state: CheckpointState
    shapes: dict[str, tuple[int, ...]]
    """Shapes of its parameters and buffers, by name."""

    @property
    def key(self) -> str:
        """Key that distinguishes this structure from others."""
        return "" if self.state.architecture is None else self.state.architecture.fingerprint


class StepTimes(Record):
    """The latest budget seconds per step of one structure with one number of replicas."""

    structure: str
    replicas: int
    seconds: tuple[float, ...]


class PendingReclaim(Record):
    """A reclaim that is not decided yet: first a few steps are measured with the remaining GPUs."""

    trigger: str
    generation: int


class DistillationTrial(Record):
    """A trial of a smaller model."""

    trigger: str
    generation: int
    kept: CheckpointState
    """The larger network's description and optimizer; its tensors are in `training.safetensors`."""
    size: int = Field(ge=0)
    """Index of the smaller model among the sizes."""
    began: float
    ends: float
    """Used budget seconds at which the two are compared."""
    large_seconds: float
    """Seconds per step of the larger model when the trial began."""
    steps: int = 0
    measured: bool
    """Whether the smaller model's steps were already known to be cheaper."""


class ShrinkingState(Record):
    """The part of the state without tensors."""

    sizes: tuple[EarlierSize, ...] = ()
    """Sizes before the present one, oldest first."""
    times: tuple[StepTimes, ...] = ()
    replicas: int = 0
    """Number of replicas of the last observed allocation."""
    pending: PendingReclaim | None = None
    trial: DistillationTrial | None = None
    taught: bool = False
    """Whether a smaller model has replaced the larger one and still learns from its answers."""


def structure(state: CheckpointState) -> CheckpointState:
    """Return the part of a state that is needed to rebuild a network."""
    return state.model_copy(update={"random": {}, "metrics": (), "adaptations": (), "shrinking": None})


def size_of(network: Network, state: CheckpointState) -> EarlierSize:
    """Return the size of a network with this state."""
    shapes = {name: tuple(tensor.shape) for name, tensor in network.module.state_dict().items()}
    return EarlierSize(state=structure(state), shapes=shapes)


def smaller_network(
    size: EarlierSize, large: Network, start: Network, spec: OptimizerSpec, example_input: Tensor
) -> Network:
    """Return a network of this size, filled with copies of the large one's surviving weights and moments.

    Raises `ShrinkError` if the large one grew other than by added layers, `CheckpointMismatchError` if it cannot be
    rebuilt.
    """
    found = surviving(large.module.state_dict(), size.shapes)
    groups, tensors, values = optimizer_state(large.optimizer, large.module)
    kept = {name for group in size.state.optimizer_groups for name in _names(group)}
    options = [{**group, "params": [name for name in group["params"] if name in kept]} for group in groups]
    state = size.state.model_copy(
        update={
            "optimizer_groups": tuple(group for group in options if group["params"]),
            "optimizer_values": {name: value for name, value in values.items() if name in kept},
        }
    )
    training = {
        f"{OPTIMIZER_PREFIX}{key}": tensor.clone()
        for key, tensor in tensors.items()
        if key.partition(SEPARATOR)[0] in kept
    }
    return resumed_network(start, Checkpoint(state, found, training), spec, example_input)


def kept_tensors(kept: Network, lesson: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a kept network and of its teacher, by their names in a checkpoint."""
    _, tensors, _ = optimizer_state(kept.optimizer, kept.module)
    return (
        {f"{KEPT}{name}": tensor for name, tensor in kept.module.state_dict().items()}
        | {f"{KEPT_OPTIMIZER}{name}": tensor for name, tensor in tensors.items()}
        | lesson_tensors(lesson)
    )


def lesson_tensors(lesson: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a teacher's tensors by their names in a checkpoint."""
    return {f"{LESSON}{name}": tensor for name, tensor in lesson.items()}


def kept_network(
    trial: DistillationTrial, checkpoint: Checkpoint, start: Network, spec: OptimizerSpec, example_input: Tensor
) -> Network:
    """Return the larger network of a trial, from a checkpoint's training tensors."""
    optimizer = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in checkpoint.under(KEPT_OPTIMIZER).items()}
    return resumed_network(start, Checkpoint(trial.kept, checkpoint.under(KEPT), optimizer), spec, example_input)


def untried(
    checkpoint: Checkpoint, network: Network, start: Network, spec: OptimizerSpec, example_input: Tensor
) -> Network:
    """Return the network to continue with if a checkpoint's trial of a smaller one is no longer wanted."""
    trial = ShrinkingState.model_validate(checkpoint.state.shrinking).trial
    return network if trial is None else kept_network(trial, checkpoint, start, spec, example_input)


def recorded(
    trial: DistillationTrial,
    result: AdaptationResult,
    reason: Reason,
    message: str,
    before: Network,
    after: Network,
    *,
    used_seconds: float,
    seconds: float,
) -> Adaptation:
    """Return the record of a trial, or of the decision against one, which took `seconds` of wall time."""
    return Adaptation(
        decision_id=f"reclaim-{uuid.uuid4().hex}",
        time=datetime.now(UTC),
        used_seconds=used_seconds,
        trigger=trial.trigger,
        generation=trial.generation,
        action="Distill",
        source=AdaptationSource.RECLAIM,
        policy="onReclaim",
        result=result,
        reason=reason,
        message=message or SENTENCES[reason],
        depth_before=before.depth,
        depth_after=after.depth,
        parameters_before=before.parameters,
        parameters_after=after.parameters,
        seconds=seconds,
    )


def _names(group: Mapping[str, object]) -> tuple[str, ...]:
    names = group["params"]
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()


MEASURED_STEPS: Final = 10
"""Number of steps measured with the remaining GPUs before a decision: enough for a typical median."""


class StepTimings:
    """The latest budget seconds per step, by the structure of the network and the number of replicas."""

    def __init__(self, known: Iterable[StepTimes] = ()) -> None:
        """Continue from the times in a checkpoint."""
        self._seconds = {(each.structure, each.replicas): list(each.seconds) for each in known}

    def state(self) -> tuple[StepTimes, ...]:
        """Return the times for a checkpoint."""
        return tuple(
            StepTimes(structure=structure, replicas=replicas, seconds=tuple(seconds))
            for (structure, replicas), seconds in self._seconds.items()
        )

    def took(self, structure: str, replicas: int, seconds: float) -> None:
        """Record a step."""
        found = self._seconds.setdefault((structure, replicas), [])
        found.append(seconds)
        del found[:-MEASURED_STEPS]

    def forget(self, structure: str, replicas: int) -> None:
        """Discard these times, so that they are measured again."""
        self._seconds.pop((structure, replicas), None)

    def known(self, structure: str, replicas: int) -> bool:
        """Return whether `MEASURED_STEPS` have been measured."""
        return len(self._seconds.get((structure, replicas), ())) >= MEASURED_STEPS

    def median(self, structure: str, replicas: int) -> float:
        """Return the median; raises `statistics.StatisticsError` where nothing was measured."""
        return statistics.median(self._seconds.get((structure, replicas), ()))

    def with_more(self, structure: str, replicas: int) -> float | None:
        """Return the least median of the same structure with more replicas; None where there is none."""
        found = (
            statistics.median(seconds)
            for (known, number), seconds in self._seconds.items()
            if known == structure and number > replicas
        )
        return min(found, default=None)

    def expected(self, structure: str, replicas: int, grown: str, large: float) -> float | None:
        """Return the seconds per step of a structure: measured, or scaled from another number of replicas.

        The scale is that of the present structure's steps: `large` seconds now, and those of `grown` with that number.
        None where neither was measured.
        """
        if seconds := self._seconds.get((structure, replicas)):
            return statistics.median(seconds)
        for (known, number), seconds in self._seconds.items():
            if known == structure and (grown_seconds := self._seconds.get((grown, number))):
                return statistics.median(seconds) * large / statistics.median(grown_seconds)
        return None
