"""The status of a job, written by the operator alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import AwareDatetime, Field, ValidationError

from espalier_core.base import Record
from espalier_core.types.allocation import Allocation
from espalier_core.types.measurements import Measurements
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, Metric

MAX_ADAPTATIONS_KEPT = 20
"""Maximum number of entries of `status.adaptations`; the newest are kept."""
MAX_AVOIDED_NODES = 16
"""Maximum number of entries of `status.scheduling.avoidedNodes`; the newest are kept."""
MAX_POLICY = 512
"""Maximum length of a scheduling policy with its settings, in characters."""
_FOR_PEOPLE: Final = ("phase", "conditions", "adaptations")
"""Fields of a status for people; conditions also state how a job has ended."""


class ConditionType(StrEnum):
    """The conditions of a job."""

    ADMITTED = "Admitted"
    RUNNING = "Running"
    EXTRA_GPUS_GRANTED = "ExtraGPUsGranted"
    RECLAIM_PENDING = "ReclaimPending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """The values of `status` of a metav1 condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Record):
    """A condition in the metav1 shape."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""
    """The reason as a sentence."""
    last_transition_time: AwareDatetime
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the job that the condition is about."""


class JobPhase(StrEnum):
    """A summary of the job's state for people."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    EVALUATING = "Evaluating"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class TimeBudgetStatus(Record):
    """State of the time budget."""

    used_seconds: float = Field(default=0.0, ge=0)
    """Seconds of the time budget that are used."""
    remaining_seconds: float = Field(default=0.0, ge=0)
    """Seconds of the time budget that are left."""
    gpu_seconds_used: float = Field(default=0.0, ge=0)
    """GPU-seconds of all workers."""


class TrainingStatus(Record):
    """The last report of the leader, or the progress read from a program."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Steps taken."""
    progress_percentage: int = Field(default=0, ge=0, le=100)
    """Time budget used, in percent."""
    done_percentage: int | None = Field(default=None, ge=0, le=100)
    """The part of a program's work that is done, in percent; absent if the program does not report it."""
    metrics: tuple[Metric, ...] = ()
    """The latest figures, by name."""
    depth: int = 0
    """Layers of the model."""
    parameters: int = 0
    """Trainable parameters of the model."""
    last_updated_time: AwareDatetime | None = None
    """When the report was written."""


class StandingReclaim(Record):
    """A pending notice: the job must reduce its extra workers to `extra` by `deadline`."""

    extra: int = Field(ge=0)
    """Extra workers that remain."""
    deadline: AwareDatetime
    """After this time, the others are taken by force."""
    reason: Reason


class StandingStop(Record):
    """A pending request: the job must save a checkpoint and end by `deadline`."""

    reason: Reason
    deadline: AwareDatetime
    """After this time, the job is ended by force."""


class AvoidedNode(Record):
    """A node that refused, failed or ended a worker of the job. The job prefers other nodes for a while."""

    node: str
    """Name of the node."""
    last_time: AwareDatetime
    """The last time that it refused, failed or ended a worker."""
    times: int = Field(default=1, ge=1)
    """Number of such times in a row."""
    message: str = ""
    """The last cause: the kubelet's message, or how the worker ended."""
    refused: bool = False
    """Whether the kubelet refused the worker; otherwise the worker failed as it started."""
    elsewhere: bool = False
    """Whether the job has trained on another node since."""
    loan: int = Field(default=0, ge=0)
    """The newest loan of extra workers on which it failed; see `extraGeneration`."""


