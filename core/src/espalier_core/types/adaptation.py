"""`spec.adaptation`: whether and how a job's model grows."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from espalier_core.base import Strict
from espalier_core.growth import OperationName
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.task import Task


class AdaptationMode(StrEnum):
    """The use of the agent's advice."""

    AUTO = "Auto"
    DRY_RUN = "DryRun"
    """Ask the agent and record its advice, but do not change the model."""
    OFF = "Off"
    """Do not ask the agent. In a file for Kubernetes, write it in quotes, because YAML reads a bare `Off` as false."""


class Fallback(StrEnum):
    """The decision if the agent does not answer or its advice is illegal."""

    NONE = "None"
    """Do not change the model."""
    RANDOM = "Random"
    HEURISTIC = "Heuristic"
    """Deepen at the first growth point whose layers mix places (a kernel above 1, recurrence, attention), else at the
    first, while enough budget is left; without growth points that are allowed, the first group or run."""


class OnReclaim(StrEnum):
    """The rule for a grown model when GPUs are taken back."""

    KEEP = "Keep"
    """It stays as it is."""
    DISTILL = "Distill"
    """If the remaining GPUs are too few for it, a smaller model learns from it, and the better of the two is kept."""


class Insertion(StrEnum):
    """The method by which an inserted layer preserves the function of the model."""

    EXACT = "Exact"
    """Exact in eval and train mode: an identity layer, or a zero-initialised residual branch."""
    IDENTITY_BATCH_NORM = "IdentityBatchNorm"
    """The paper's insertion: convolution + identity batch norm. Exact in eval mode only."""
    CALIBRATED_BATCH_NORM = "CalibratedBatchNorm"
    """Convolution + batch norm calibrated on a batch. Near-exact in train mode on similar batches."""
    SCALED = "Scaled"
    """For `AddBlock`: the whole run of blocks is copied, and the last projections of all its blocks are halved. Not
    exact: the loss jumps and recovers. A single layer is inserted as with `Exact`."""
    UNFOLD = "Unfold"
    """For `AddBlock`: the whole run of blocks is copied. At first both copies read the same and each adds half, so the
    outputs do not change; over the next 15 % of the budget they unfold to what `Scaled` makes at once. Until then the
    agent is only asked about other runs. A single layer is inserted as with `Exact`."""

    @property
    def normed(self) -> bool:
        """Whether a layer gets a batch norm where its place has one."""
        return self in (Insertion.IDENTITY_BATCH_NORM, Insertion.CALIBRATED_BATCH_NORM)

    @property
    def whole(self) -> bool:
        """Whether a whole run of blocks is copied."""
        return self in (Insertion.SCALED, Insertion.UNFOLD)


class Trials(StrEnum):
    """Whether a growth is tried on extra GPUs before it is carried out."""

    OFF = "Off"
    """The advice decides. In a file for Kubernetes, write it in quotes, because YAML reads a bare `Off` as false."""
    CONFIRM = "Confirm"
    """Extra workers train a copy of the model that has grown as advised, and one that has not, for a tenth of the
    remaining budget each. The model grows if this result, together with the policy's expectation, favours it. If the
    advice is not to grow, they try the growth that the policy ranks highest. Meanwhile the base continues to train."""
    RACE = "Race"
    """Each extra worker trains a copy for six tenths of the remaining budget, each grown by another one of the best
    actions, or not grown. Training continues with the best copy. After a fifth, four growths remain, after two fifths
    two; the other workers train with the base again. A single extra worker races the best growth against a base of one
    worker; with a larger base, it works as `Confirm`."""
    AUTO = "Auto"
    """`Confirm` or `Race`, on as many workers as is worth most, exactly when finding out is worth its cost: by what the
    policy expects and how sure it is, by what a trial shows, and by the time of the lent workers. Otherwise the advice
    decides. Where the policy has not learned from such a model and nothing is tried, the model stays as it is, with the
    result `Unknown`."""


class Optimise(StrEnum):
    """Whether the ready trainer looks for a faster way to compute the same steps."""

    OFF = "Off"
    """Steps are computed as the model's code says. In a file for Kubernetes, write it in quotes, because YAML reads a
    bare `Off` as false."""
    REWRITES = "Rewrites"
    """After the first epoch, and after the first one of each growth, the trainer searches for rules that rewrite the
    computation of the model. Weights, gradients and results stay the same but for rounding. They are kept if they are
    exact in double precision and measured to be faster in pairs of steps."""


class AgentRef(Strict):
    """The agent of the job."""

    url: str = Field(pattern=r"^https?://[^\s/]+(/.*)?$", max_length=2048)
    """`http(s)://host[:port][/path]`."""


class AdaptationSpec(Strict):
    """Whether and how the model grows while the job has extra GPUs."""

    mode: AdaptationMode = AdaptationMode.AUTO
    actions: tuple[OperationName, ...] = Field(default=(DEEPEN.name,), min_length=1)
    """The kinds of growth that are allowed."""
    max_parameters: int | None = Field(default=None, ge=1, le=10**13)
    """Maximum number of trainable parameters after growth. If absent, the limit of a job that may widen is 16 times the
    parameters of the starting model; a job that only deepens is limited by `maxAdaptations` alone."""
    max_adaptations: int = Field(default=3, ge=0, le=100)
    """Maximum number of consultations of the agent, one per epoch while the job has extra GPUs (3 in the paper). If the
    agent does not answer and the fallback advises nothing, it does not count."""
    agent: AgentRef | None = None
    """Default: the agent of the installation."""
    decision_timeout_seconds: float = Field(default=5, gt=0, le=300)
    """Seconds that the agent may take to answer. They count towards the time budget."""
    fallback: Fallback = Fallback.NONE
    on_reclaim: OnReclaim = OnReclaim.KEEP
    insertion: Insertion | None = None
    """If absent, the advice says how whole blocks are inserted in a language model, and they unfold where it does not;
    in other models, and for single layers, it is `Exact`."""
    trials: Trials = Trials.AUTO
    """`Confirm` and `Race` need `training.elasticBatch`; without it, `Auto` tries nothing."""
    optimise: Optimise = Optimise.OFF
    """The ready trainer only; not with `training.syncBatchNorm`, `gradientCheckpointing` or `precision: BFloat16`."""
    optimise_min_gain: float = Field(default=0.03, ge=0, le=10)
    """Minimum gain in speed (seconds of a step before / after, minus 1) for keeping a rewritten computation (or
    `training.memoryFormat: Auto`)."""
    optimise_share: float = Field(default=0.01, gt=0, le=0.5)
    """Maximum share of the remaining time that the search for faster computations may cost, all attempts together. If
    that is too little for a measurement, nothing is tried."""

    @property
    def described_insertion(self) -> Insertion:
        """The insertion for which a model is described."""
        return self.insertion or Insertion.EXACT

    def insertions(self, task: Task) -> tuple[Insertion, ...]:
        """Return the ways in which whole blocks may be inserted, the best without advice first."""
        if self.insertion is not None:
            return (self.insertion,)
        if task is not Task.LANGUAGE_MODEL:
            return (Insertion.EXACT,)
        # A trial that confirms ends before a run has unfolded.
        unfold = (Insertion.UNFOLD,) if self.trials is not Trials.CONFIRM else ()
        return (*unfold, Insertion.EXACT, Insertion.SCALED)

    def agent_url(self, default: str | None) -> str | None:
        """Return the URL of the job's agent, its own or the installation's `default`; None where the job asks none."""
        if self.mode is AdaptationMode.OFF:
            return None
        return self.agent.url if self.agent is not None else default or None
