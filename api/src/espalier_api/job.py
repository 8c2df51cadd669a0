"""The job: an `AdaptiveTrainingJob` as users write it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from espalier_api.base import YEAR_SECONDS, Strict
from espalier_api.datasets import DatasetName
from espalier_api.growth import OperationName
from espalier_api.growth.deepen import DEEPEN
from espalier_api.pod_template import DEFAULT_GPU_RESOURCE, PodTemplate
from espalier_api.program import ProgramSpec
from espalier_api.status import JobStatus
from espalier_api.task import Task

GROUP = "espalier.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
DEFAULT_CONTROLLER = f"{GROUP}/operator"
"""`controllerName` of an operator and of a job that do not set it."""
KIND = "AdaptiveTrainingJob"
PLURAL = "adaptivetrainingjobs"
MAX_NAME_LENGTH = 52
"""The name of a job plus the suffixes of its pods must fit into a label (63)."""

_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_NAME: Final = re.compile(_LABEL.replace("$", r"\Z"))
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_ENTRYPOINT: Final = rf"^[A-Za-z_][A-Za-z0-9_.]*:{_IDENTIFIER}$"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_DOMAIN_PREFIXED: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_MAX_PATH: Final = 4096


def _dns_label(value: str) -> str:
    if len(value) > MAX_NAME_LENGTH:
        raise ValueError(f"has {len(value)} characters; at most {MAX_NAME_LENGTH} are allowed")
    if not _NAME.match(value):
        raise ValueError("must be lower-case letters, digits and '-', beginning and ending with a letter or digit")
    return value


def _service_name(value: str) -> str:
    if value[:1].isdecimal() and _dns_label(value):
        raise ValueError(f"begins with {value[0]!r}; must begin with a letter, as it is the name of a Service too")
    return _dns_label(value)


Name = Annotated[
    str,
    AfterValidator(_dns_label),
    Field(json_schema_extra={"maxLength": MAX_NAME_LENGTH, "pattern": _LABEL}),
]
JobName = Annotated[str, AfterValidator(_service_name)]


class AdaptationMode(StrEnum):
    """How the agent's advice is used."""

    AUTO = "Auto"
    DRY_RUN = "DryRun"
    """Ask the agent and record its advice, but do not change the model."""
    OFF = "Off"
    """Do not ask the agent. In a file for Kubernetes, write it in quotes, because YAML reads a bare `Off` as false."""


class Fallback(StrEnum):
    """What decides if the agent does not answer or its advice is illegal."""

    NONE = "None"
    """Do not change the model."""
    RANDOM = "Random"
    HEURISTIC = "Heuristic"
    """Deepen at the first growth point whose layers mix places (a kernel above 1, recurrence, attention), else at the
    first, while enough budget is left; without growth points that are allowed, the first group or run."""


class OnReclaim(StrEnum):
    """What happens to a grown model when GPUs are taken back."""

    KEEP = "Keep"
    """It stays as it is."""
    DISTILL = "Distill"
    """If the remaining GPUs are too few for it, a smaller model learns from it, and the better of the two is kept."""