class SchedulingStatus(Record):
    """The scheduler's state of a job. An operator that starts reads it and continues from there.

    It is written with the rest of the status before the operator acts on it, so that an operator that restarts in
    between can repeat the action.
    """

    admitted_at: AwareDatetime | None = None
    """When the base GPUs were granted; absent while the job waits."""
    gpu_type: str | None = None
    """The type of GPU that the job was admitted on."""
    extra: int = Field(default=0, ge=0)
    """Number of lent extra workers, including those being reclaimed until they are released."""
    extra_generation: int = Field(default=0, ge=0)
    """Generation of the allocation that last lent extra workers; part of the names of their pods."""
    reclaim: StandingReclaim | None = None
    granted_at: AwareDatetime | None = None
    """When extra GPUs were last lent to the job."""
    changed_at: AwareDatetime | None = None
    """When the number of extra GPUs last changed, up or down."""
    promised_until: AwareDatetime | None = None
    """Time until which the job counts as holding all its extra workers, even if fewer are observed."""
    stopping: StandingStop | None = None
    counted_until: AwareDatetime | None = None
    """The time up to which the budgets are counted."""
    budget_end_seconds: float | None = Field(default=None, ge=0)
    """The used seconds at which the time budget ends: timeBudgetSeconds, or the seconds already used when it was
    lowered below them or found to be used up."""
    trained: bool = False
    """Whether the job has trained since it was admitted."""
    start_seconds: float | None = Field(default=None, ge=0)
    """Seconds that the job held its base GPUs, when it last started, until it trained."""
    gated: int = Field(default=0, ge=0)
    """Number of base workers whose pods have scheduling gates."""
    node_group: str = ""
    """Node group to which nodes are to be added for the job; empty once all its base workers have one."""
    nodes_by: AwareDatetime | None = None
    """Time until which the job waits for these nodes."""
    failures: int = Field(default=0, ge=0)
    """Number of worker failures that count against backoffLimit."""
    last_failure: str = ""
    """Description of the last failure."""
    attempts: tuple[int, ...] = ()
    """Number of times that the pod of each base worker was replaced; part of the name of the pod."""
    pod_uids: tuple[str, ...] = ()
    """UID of the pod of each base worker that was last seen at this attempt; empty if there was none yet."""
    completed_workers: tuple[int, ...] = ()
    """Indexes of base workers that ended with exit code 0 before the leader: they need no GPUs, and are not started
    again."""
    down_since: AwareDatetime | None = None
    """Time since which no leader runs, though the job has trained; absent while one runs."""
    not_before: AwareDatetime | None = None
    """Time before which a failed leader is not restarted."""
    unplaced: int = Field(default=0, ge=0)
    """Number of times in a row that kube-scheduler found no node for the workers that the job was granted GPUs for."""
    hold_until: AwareDatetime | None = None
    """Time before which the job is granted no more GPUs, after such a failure."""
    extra_losses: int = Field(default=0, ge=0)
    """Number of times in a row that lent extra workers ended by themselves or were ended from outside."""
    lend_after: AwareDatetime | None = None
    """Time before which no extra GPUs are lent to the job, after such a loss."""
    avoided_nodes: tuple[AvoidedNode, ...] = Field(default=(), max_length=MAX_AVOIDED_NODES)
    """The nodes that most recently refused, failed or ended workers of the job."""


class JobStatus(Record):
    """`status` of an `AdaptiveTrainingJob`."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the job that this status is about."""
    phase: JobPhase = JobPhase.PENDING
    conditions: tuple[Condition, ...] = ()
    """Conditions of the job, one entry per type."""
    start_time: AwareDatetime | None = None
    """When the job first trained."""
    completion_time: AwareDatetime | None = None
    """When the job ended."""
    time_budget: TimeBudgetStatus = TimeBudgetStatus()
    allocation: Allocation = Allocation()
    training: TrainingStatus = TrainingStatus()
    adaptations: tuple[Adaptation, ...] = Field(default=(), max_length=MAX_ADAPTATIONS_KEPT)
    """The newest consultations of the agent, with their results."""
    measurements: Measurements = Measurements()
    """Measurements of the job by its trainers, over all attempts."""
    adaptation_count: int = Field(default=0, ge=0)
    """Number of times that the model has grown."""
    restarts: int = Field(default=0, ge=0)
    """Number of times that the leader was restarted, for any reason."""
    preemptions: int = Field(default=0, ge=0)
    """Number of times that GPUs were taken by force, or the leader was ended from outside."""
    last_checkpoint_time: AwareDatetime | None = None
    """When the leader last wrote a checkpoint."""
    replicas: int = Field(default=0, ge=0)
    """Wanted number of workers, base and extra."""
    selector: str = ""
    """Label selector of the job's pods, for the scale subresource."""
    scheduling_policy: str = Field(default="", max_length=MAX_POLICY)
    """The scheduling policy, with its settings, by which the operator decides about the job."""
    scheduling: SchedulingStatus = SchedulingStatus()

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of `kind`, None where there is none."""
        return next((entry for entry in self.conditions if entry.type is kind), None)

    @property
    def outcome(self) -> Condition | None:
        """The condition of the job's end; None before it."""
        ends = (ConditionType.COMPLETE, ConditionType.FAILED)
        return next(
            (each for each in self.conditions if each.type in ends and each.status is ConditionStatus.TRUE), None
        )


def parse_status(raw: Mapping[str, Any]) -> JobStatus | None:
    """Return the status of an object of the API server, None if it has none; raise `ValueError` if it is damaged.

    A newer operator may have written it. A field for people with an unknown value of an enum is left out.
    """
    status = raw.get("status")
    if not status:
        return None
    try:
        return JobStatus.model_validate_json(json.dumps(status))
    except ValidationError as error:
        unknown = _unknown_for_people(error)
        if not unknown:
            raise
        found = JobStatus.model_validate_json(json.dumps(_without(status, unknown)))
        if found.completion_time is not None and found.outcome is None:
            raise  # without the condition that states its end, it would run again
        return found


def _unknown_for_people(error: ValidationError) -> set[tuple[int | str, ...]]:
    """Return the fields and entries of lists for people that have an unknown value of an enum."""
    places = (details["loc"] for details in error.errors() if details["type"] == "enum")
    return {place[:2] for place in places if place[0] in _FOR_PEOPLE}


def _without(status: Mapping[str, Any], places: Collection[tuple[int | str, ...]]) -> dict[str, Any]:
    """Return the status without the fields and entries of lists at `places`."""
    return {
        name: [entry for index, entry in enumerate(value) if (name, index) not in places]
        if isinstance(value, list)
        else value
        for name, value in status.items()
        if (name,) not in places
    }
