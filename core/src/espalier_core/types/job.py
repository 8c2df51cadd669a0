"""The job: an `AdaptiveTrainingJob` as users write it, and the allocation document that follows from its status.

On Kubernetes, the operator writes that document to the pods' annotation `espalier.dev/allocation` (seen through the
downward API); a trainer that watches its own job makes the same document from what it sees.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from espalier_core.base import DNS_LABEL, MAX_PATH, YEAR_SECONDS, Strict
from espalier_core.types.adaptation import (
    AdaptationMode,
    AdaptationSpec,
    AgentRef,
    Fallback,
    Insertion,
    OnReclaim,
    Optimise,
    Trials,
)
from espalier_core.types.allocation import AllocationDocument, TimeBudget
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE, PodTemplate
from espalier_core.types.program import ProgramSpec
from espalier_core.types.status import JobStatus
from espalier_core.types.task import Task
from espalier_core.types.training import (
    BatchSizing,
    DatasetSpec,
    ElasticBatch,
    MemoryFormat,
    ModelSpec,
    OptimizerSpec,
    Precision,
    ScheduleSpec,
    Stragglers,
    TrainingSpec,
)

# All models of a job can be imported from here.
__all__ = [
    "ALLOCATION_ANNOTATION",
    "API_VERSION",
    "DEFAULT_CONTROLLER",
    "GROUP",
    "JOB_ANNOTATION",
    "KIND",
    "MAX_NAME_LENGTH",
    "PLURAL",
    "REPORT_KEY",
    "VERSION",
    "AdaptationMode",
    "AdaptationSpec",
    "AdaptiveTrainingJob",
    "AgentRef",
    "BasePreemption",
    "BatchSizing",
    "CheckpointSpec",
    "DatasetSpec",
    "ElasticBatch",
    "Fallback",
    "Insertion",
    "JobName",
    "JobSpec",
    "MemoryFormat",
    "ModelSpec",
    "Name",
    "ObjectMeta",
    "OnReclaim",
    "Optimise",
    "OptimizerSpec",
    "Precision",
    "Preemption",
    "ScheduleSpec",
    "Stragglers",
    "TrainingSpec",
    "Trials",
    "allocation_document",
]

GROUP = "espalier.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
DEFAULT_CONTROLLER = f"{GROUP}/operator"
"""`controllerName` of an operator or a job that does not set it."""
KIND = "AdaptiveTrainingJob"
PLURAL = "adaptivetrainingjobs"
MAX_NAME_LENGTH = 52
"""Maximum length of a job's name: with the suffixes of its pods, it must fit into a label (63)."""

_NAME: Final = re.compile(DNS_LABEL.replace("$", r"\Z"))
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_DOMAIN_PREFIXED: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
ALLOCATION_ANNOTATION: Final = f"{GROUP}/allocation"
"""The allocation document, in the pods of the job."""
JOB_ANNOTATION: Final = f"{GROUP}/job"
"""The job as JSON, without its status: the trainer's job file."""
REPORT_KEY: Final = "report.json"
"""The key of the report ConfigMap."""


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
    Field(json_schema_extra={"maxLength": MAX_NAME_LENGTH, "pattern": DNS_LABEL}),
]
JobName = Annotated[str, AfterValidator(_service_name)]


class BasePreemption(StrEnum):
    """Permission to take base GPUs from a job that runs."""

    NEVER = "Never"
    """The job keeps them to its end."""
    CHECKPOINT = "Checkpoint"
    """The job saves a checkpoint, waits, and resumes later: where its queue has borrowed them and their owner needs
    them, or where the scheduling policy preempts and serves another job first."""


class Preemption(Strict):
    """Rules for lending and taking back extra GPUs, and for taking base GPUs."""

    base: BasePreemption = BasePreemption.NEVER
    """Whether its base GPUs may be taken back while it runs: those that its queue borrowed, or any if the scheduling
    policy preempts."""
    notice_seconds: float = Field(default=30, ge=0, le=3600)
    """Budget seconds between the notice of a reclaim and its deadline."""
    cooldown_seconds: float = Field(default=60, ge=0, le=86400)
    """After a change of its extra GPUs, the job is lent none for this long."""
    min_runtime_seconds: float = Field(default=60, ge=0, le=86400)
    """After a change of its extra GPUs, none are taken for other jobs' extra GPUs for this long. After it starts, or
    starts again, its base GPUs are not taken back for this long."""