class Insertion(StrEnum):
    """How an inserted layer preserves the function of the model."""

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
    outputs do not change; over the next 15 % of the budget they unfold to what `Scaled` makes at once. The agent is not
    asked again before that. A single layer is inserted as with `Exact`."""

    @property
    def normed(self) -> bool:
        """Whether a layer gets a batch norm where its place has one."""
        return self in (Insertion.IDENTITY_BATCH_NORM, Insertion.CALIBRATED_BATCH_NORM)


class Trials(StrEnum):
    """Whether a growth is tried on extra GPUs before it is carried out."""

    OFF = "Off"
    """The advice decides. In a file for Kubernetes, write it in quotes, because YAML reads a bare `Off` as false."""
    CONFIRM = "Confirm"
    """Extra workers train a copy of the model that has grown as advised, and one that has not, for a tenth of the
    remaining budget each; the model grows if that, and what the policy expects, speaks for it. Where nothing is
    advised, the growth is tried that the policy thinks best. Meanwhile the base trains on."""
    RACE = "Race"
    """Each extra worker trains a copy for six tenths of the remaining budget, grown by another one of the best actions
    or not at all, and training continues with the best copy. After a fifth, four growths go on, after two fifths two;
    the other workers train with the base again. One extra worker races the best growth against a base of one worker;
    against a larger one it tries as `Confirm` does."""


class ElasticBatch(StrEnum):
    """How the batch is divided when several workers train together."""

    KEEP_GLOBAL = "keepGlobal"
    """The batch is split among the workers; batch size and learning rate do not change."""
    SCALE_LINEAR = "scaleLinear"
    """Each worker takes a whole batch; the learning rate is multiplied by the number of workers (Goyal et al. 2017)."""


class Precision(StrEnum):
    """The numbers in which outputs and gradients are computed. Weights and the optimizer's state are float32."""

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    """Matrix products in bfloat16 (torch's autocast): half the memory of activations, and faster where the hardware
    has it."""


class BatchSizing(StrEnum):
    """What decides on the batch size."""

    FIXED = "Fixed"
    """The author: it is `batchSize`."""
    GOODPUT = "Goodput"
    """The trainer: `batchSize` or a multiple of it, whatever makes the most progress a second by measured speeds and
    gradient noise (Pollux, OSDI 2021). The learning rate follows it (AdaScale)."""


class Stragglers(StrEnum):
    """What happens to a worker that is much slower than the others."""

    REPORT = "Report"
    """The job's events report it; the others wait for it."""
    DROP = "Drop"
    """It is excluded for a minute, then for two minutes, and the third time for good."""


class BasePreemption(StrEnum):
    """Whether base GPUs may be taken from a job that runs."""

    NEVER = "Never"
    """It keeps them to its end."""
    CHECKPOINT = "Checkpoint"
    """It saves a checkpoint, waits, and resumes later: where its queue has borrowed them and their owner needs them, or
    where the scheduling policy preempts and serves another job first."""


class Preemption(Strict):
    """How extra GPUs are lent and taken back, and whether base GPUs are."""

    base: BasePreemption = BasePreemption.NEVER
    """Whether its base GPUs may be taken back while it runs: those that its queue has borrowed, and any by a scheduling
    policy that preempts."""
    notice_seconds: float = Field(default=30, ge=0, le=3600)
    """Budget seconds between the notice of a reclaim and its deadline."""
    cooldown_seconds: float = Field(default=60, ge=0, le=86400)
    """After a change of its extra GPUs, the job is lent none for this long."""
    min_runtime_seconds: float = Field(default=60, ge=0, le=86400)
    """After a change of its extra GPUs, none are taken for other jobs' extra GPUs for this long. After it starts, or
    starts again, its base GPUs are not taken back for this long."""


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
    insertion: Insertion = Insertion.EXACT
    trials: Trials = Trials.OFF
    """Needs `training.elasticBatch`."""


