"""The report of a job's leader to the scheduler."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import AwareDatetime, Field

from espalier_core.base import Record
from espalier_core.types.measurements import Measurements
from espalier_core.types.reasons import Reason
from espalier_core.types.task import Score, accuracy_of, accuracy_score, other_than_accuracy

WORKERS_METRIC: Final = "workers"
"""Name of the figure for the number of workers that train together."""
BATCH_METRIC: Final = "batch_size"
"""Name of the figure for the examples of a step, of a job with `batch: Goodput`."""
RATE_FACTOR_METRIC: Final = "learning_rate_factor"
"""Name of the figure for the factor on the learning rate of a job with `batch: Goodput`."""
MAX_REPORT_BYTES: Final = 128 * 1024
"""Maximum size of the report of a job on a cluster; a trainer sends less, and the operator reads no larger one.

The largest `maxAdaptations`, 100, makes 54 KiB with 3 growth points and 114 KiB with 20; an ordinary report of 3
adaptations has 2 KiB. The status keeps 20 adaptations with 64 probabilities each, about 90 KiB."""
MAX_METRICS: Final = 64
"""Maximum number of figures of a report that the status keeps; the rest are left out."""
MAX_PROBABILITIES: Final = 64
"""Maximum number of probabilities of an adaptation that the status keeps."""
MAX_ARMS: Final = 16
"""Maximum number of arms of a trial that the status keeps."""
MAX_SLICES: Final = 4
"""Maximum number of slices of an arm that the status keeps."""
MAX_OUTSIDE: Final = 200
"""Maximum length of the name of something that a policy has not learned from, in characters."""
MAX_NAME: Final = 128
"""Maximum length of the name of a figure or an action, in characters; longer ones are left out."""


class Metric(Record):
    """A named figure, as TrainJob's `trainerStatus.metrics`."""

    name: str
    """Name of the figure."""
    value: float
    """Value of the figure."""


class TrainerPhase(StrEnum):
    """The current activity of the leader."""

    STARTING = "Starting"
    TRAINING = "Training"
    ADAPTING = "Adapting"
    EVALUATING = "Evaluating"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    """Ended on request before its budget was used up, with a checkpoint to resume from."""
    FAILED = "Failed"


class AdaptationResult(StrEnum):
    """The result of one consultation."""

    GROWN = "Grown"
    DECLINED = "Declined"
    """The advice was to do nothing, or the growth was no better when it was tried."""
    UNKNOWN = "Unknown"
    """The policy has not learned from such a model or moment, and no trial was worth its cost; the model did not
    change."""
    DRY_RUN = "DryRun"
    FAILED = "Failed"
    """The advice could not be carried out; the model did not change."""
    SHRUNK = "Shrunk"
    """GPUs were taken back, and a smaller model that learned from the grown one replaced it."""
    KEPT = "Kept"
    """GPUs were taken back, and the grown model stays."""
    REWRITTEN = "Rewritten"
    """From here on, steps are computed in another way, which is faster and gives the same results."""
    REVERTED = "Reverted"
    """Steps are computed as the model's code says (again): no other way was found, or it was not faster or failed."""


class AdaptationSource(StrEnum):
    """The origin of a decision."""

    AGENT = "agent"
    FALLBACK = "fallback"
    RECLAIM = "reclaim"
    """The rule of `adaptation.onReclaim`; the agent was not asked."""
    MEASUREMENT = "measurement"
    """Steps were measured (`adaptation.optimise`, `training.memoryFormat`); the agent was not asked."""


class Slice(Record):
    """The end of a slice of a trial."""

    share: float = Field(ge=0, le=1)
    """Share of the remaining budget for which the arm has trained by then."""
    loss: float
    """Mean loss on the validation split."""


class Arm(Record):
    """The result of one action that was tried on an extra worker before the decision."""

    action: str
    """The action, as in the adaptation; `Nothing` for the unchanged model."""
    loss: float | None = None
    """Mean cross entropy on the validation split at the end of the trial; None if it was not finished."""
    steps: int = Field(default=0, ge=0)
    """Optimizer steps of the trial."""
    seconds: float = Field(default=0.0, ge=0)
    """Wall time of the trial, its evaluation included."""
    annealed: bool = False
    """Whether its learning rate fell to 0 within the trial. The rate of an arm of a race continues like the job's."""
    slices: tuple[Slice, ...] = ()
    """Validation losses at the ends of its slices; the last slice ends at `loss`."""
    message: str = ""
    """The reason why it was not finished, or ended early."""


