"""The job: an `AdaptiveTrainingJob` as a person writes it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from espalier_api.base import Strict
from espalier_api.growth import OperationName
from espalier_api.growth.deepen import DEEPEN
from espalier_api.pod_template import DEFAULT_GPU_RESOURCE, PodTemplate
from espalier_api.status import JobStatus

GROUP = "espalier.dev"
API_VERSION = f"{GROUP}/v1alpha1"
KIND = "AdaptiveTrainingJob"
MAX_NAME_LENGTH = 52
"""A job's name plus the suffixes of its pods must fit a label (63)."""

_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_NAME: Final = re.compile(_LABEL.replace("$", r"\Z"))
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_ENTRYPOINT: Final = rf"^[A-Za-z_][A-Za-z0-9_.]*:{_IDENTIFIER}$"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_MAX_PATH: Final = 4096
_YEAR: Final = 31_536_000


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
    """What is done with the agent's advice."""

    AUTO = "Auto"
    DRY_RUN = "DryRun"
    """Ask and record, change nothing."""
    OFF = "Off"
    """Ask nothing. In a file for Kubernetes write it in quotes: a bare `Off` is read as false there."""


class Fallback(StrEnum):
    """What decides when the agent is away or advises something illegal."""

    NONE = "None"
    """Leave the model as it is."""
    RANDOM = "Random"
    HEURISTIC = "Heuristic"
    """Deepen the first growth point, or widen the first group where only that is allowed, while enough budget is
    left."""


class OnReclaim(StrEnum):
    """What becomes of a grown model when GPUs are taken back."""

    KEEP = "Keep"
    """It goes on as it is."""
    DISTILL = "Distill"
    """Where the GPUs left do not carry it, a smaller model learns from it, and the better of the two goes on."""


class Insertion(StrEnum):
    """How an inserted layer is made not to change the function."""

    EXACT = "Exact"
    """Exact in eval and train mode: an identity layer, or a zero-initialised residual branch."""
    IDENTITY_BATCH_NORM = "IdentityBatchNorm"
    """The paper's: convolution + identity batch norm. Exact in eval mode only."""
    CALIBRATED_BATCH_NORM = "CalibratedBatchNorm"
    """Convolution + batch norm calibrated on a batch. Near-exact in train mode on similar batches."""


class ElasticBatch(StrEnum):
    """What becomes of the batch when several workers train together."""

    KEEP_GLOBAL = "keepGlobal"
    """The batch stays as it is and is cut among the workers; the learning rate stays too."""
    SCALE_LINEAR = "scaleLinear"
    """Each worker takes a whole batch, and the learning rate is multiplied by their number (Goyal et al. 2017)."""


class Stragglers(StrEnum):
    """What becomes of a worker that is much slower than those that it trains with."""

    REPORT = "Report"
    """It is said in the job's events; all wait for it."""
    DROP = "Drop"
    """It is left out, for a minute first, twice as long the second time, and the third time for good."""


class Preemption(Strict):
    """How extra GPUs are lent and taken back."""

    notice_seconds: float = Field(default=30, ge=0, le=3600)
    """Budget seconds between the notice of a reclaim and its deadline."""
    cooldown_seconds: float = Field(default=60, ge=0, le=86400)
    """After a change of the allocation, no extra GPUs are lent for this long."""
    min_runtime_seconds: float = Field(default=60, ge=0, le=86400)
    """Extra GPUs are not taken back for the sake of other jobs' extra GPUs for this long after they last changed."""


class AgentRef(Strict):
    """Where the agent answers."""

    url: str = Field(pattern=r"^https?://[^\s/]+(/.*)?$", max_length=2048)
    """`http(s)://host[:port][/path]`."""


class AdaptationSpec(Strict):
    """Whether and how the model grows when extra GPUs come."""

    mode: AdaptationMode = AdaptationMode.AUTO
    actions: tuple[OperationName, ...] = Field(default=(DEEPEN.name,), min_length=1)
    """The kinds of growth that are allowed."""
    max_parameters: int | None = Field(default=None, ge=1, le=10**13)
    """No growth beyond so many trainable parameters. When absent, a job that may widen ends at 16 times those of the
    starting model; one that only deepens is bounded by `maxAdaptations` alone."""
    max_adaptations: int = Field(default=3, ge=0, le=100)
    """Consultations of the agent while the job has extra GPUs, one an epoch (the paper's 3)."""
    agent: AgentRef | None = None
    """Default: the agent service of the installation."""
    decision_timeout_seconds: float = Field(default=5, gt=0, le=300)
    """How long the agent may take to answer; it costs time budget."""
    fallback: Fallback = Fallback.NONE
    on_reclaim: OnReclaim = OnReclaim.KEEP
    insertion: Insertion = Insertion.EXACT


class ModelSpec(Strict):
    """The starting model: a known name, or a function of the user's."""

    name: str | None = Field(default=None, pattern=r"^(digits|cifar8|cnn1|cnn2|torchvision:[a-z0-9_]+)$")
    """`digits`, `cifar8`, `cnn1`, `cnn2` or `torchvision:<name>`."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `options`, returns a `torch.nn.Module`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the constructor."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        return self


class DatasetSpec(Strict):
    """The data: a known name, or a function of the user's."""

    name: Literal["digits", "cifar8", "cifar10", "mnist", "imagefolder"] | None = None
    """A known data set; `imagefolder` is a folder with one folder of images a class."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `path` (when given) and `options`, returns (train, validation, test)."""
    path: str | None = Field(default=None, pattern=r"^[^\x00]+$", max_length=_MAX_PATH)
    """Folder or archive in which the data lie."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        if self.name == "imagefolder" and self.path is None:
            raise ValueError("path is needed for imagefolder: a folder with one folder of images a class")
        return self


class OptimizerSpec(Strict):
    """The optimizer, by its torch name."""

    name: Literal["Adam", "AdamW", "SGD", "RMSprop"] = "Adam"
    """A class of `torch.optim`."""
    learning_rate: float = Field(default=0.01, gt=0, le=100)
    """The initial rate; `schedule` says how it goes on."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD and RMSprop only."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """As the optimizer's `weight_decay`."""


