"""Attempts at faster steps: their outcome as an adaptation, the attempts made in a run, and their cost. Pure."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from espalier_core.types.allocation import Allocation
from espalier_core.types.job import Precision
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_core.types.training import TrainingSpec
from espalier_trainer.training.execution import Comparison
from espalier_trainer.training.network import Network

CHANNELS_LAST: Final = "ChannelsLast"
REWRITE: Final = "Rewrite"

NOT_OURS: Final = (
    "adaptation.optimise: the script computes its steps, so they are not rewritten; use the ready trainer, or set it "
    "to Off"
)
"""Reason why a user's loop has no optimiser."""
_OTHER_MODEL: Final = (AdaptationResult.GROWN, AdaptationResult.SHRUNK)
"""Results after which the model is another one, whose graph has not been searched."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The outcome of an attempt."""

    kind: str
    message: str = ""
    won: bool = False
    rules: int = 0
    pairs: Comparison | None = None
    evaluations: int | None = None
    error: float | None = None

    def record(self, network: Network, allocation: Allocation, used_seconds: float, spent: float) -> Adaptation:
        """Return the adaptation that records an attempt on `network` that took `spent` seconds."""
        before, after = (None, None) if self.pairs is None else self.pairs.seconds
        return Adaptation(
            decision_id=f"measurement-{uuid.uuid4().hex}",
            time=datetime.now(UTC),
            used_seconds=used_seconds,
            trigger=allocation.reason,
            generation=allocation.generation,
            action=self.kind if self.kind == CHANNELS_LAST else f"{self.kind}({self.rules})",
            source=AdaptationSource.MEASUREMENT,
            policy="memoryFormat" if self.kind == CHANNELS_LAST else "optimise",
            result=AdaptationResult.REWRITTEN if self.won else AdaptationResult.REVERTED,
            message=self.message,
            depth_before=network.depth,
            depth_after=network.depth,
            parameters_before=network.parameters,
            parameters_after=network.parameters,
            seconds=spent,
            step_seconds_before=before,
            step_seconds_after=after,
            evaluations=self.evaluations,
            largest_error=self.error if self.error is not None and math.isfinite(self.error) else None,
        )


def gained(pairs: Comparison) -> str:
    """Describe the gain of a comparison."""
    low, high = pairs.quartiles
    return f"gain {pairs.gain - 1:+.1%}, quartiles {low - 1:+.1%} and {high - 1:+.1%}"


def too_little(pairs: Comparison, least_gain: float, step: float, time_left: float, spent: float) -> str:
    """Return why another computation is not worth the change; '' if it is.

    Required are a gain of `least_gain`, and any gain in three of four pairs; and in the `time_left` steps of `step`
    seconds it must save more than the `spent` seconds.
    """
    if not pairs.faster(least_gain):
        return f"{gained(pairs)}; required are {least_gain:.1%}, and more than 0 in three of four pairs"
    before, after = pairs.seconds
    saved = (before - after) / max(before, step) * time_left
    return "" if saved > spent else f"{gained(pairs)}; saves {saved:.2g} s until the end, and cost {spent:.2g} s"


def cost_of(adaptations: Sequence[Adaptation]) -> float:
    """Return the total seconds of all attempts so far."""
    return sum(one.seconds for one in adaptations if one.source is AdaptationSource.MEASUREMENT)


def is_tried(kind: str, adaptations: Sequence[Adaptation]) -> bool:
    """Return whether an attempt of this kind was made: channels-last once a run, rewrites once for each model."""
    for one in reversed(adaptations):
        if kind == REWRITE and one.result in _OTHER_MODEL:
            return False
        if one.source is AdaptationSource.MEASUREMENT and one.action.partition("(")[0] == kind:
            return True
    return False


def refusal(training: TrainingSpec) -> str:
    """Return why the steps of a job cannot be rewritten, and the remedy; '' if they can."""
    fields = {
        "syncBatchNorm": training.sync_batch_norm,
        "gradientCheckpointing": training.gradient_checkpointing,
        # Most rules change values that autocast rounds, and the check in double precision runs without it: a
        # convolution with its shortcut, rounded as 1 + weight, loses small weights.
        "precision BFloat16": training.precision is Precision.BFLOAT16,
    }
    found = next((name for name, value in fields.items() if value), None)
    if found is None:
        return ""
    return f"adaptation.optimise: does not go with training.{found}, which changes how layers compute; leave one out"