class ModelSpec(Strict):
    """The starting model: a known name, or your own function."""

    name: str | None = Field(default=None, pattern=r"^(digits|cifar8|cnn1|cnn2|gpt|mlp|torchvision:[a-z0-9_]+)$")
    """`digits`, `cifar8`, `cnn1`, `cnn2`, `gpt` (a language model), `mlp` (for rows of numbers) or
    `torchvision:<name>`."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `options`; returns a `torch.nn.Module`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the constructor."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        return self


class DatasetSpec(Strict):
    """The data: a known name, or your own function."""

    name: DatasetName | None = None
    """A known data set; `imagefolder` is a folder with one folder of images per class."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `path` (if set) and `options`; returns (train, validation, test)."""
    path: str | None = Field(default=None, pattern=r"^[^\x00]+$", max_length=_MAX_PATH)
    """Folder or archive that contains the data."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        if self.name == "imagefolder" and self.path is None:
            raise ValueError("path is needed for imagefolder: a folder with one folder of images per class")
        if self.name == "text" and self.path is None:
            raise ValueError("path is needed for text: a file or a folder of files in UTF-8")
        return self


class OptimizerSpec(Strict):
    """The optimizer, by its torch name."""

    name: Literal["Adam", "AdamW", "SGD", "RMSprop"] = "Adam"
    """A class of `torch.optim`."""
    learning_rate: float = Field(default=0.01, gt=0, le=100)
    """The initial rate; `schedule` changes it over time."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD and RMSprop only."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """`weight_decay` of the optimizer."""
    decay_matrices_only: bool = False
    """Apply `weightDecay` to matrices and kernels alone, not to biases, norms and other vectors."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], ...] | None = Field(default=None, min_length=2, max_length=2)
    """Adam and AdamW only: decay of the first and of the second moment. Default: torch's, 0.9 and 0.999."""
    max_gradient_norm: float | None = Field(default=None, gt=0, le=1e9)
    """Gradients whose norm, over all parameters, is larger are scaled to it. If absent, they are not."""

    @model_validator(mode="after")
    def _known_to_it(self) -> Self:
        if self.betas is not None and self.name not in ("Adam", "AdamW"):
            raise ValueError(f"has betas, which {self.name} does not know; use Adam or AdamW, or remove them")
        return self


class ScheduleSpec(Strict):
    """The learning rate over the budget."""

    name: str = Field(
        default="BudgetLinear", pattern=r"^(BudgetLinear|Exponential|Constant|torch:[A-Za-z][A-Za-z0-9_]*)$"
    )
    """`BudgetLinear`: linearly to 0 at the deadline. `Exponential`: ×`decay` per epoch. `Constant`.
    `torch:<Name>`: a scheduler of `torch.optim.lr_scheduler`, created with `options` and stepped once per epoch."""
    restart_on_growth: bool = True
    """After growth, restart from the initial rate."""
    decay: float = Field(default=0.9, gt=0, le=1)
    """Factor per epoch of `Exponential`."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of the time budget in which the rate rises from 0 at first, and after a restart."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a `torch:` scheduler."""


_TWO_RULES: Final = "cannot be scaleLinear with batch: Goodput, which chooses the size for all workers; use keepGlobal"