class Adaptation(Record):
    """One consultation of the agent and its result: an entry of `status.adaptations` and of `result.json`."""

    decision_id: str
    """Links it to the advice, the metrics and the history."""
    time: AwareDatetime
    """When it happened."""
    used_seconds: float = Field(ge=0)
    """Budget time at which it happened."""
    trigger: str
    """Reason of the allocation that led to it."""
    generation: int = Field(ge=0)
    """Generation of that allocation."""
    action: str
    """`Deepen(<growth point>)`, `Widen(<group>)`, `Widen(<group>, <width>)`, `Nothing`; `Distill` after GPUs were taken
    back; `Rewrite(<number of rules>)` and `ChannelsLast` for another computation of the same steps."""
    source: AdaptationSource
    policy: str = ""
    """`name@version` of the policy, or the name of the fallback."""
    probabilities: dict[str, float] = Field(default_factory=dict)
    """The policy's probability of each action, by the action's text; empty for a fallback."""
    result: AdaptationResult
    reason: Reason | None = None
    """If a fallback decided, the reason why the agent did not (`AgentUnavailable`, `IllegalAdvice`); after a reclaim,
    the reason for keeping this model."""
    message: str = ""
    """Description of what failed or was left out."""
    depth_before: int
    """Layers before."""
    depth_after: int
    """Layers after."""
    parameters_before: int
    """Trainable parameters before."""
    parameters_after: int
    """Trainable parameters after."""
    width_before: int | None = None
    """Channels of the widened group before; only if a group was widened."""
    width_after: int | None = None
    """Channels of the widened group after."""
    loss_before: float | None = None
    """Loss on one batch of the validation split before; only if the growth is not exact (`insertion: Scaled`). In the
    user's own loop: the loss of the step before."""
    loss_after: float | None = None
    """Loss on the same batch directly after the growth, which shows the jump. In the user's own loop: the loss of the
    first step after."""
    accuracy_before: float | None = None
    """For classification: validation accuracy at the last evaluation before it."""
    accuracy_after: float | None = None
    """For classification: validation accuracy at the end of the epoch after it."""
    score_before: Score | None = None
    """For another task: the score on the validation split at the last evaluation before it."""
    score_after: Score | None = None
    """For another task: that score at the end of the epoch after it."""
    arms: tuple[Arm, ...] = ()
    """The actions that were tried on extra workers before it (`adaptation.trials`)."""
    outside: tuple[str, ...] = ()
    """What of the model and the moment the policy has not learned from; empty if it knows them, or cannot tell."""
    seconds: float = Field(ge=0)
    """Duration of consultation and growth together, wall time; for another computation, of search and checks."""
    step_seconds_before: float | None = None
    """For another computation: forward and backward pass of a step before, the median of the measured pairs."""
    step_seconds_after: float | None = None
    """The same with the other computation."""
    evaluations: int | None = None
    """For rewrites: graphs whose cost was looked up or measured."""
    largest_error: float | None = None
    """For rewrites: the largest relative error of outputs, gradient and buffers in double precision."""

    @property
    def decider(self) -> str:
        """The decider in words: `name@version` of a policy, or the fallback with its name. The name of the fallback
        that does nothing is `None`, which alone reads as nobody.
        """
        if self.source is AdaptationSource.FALLBACK:
            return f"the fallback {self.policy}".rstrip()
        return self.policy or str(self.source)

    @property
    def basis(self) -> str:
        """The basis of a decision on growth, in words; '' for other changes of a model, and where none was made."""
        if self.source not in (AdaptationSource.AGENT, AdaptationSource.FALLBACK):
            return ""
        if self.arms and self.result in (AdaptationResult.GROWN, AdaptationResult.DECLINED):
            return "tried"
        return _BASES.get(self.result, "")

    @property
    def outcome(self) -> str:
        """The result with its basis, as text."""
        return f"{self.result}, tried first" if self.basis == "tried" else str(self.result)

    @property
    def advice_problem(self) -> Reason | None:
        """The reason why a fallback decided in the agent's place; None where none did, though other decisions have
        reasons.
        """
        return self.reason if self.source is AdaptationSource.FALLBACK else None

    @property
    def before(self) -> Score | None:
        """The validation score before it, of any task."""
        return self.score_before or accuracy_score(self.accuracy_before)

    @property
    def after(self) -> Score | None:
        """The validation score after it, of any task."""
        return self.score_after or accuracy_score(self.accuracy_after)

    @property
    def gained(self) -> float | None:
        """Gain of the score after it over the score before it; None where one is not known."""
        if self.before is None or self.after is None:
            return None
        return self.after.ahead_of(self.before)

    @property
    def timed(self) -> str:
        """Durations of a step before and after another computation, as text; '' where none was timed."""
        if self.step_seconds_before is None or self.step_seconds_after is None:
            return ""
        error = "" if self.largest_error is None else f", relative error {self.largest_error:.1e}"
        return f"a step {1000 * self.step_seconds_before:.3g} -> {1000 * self.step_seconds_after:.3g} ms{error}"

    def followed_by(self, score: Score | None) -> Adaptation:
        """Return the adaptation with the score of the first evaluation after it."""
        return self.model_copy(update={"accuracy_after": accuracy_of(score), "score_after": other_than_accuracy(score)})


_BASES: Final = {
    AdaptationResult.GROWN: "followed advice",
    AdaptationResult.DECLINED: "declined",
    AdaptationResult.UNKNOWN: "unknown",
}


class Report(Record):
    """The report file, and the data of the report ConfigMap."""

    job: str
    incarnation: str
    """A new value for every start of the process, which distinguishes a restarted leader from a slow one."""
    attempt: int | None = Field(default=None, ge=0)
    """Number of times that the leader was replaced before; None if the leader does not know."""
    acknowledged_generation: int = Field(default=0, ge=0)
    phase: TrainerPhase = TrainerPhase.STARTING
    reason: Reason | None = None
    """Set in the phases `Completed`, `Stopped` and `Failed`."""
    message: str = ""
    epoch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    used_seconds: float = Field(default=0.0, ge=0)
    """Budget seconds by the trainer's clock, including earlier incarnations."""
    progress_percentage: int = Field(default=0, ge=0, le=100)
    metrics: tuple[Metric, ...] = ()
    depth: int = Field(default=0, ge=0)
    parameters: int = Field(default=0, ge=0)
    cannot_grow: str = ""
    """The reason why the model cannot grow, or not by all operations that the job allows; empty if it can."""
    grows: bool = True
    """Whether the model can grow by any of these operations."""
    consultations: int = Field(default=0, ge=0)
    adaptations: tuple[Adaptation, ...] = ()
    """All adaptations; the status keeps the last 20."""
    measurements: Measurements = Measurements()
    last_checkpoint_time: AwareDatetime | None = None
    updated_time: AwareDatetime