class CheckpointSpec(Strict):
    """Place and interval of the trainer's checkpoints."""

    path: str = Field(default="/checkpoints", min_length=1, pattern=r"^[^:\x00]*$", max_length=MAX_PATH)
    """Folder of the checkpoints. On Kubernetes, a volume is mounted there unless the template mounts one."""
    interval_seconds: float = Field(default=60, gt=0, le=86400)
    """Seconds between two checkpoints."""


class JobSpec(Strict):
    """`spec` of an `AdaptiveTrainingJob`."""

    time_budget_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    """Seconds of training: the time in which the job holds its base GPUs and its leader runs, adaptation included."""
    gpu_seconds_budget: float | None = Field(default=None, gt=0, le=1e15)
    """Maximum of GPU-seconds, base and extra together. Default: no limit."""
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
    """PriorityClass of the base workers' pods. If absent: that of the template, or else the cluster's default.
    `espalier run` ignores it."""
    priority: int = Field(default=0, ge=-2_147_483_648, le=1_000_000_000)
    """Jobs with a higher priority go first and get a larger share of extra GPUs. On Kubernetes, the value of
    priorityClassName takes precedence."""
    suspend: bool = False
    """True: save a checkpoint and give all GPUs back, or do not start. False again: resume from the checkpoint."""
    pre_running_deadline_seconds: float | None = Field(default=None, gt=0, le=YEAR_SECONDS)
    """Maximum seconds from admission to the start of training; then the job fails. A job that has trained before waits
    in the queue again if it has had no leader for this long. If absent: 900 on a cluster (chart:
    `operator.seconds.preRunningDeadline`), and no limit with `espalier run`."""
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
    """Set it, at least to `{}`, for a command that does not use Espalier's library. It needs a template, and
    maxReplicas equal to minReplicas. `training` must be absent, and of `adaptation` only `mode` may be set."""

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
                f"has a program, maxReplicas {self.max_replicas} and minReplicas {self.min_replicas}; they must "
                "be equal, because a program cannot use extra workers"
            )
        if self.training != TrainingSpec():
            raise ValueError("has a program and training, which is for Espalier's trainer; remove one of them")
        if self.adaptation.model_copy(update={"mode": AdaptationMode.AUTO}) != AdaptationSpec():
            raise ValueError("has a program and adaptation, which needs Espalier's trainer; remove one of them")
        return self

    @model_validator(mode="after")
    def _trials_have_workers(self) -> Self:
        trials = self.adaptation.trials
        if trials is Trials.CONFIRM and self.adaptation.insertion is Insertion.UNFOLD:
            raise ValueError(
                f"has adaptation.trials {trials} and adaptation.insertion Unfold; such a trial ends before a run has "
                "unfolded, so set trials to Race or Off, or insertion to Exact or Scaled"
            )
        if trials in (Trials.CONFIRM, Trials.RACE) and self.training.elastic_batch is None:
            raise ValueError(
                f"has adaptation.trials {trials} and no training.elasticBatch, without which extra workers take no "
                "part; set it to keepGlobal, or trials to Auto"
            )
        return self

    def gpus_per_worker(self, resource: str = DEFAULT_GPU_RESOURCE) -> int:
        """Return the GPUs of one worker: the sum of the template's limits of `resource`; 1 without a template.

        Raise `ValueError` if a limit is not a whole number, which Kubernetes rejects too.
        """
        return 1 if self.template is None else self.template.gpus(resource)

    @property
    def has_own_command(self) -> bool:
        """Whether workers run a command of the user's in place of the ready trainer."""
        template = self.template
        return self.program is not None or (template is not None and bool(template.spec.containers[0].command))


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


def allocation_document(job: AdaptiveTrainingJob, status: JobStatus | None = None) -> AllocationDocument:
    """Return the document for `status` (default: the job's own)."""
    known = status or job.status or JobStatus()
    scheduling, stopping = known.scheduling, known.scheduling.stopping
    return AllocationDocument(
        job=job.key,
        allocation=known.allocation,
        time_budget=TimeBudget(
            budget_seconds=job.spec.time_budget_seconds,
            used_seconds=known.time_budget.used_seconds,
            gpu_seconds_used=known.time_budget.gpu_seconds_used,
        ),
        base_replicas=job.spec.min_replicas,
        waits_for_workers=scheduling.gated > 0 and not scheduling.trained,
        stop=None if stopping is None else stopping.reason,
    )