class ScheduleSpec(Strict):
    """The learning rate over the budget."""

    name: str = Field(
        default="BudgetLinear", pattern=r"^(BudgetLinear|Exponential|Constant|torch:[A-Za-z][A-Za-z0-9_]*)$"
    )
    """`BudgetLinear`: linearly to 0 at the deadline. `Exponential`: ×`decay` an epoch. `Constant`.
    `torch:<Name>`: a scheduler of `torch.optim.lr_scheduler`, stepped once an epoch with `options`."""
    restart_on_growth: bool = True
    """After growth, begin again from the initial rate."""
    decay: float = Field(default=0.9, gt=0, le=1)
    """Factor an epoch of `Exponential`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a `torch:` scheduler."""


class TrainingSpec(Strict):
    """Read by the ready trainer; a user's own image may ignore it."""

    model: ModelSpec = ModelSpec(name="digits")
    dataset: DatasetSpec = DatasetSpec(name="digits")
    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Samples a step, of all workers together; with `elasticBatch: scaleLinear` of each."""
    elastic_batch: ElasticBatch | None = None
    """`keepGlobal` or `scaleLinear`: all workers train together, and join and leave a running job. When absent, extra
    workers hold their GPUs and do not train."""
    sync_batch_norm: bool | None = None
    """True: batch norms take their statistics over the examples of all workers, not of each alone; costs messages."""
    stragglers: Stragglers | None = None
    """With elasticBatch: `Report` (also when absent) or `Drop` an extra or base worker five times slower than the
    others for twenty steps. A dropped one may come again after a minute; the third time it stays out."""
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    evaluate_every_epochs: int = Field(default=1, ge=1, le=1_000_000)
    """Epochs between two evaluations on the validation split; where epochs last milliseconds, evaluating after
    each would eat the budget."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the initial weights and the order of samples."""


class CheckpointSpec(Strict):
    """Where and how often the trainer checkpoints."""

    path: str = Field(default="/checkpoints", min_length=1, pattern=r"^[^:\x00]*$", max_length=_MAX_PATH)
    """Folder of the checkpoints; on Kubernetes a volume is mounted there unless the template mounts one."""
    interval_seconds: float = Field(default=60, gt=0, le=86400)
    """Seconds between two checkpoints."""


class JobSpec(Strict):
    """`spec` of an `AdaptiveTrainingJob`."""

    time_budget_seconds: float = Field(gt=0, le=_YEAR)
    """Seconds in which the job holds its base GPUs with its leader running, adaptation included."""
    gpu_seconds_budget: float | None = Field(default=None, gt=0, le=1e15)
    """GPU-seconds, base and extra together."""
    min_replicas: int = Field(default=1, ge=1, le=10_000)
    """Base workers: guaranteed while the job runs."""
    max_replicas: int = Field(default=1, ge=1, le=10_000, validate_default=True)
    """Base and extra workers; at least minReplicas."""
    queue: Name = "default"
    """The queue it waits in."""
    priority_class_name: str | None = Field(default=None, pattern=_SUBDOMAIN, max_length=253)
    """PriorityClass of the base workers' pods."""
    priority: int = Field(default=0, ge=-2_147_483_648, le=1_000_000_000)
    """Higher goes first, and weighs more where extra GPUs are shared. On Kubernetes the value of priorityClassName wins
    over it."""
    suspend: bool = False
    """True: give all GPUs back after a checkpoint, or do not begin; false again: go on from the checkpoint."""
    pre_running_deadline_seconds: float | None = Field(default=None, gt=0, le=_YEAR)
    """From admission to the start of training."""
    backoff_limit: int = Field(default=3, ge=0, le=1000)
    """Failures of workers after which the job fails; preemptions do not count."""
    max_preemptions: int | None = Field(default=None, ge=0, le=1_000_000)
    """How often GPUs may be taken by force, or workers ended from outside, before the job fails; default: no limit."""
    ttl_seconds_after_finished: float | None = Field(default=None, ge=0, le=100 * _YEAR)
    """The job is deleted so long after its end; default: never."""
    preemption: Preemption = Preemption()
    adaptation: AdaptationSpec = AdaptationSpec()
    training: TrainingSpec = TrainingSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    template: PodTemplate | None = None
    """An ordinary pod template; default: the ready trainer image with one GPU."""

    @field_validator("max_replicas")
    @classmethod
    def _replicas_in_order(cls, value: int, info: ValidationInfo) -> int:
        # A field's validator, not the model's: it speaks up beside the problems of other fields.
        least = info.data.get("min_replicas", 1)
        if value < least:
            raise ValueError(f"is {value}, less than minReplicas; must be at least {least}")
        return value

    def gpus_per_worker(self, resource: str = DEFAULT_GPU_RESOURCE) -> int:
        """Return the GPUs of one worker: the sum of the template's limits of `resource`, 1 without a template.

        Raises `ValueError` when a limit is not a whole number, which Kubernetes would refuse too.
        """
        return 1 if self.template is None else self.template.gpus(resource)


class ObjectMeta(Strict):
    """The part of metav1 ObjectMeta that we read."""

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
