"""Where a run stands: the numbers that are reported, checkpointed and resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier_api.allocation import Allocation
from espalier_api.reasons import Reason
from espalier_api.report import Adaptation, Metric, TrainerPhase


@dataclass
class Progress:
    """Everything of a run that is neither a tensor nor a clock."""

    depth_before: int
    parameters_before: int
    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    cursor: int = 0
    """Batches of the current epoch already trained on."""
    epoch_loss_sum: float = 0.0
    consultations: int = 0
    adaptations: list[Adaptation] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest figures by name; see `metric_names`."""
    max_step_gap_seconds: float = 0.0
    """Longest wall time between the ends of two optimizer steps, all incarnations; time spent dead not included."""

    def metric_tuple(self) -> tuple[Metric, ...]:
        """Return the metrics for a report; one that is not finite is left out."""
        return tuple(Metric(name=name, value=value) for name, value in self.metrics.items() if math.isfinite(value))

    def validated(self, accuracy: float, loss: float) -> None:
        """Keep an evaluation; an adaptation that waited for its `accuracy_after` gets it."""
        self.metrics["validation_accuracy"] = accuracy
        self.metrics["validation_loss"] = loss
        if self.adaptations and self.adaptations[-1].accuracy_after is None:
            self.adaptations[-1] = self.adaptations[-1].model_copy(update={"accuracy_after": accuracy})

    def take_over(self, metrics: Mapping[str, float]) -> None:
        """Replace the metrics."""
        self.metrics = dict(metrics)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run ends."""

    phase: TrainerPhase
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a run came to."""

    phase: TrainerPhase
    reason: Reason
    message: str
    used_seconds: float
    """The final evaluation included."""
    epochs: int
    steps: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    depth_before: int
    depth_after: int
    parameters_before: int
    parameters_after: int
    adaptations: tuple[Adaptation, ...]
    max_step_gap_seconds: float
    allocation: Allocation