class TrainingSpec(Strict):
    """Settings of the ready trainer; your own image may ignore them."""

    task: Task = Task.CLASSIFICATION
    """What the model learns; must be that of the data set."""
    model: ModelSpec = ModelSpec(name="digits")
    dataset: DatasetSpec = DatasetSpec(name="digits")
    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Samples per step, of all workers together; with `elasticBatch: scaleLinear`, of each worker."""
    batch: BatchSizing = BatchSizing.FIXED
    """`Goodput`: the trainer chooses the batch size, `batchSize` times a whole number, up to `maxBatchSize`. With
    `elasticBatch`, it must be `keepGlobal`: the chosen batch is that of all workers together."""
    max_batch_size: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """With `batch: Goodput`, which needs it: the largest batch of all workers together that the author trusts."""
    max_batch_size_per_worker: int | None = Field(default=None, ge=1, le=1_000_000)
    """With `batch: Goodput`: examples that one worker computes at once. Of more, it accumulates the gradients in
    several passes. If absent, its memory is the limit: a size at which it runs out is not tried again."""
    accumulation: int = Field(default=1, ge=1, le=100_000)
    """Parts in which each worker computes its share of a batch, one after the other; their gradients add up. The steps
    stay the same, and need less memory. With `batch: Goodput`, set `maxBatchSizePerWorker` instead."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of blocks (members of a `ModuleList`) for the backward pass and compute the rest again: less
    memory, steps about a third longer. Blocks with batch norms are left as they are."""
    precision: Precision = Precision.FLOAT32
    weight_averaging: float = Field(default=0.0, ge=0, lt=1)
    """Decay per step of an exponential moving average of the weights, 0.999 say, which is evaluated in place of the
    weights. 0: none."""
    elastic_batch: ElasticBatch | None = None
    """`keepGlobal` or `scaleLinear`: all workers train together, and join and leave a running job. If absent, extra
    workers hold their GPUs and do not train."""
    sync_batch_norm: bool | None = None
    """True: batch norms compute their statistics over the examples of all workers, at the cost of extra messages."""
    stragglers: Stragglers | None = None
    """With elasticBatch: `Report` (also if absent) or `Drop` an extra or base worker that is five times slower than the
    others for twenty steps. A dropped worker may join again after a minute; the third time it stays out."""
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    evaluate_every_epochs: int = Field(default=1, ge=1, le=1_000_000)
    """Epochs between two evaluations on the validation split. If epochs last milliseconds, evaluating after each would
    use up the budget."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the initial weights and the order of samples."""

    @field_validator("max_batch_size")
    @classmethod
    def _sizes_in_order(cls, value: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("batch_size", 1)
        if value is not None and value < least:
            raise ValueError(f"is {value}, less than batchSize; must be at least {least}")
        return value

    @field_validator("elastic_batch")
    @classmethod
    def _one_rule_of_scaling(cls, value: ElasticBatch | None, info: ValidationInfo) -> ElasticBatch | None:
        if value is ElasticBatch.SCALE_LINEAR and info.data.get("batch") is BatchSizing.GOODPUT:
            raise ValueError(_TWO_RULES)
        return value

    @field_validator("accumulation")
    @classmethod
    def _passes_of_one(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("batch") is BatchSizing.GOODPUT:
            raise ValueError(f"is {value} with batch: Goodput, which chooses the parts; set maxBatchSizePerWorker")
        return value

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.batch is BatchSizing.GOODPUT and self.max_batch_size is None:
            raise ValueError("needs maxBatchSize, the largest batch size that batch: Goodput may choose")
        return self


class CheckpointSpec(Strict):
    """Where and how often the trainer saves checkpoints."""

    path: str = Field(default="/checkpoints", min_length=1, pattern=r"^[^:\x00]*$", max_length=_MAX_PATH)
    """Folder of the checkpoints. On Kubernetes, a volume is mounted there unless the template mounts one."""
    interval_seconds: float = Field(default=60, gt=0, le=86400)
    """Seconds between two checkpoints."""


class JobSpec(Strict):
    """`spec` of an `AdaptiveTrainingJob`."""

    time_budget_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    """Seconds of training: the time in which the job holds its base GPUs and its leader runs, adaptation included."""
    gpu_seconds_budget: float | None = Field(default=None, gt=0, le=1e15)
    """Maximum of GPU-seconds, base and extra together."""
    min_replicas: int = Field(default=1, ge=1, le=10_000)
    """Number of base workers, which are guaranteed while the job runs."""
    max_replicas: int = Field(default=1, ge=1, le=10_000, validate_default=True)
    """Maximum number of base and extra workers together; at least minReplicas."""
    controller_name: str = Field(default=DEFAULT_CONTROLLER, pattern=_DOMAIN_PREFIXED, max_length=253)
    """The Espalier that runs the job, if a cluster has several: its operator's `--controller-name`. Others ignore the
    job. Immutable."""
    queue: Name = "default"
    """The queue of the job, whose quotas limit when it is admitted. A cluster without any `Queue` has no limits."""
    priority_class_name: str | None = Field(default=None, pattern=_SUBDOMAIN, max_length=253)
    """PriorityClass of the base workers' pods."""
    priority: int = Field(default=0, ge=-2_147_483_648, le=1_000_000_000)
    """Jobs with a higher priority go first and get a larger share of extra GPUs. On Kubernetes, the value of
    priorityClassName takes precedence."""
    suspend: bool = False
    """True: save a checkpoint and give all GPUs back, or do not start. False again: resume from the checkpoint."""
    pre_running_deadline_seconds: float | None = Field(default=None, gt=0, le=YEAR_SECONDS)
    """Maximum seconds from admission to the start of training."""
    backoff_limit: int = Field(default=3, ge=0, le=1000)
    """Number of worker failures after which the job fails. Preemptions do not count."""
    max_preemptions: int | None = Field(default=None, ge=0, le=1_000_000)
    """How often GPUs may be taken by force, or workers ended from outside, before the job fails. Default: no limit."""
    ttl_seconds_after_finished: float | None = Field(default=None, ge=0, le=100 * YEAR_SECONDS)
    """Seconds after its end until the job is deleted. Default: never."""
    preemption: Preemption = Preemption()
    adaptation: AdaptationSpec = AdaptationSpec()
    training: TrainingSpec = TrainingSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    template: PodTemplate | None = None
    """A pod template. Default: the ready trainer image with one GPU."""
    program: ProgramSpec | None = None
    """Set it, if only to `{}`, for a command that does not use Espalier's library. It needs a template, and as many
    replicas at most as at least; `training` and `adaptation` do not apply."""

    @field_validator("max_replicas")
    @classmethod
    def _replicas_in_order(cls, value: int, info: ValidationInfo) -> int:
        # A validator of the field, not the model, so that its problem is reported together with those of other fields.
        least = info.data.get("min_replicas", 1)
        if value < least:
            raise ValueError(f"is {value}, less than minReplicas; must be at least {least}")
        return value

    @model_validator(mode="after")
    def _teaches_labels(self) -> Self:
        if self.adaptation.on_reclaim is OnReclaim.DISTILL:
            if self.training.task is not Task.CLASSIFICATION:
                raise ValueError(
                    f"has adaptation.onReclaim Distill and training.task {self.training.task}; a smaller model learns "
                    "from logits of classes, so use Keep"
                )
            if self.training.weight_averaging:
                raise ValueError(
                    "has adaptation.onReclaim Distill and training.weightAveraging; the two models are compared by "
                    "their weights, so use Keep, or remove weightAveraging"
                )
        return self

    @model_validator(mode="after")
    def _program_stands_alone(self) -> Self:
        if self.program is None:
            return self
        container = None if self.template is None else self.template.spec.containers[0]
        if container is None or not (container.command or container.image):
            raise ValueError("has a program and no template with its command or image; add spec.template")
        if self.max_replicas != self.min_replicas:
            raise ValueError(
                f"has a program, maxReplicas {self.max_replicas} and minReplicas {self.min_replicas}; nobody can tell "
                "a program of extra workers, so let both be equal"
            )
        if self.training != TrainingSpec():
            raise ValueError("has a program and training, which is for Espalier's trainer; remove one of them")
        if self.adaptation.model_copy(update={"mode": AdaptationMode.AUTO}) != AdaptationSpec():
            raise ValueError("has a program and adaptation, which needs Espalier's trainer; remove one of them")
        return self

    @model_validator(mode="after")
    def _trials_have_workers(self) -> Self:
        trials = self.adaptation.trials
        if trials is not Trials.OFF and self.adaptation.insertion is Insertion.UNFOLD:
            raise ValueError(
                f"has adaptation.trials {trials} and adaptation.insertion Unfold; a trial ends before a run has "
                "unfolded, so set trials to Off, or insertion to Exact or Scaled"
            )
        if trials is not Trials.OFF and self.training.elastic_batch is None:
            raise ValueError(
                f"has adaptation.trials {trials} and no training.elasticBatch, without which extra workers take no "
                "part; set it to keepGlobal, or trials to Off"
            )
        return self

    def gpus_per_worker(self, resource: str = DEFAULT_GPU_RESOURCE) -> int:
        """Return the GPUs of one worker: the sum of the template's limits of `resource`; 1 without a template.

        Raise `ValueError` if a limit is not a whole number, which Kubernetes rejects too.
        """
        return 1 if self.template is None else self.template.gpus(resource)


class ObjectMeta(Strict):
    """The part of metav1 ObjectMeta that Espalier reads."""

    model_config = ConfigDict(extra="allow")
    name: JobName
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class AdaptiveTrainingJob(Strict):
    """One job."""

    api_version: Literal["espalier.dev/v1alpha1"]
    kind: Literal["AdaptiveTrainingJob"]
    metadata: ObjectMeta
    spec: JobSpec
    status: JobStatus | None = None

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
