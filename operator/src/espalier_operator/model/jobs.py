"""A job as the scheduler sees it: its terms, its recorded state, and the facts of now."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from espalier_core.estimates.goodput import BatchLimits, StepTime
from espalier_core.types.job import (
    AdaptationMode,
    AdaptiveTrainingJob,
    BasePreemption,
    ElasticBatch,
)
from espalier_core.types.measurements import Bid
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_core.types.reasons import Reason
from espalier_operator.model.constraints import ANYWHERE, Constraints
from espalier_operator.model.nodes import Blame, Node
from espalier_operator.model.queues import Claim, ExternalAdmission

REFUSALS: Final = frozenset(
    (
        Reason.UNSCHEDULABLE,
        Reason.POD_REJECTED,
        Reason.IMAGE_PULL_FAILED,
        Reason.VOLUME_UNAVAILABLE,
        Reason.SCHEDULING_GATED,
    )
)
"""Obstacles to the start of workers for which there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """A job's request: the part of its spec that the scheduler reads. Field names as in the spec."""

    min_replicas: int
    max_replicas: int
    gpus_per_worker: int = 1
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    """The extended resource as which its workers request their GPUs."""
    priority: int = 0
    queue: str = "default"
    gpu_type: str | None = None
    """The only type of GPU it runs on; None: any, but all its workers on the same."""
    constraints: Constraints = ANYWHERE
    """Further constraints of its workers on nodes."""
    quota_scopes: tuple[tuple[str, str], ...] = ()
    """Scopes of ResourceQuotas that its base workers are in; the scope PriorityClass with the name of theirs."""
    extra_quota_scopes: tuple[tuple[str, str], ...] = ()
    """The same for its extra workers."""
    time_budget_seconds: float
    grace_seconds: float = 10.0
    """Seconds past its budget before it is ended by force."""
    gpu_seconds_budget: float | None = None
    base_preemptible: bool = False
    """Whether base GPUs that its queue has borrowed may be taken back."""
    notice_seconds: float = 30.0
    cooldown_seconds: float = 60.0
    min_runtime_seconds: float = 60.0
    adapts: bool = True
    """False for adaptation mode Off, and where its trainer has reported that its model cannot grow."""
    program: bool = False
    """Whether its workers do not use the library: they report nothing, stop by SIGTERM, and end by exit code."""
    trains_together: bool = False
    """Whether extra workers train, so that a job that does not adapt can use them too."""
    scales_batch: bool = False
    """Whether the batch grows with the number of workers (`elasticBatch: scaleLinear`)."""
    batch_limits: BatchLimits | None = None
    """Limits within which its trainer chooses the batch size by goodput; None: the batch size is fixed."""
    suspend: bool = False
    backoff_limit: int = 3
    max_preemptions: int | None = None
    pre_running_deadline_seconds: float | None = None

    def admit(self, node: Node) -> bool:
        """Return whether its workers may be bound to `node` if GPUs are free there."""
        fits = node.admits(self.constraints) and self.gpu_type in (None, node.gpu_type)
        return node.takes_pods and fits

    @classmethod
    def of(
        cls,
        job: AdaptiveTrainingJob,
        *,
        grace_seconds: float = 10.0,
        gpu_type: str | None = None,
        constraints: Constraints = ANYWHERE,
        resource: str = DEFAULT_GPU_RESOURCE,
    ) -> Self:
        """Return the terms of `job`; the backend supplies `grace_seconds`, `gpu_type` and `constraints`."""
        spec = job.spec
        return cls(
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            gpus_per_worker=spec.gpus_per_worker(resource),
            gpu_resource=resource,
            priority=spec.priority,
            queue=spec.queue,
            gpu_type=gpu_type,
            constraints=constraints,
            time_budget_seconds=spec.time_budget_seconds,
            grace_seconds=grace_seconds,
            gpu_seconds_budget=spec.gpu_seconds_budget,
            base_preemptible=spec.preemption.base is BasePreemption.CHECKPOINT,
            notice_seconds=spec.preemption.notice_seconds,
            cooldown_seconds=spec.preemption.cooldown_seconds,
            min_runtime_seconds=spec.preemption.min_runtime_seconds,
            adapts=spec.adaptation.mode is not AdaptationMode.OFF and spec.program is None,
            program=spec.program is not None,
            trains_together=spec.training.elastic_batch is not None,
            scales_batch=spec.training.elastic_batch is ElasticBatch.SCALE_LINEAR,
            batch_limits=BatchLimits.of(spec.training),
            suspend=spec.suspend,
            backoff_limit=spec.backoff_limit,
            max_preemptions=spec.max_preemptions,
            pre_running_deadline_seconds=spec.pre_running_deadline_seconds,
        )


def grace_of(job: AdaptiveTrainingJob, least_seconds: float, scale: float = 1.0) -> float:
    """Return the seconds that `job` may continue past its budget: a tenth of it, and at least `least_seconds`.

    A program has the grace period of its pod instead, on a clock that advances `scale` seconds per second.
    """
    if job.spec.program is not None and job.spec.template is not None:
        return scale * job.spec.template.spec.grace_seconds
    return max(least_seconds, 0.1 * job.spec.time_budget_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """A pending notice: the job must reduce its extra workers to `extra` by `deadline`."""

    extra: int
    deadline: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A pending request: the job must write a checkpoint and end by `deadline`."""

    reason: Reason
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a job, or of its leader if it has ended by itself and must not be started again."""

    reason: Reason
    failed: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The part of a job's recorded state by which the planner decides.

    A backend's `JobState` and the planner's `JobFacts` both have these fields; a job's status keeps most of them under
    the same names (`job.view`).
    """

    admitted_at: float | None = None
    """Time of the grant of its base GPUs; None while it waits."""
    gpu_type: str | None = None
    """The GPU type of its admission, for all its workers."""
    completed_workers: tuple[int, ...] = ()
    """Indices of base workers that ended with exit code 0 before the leader: they need no GPUs and are not started
    again."""
    extra: int = 0
    """Number of extra workers lent, including those being reclaimed until they are released."""
    reclaim: Reclaim | None = None
    granted_at: float | None = None
    """Time of the last loan of extra GPUs."""
    changed_at: float | None = None
    """Time of the last change of its extra GPUs, up or down."""
    trained: bool = False
    """Its leader has been past its start-up at some time since the admission."""
    start_seconds: float | None = None
    """Seconds that it held its base GPUs, in its last start, until it trained."""
    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    budget_end_seconds: float | None = None
    """Used seconds at which its time budget ends: the budget, or the use at the time when it was lowered to less or
    was found used up."""
    counted_until: float | None = None
    """Time up to which its budgets are counted. None in `JobFacts`: they stand still."""
    failures: int = 0
    last_failure: str = ""
    """Description of the last failure, for people."""
    refused_since: float | None = field(default=None, compare=False)
    """Time since which a base worker cannot start, as kube-scheduler finds no node for it or it is refused; None while
    all can."""
    gated: int = 0
    """Number of base workers with scheduling gates, which hold no GPUs."""
    down_since: float | None = field(default=None, compare=False)
    """Time since which it has no running leader though it has trained and goes on; None while it has one."""
    node_group: str = ""
    """The node group to which nodes should be added for it; empty once all its base workers have a node."""
    nodes_by: float | None = None
    """Time until which it waits for these nodes."""
    hold_until: float | None = None
    """Time before which it is granted nothing more, as it could not use its grant."""
    lend_after: float | None = None
    """Time before which it is lent nothing, as its extra workers did not last."""
    preemptions: int = 0
    """Number of times that GPUs were taken from it by force or its leader was ended from outside."""
    stopping: Stopping | None = None
    ended: Ended | None = None
    """The end of the leader, until the planner has acted on it."""
    blames: tuple[Blame, ...] = field(default=(), compare=False)
    """Nodes that refused, failed or ended its workers."""

    def recorded(self) -> dict[str, Any]:
        """Return these fields by name."""
        return {name: getattr(self, name) for name in _RECORDED}


_RECORDED: Final = tuple(each.name for each in fields(JobRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts(JobRecord):
    """One job as the planner sees it: its recorded state, its terms, and what is observed now."""

    key: str
    terms: JobTerms
    """Terms for the workers that are not completed."""
    submitted_at: float
    generation: int = 0
    acknowledged_generation: int = 0
    leader_running: bool = False
    has_reported: bool = False
    training: bool = False
    """Its leader is past its start-up."""
    saved_at: float | None = field(default=None, compare=False)
    """Up to when its training is saved: its last checkpoint, or its admission if it has none since; None: not known."""
    evaluating: bool = False
    """Its leader has announced its last evaluation or reported the job complete."""
    trouble: Reason | None = None
    """The known obstacle to the start of its workers: the image, the nodes, the API server."""
    extra_trouble: Reason | None = None
    """The known obstacle to the start of its last lent extra workers."""
    pinned: bool = True
    """The planner chooses the nodes of its workers; False once kube-scheduler has refused such a node."""
    if_forced: Ended | None = None
    """Its outcome if its trainer must be ended by force; None where the trainer does not report, or has stopped."""
    external: ExternalAdmission | None = None
    """The decision of the system that has its quota; None: our queues have it."""
    finished: bool = False
    """Its outcome is recorded; only its remaining workers still matter."""
    recent_use: float = 0.0
    """While it waits: recent average of base GPUs held by its queue or namespace, divided by the queue's weight."""
    aged: int = 0
    """Steps of priority gained by waiting, in the order of admission."""
    speeds: tuple[StepTime, ...] = ()
    """Measured step times, the newest last."""
    done: float | None = None
    """The part of its work, 0 to 1, that a program reports done; None if unknown."""
    noise_scale: float | None = None
    """Noise scale of its gradients, in examples; None: unknown, or too large to measure."""
    bids: tuple[Bid, ...] = ()
    """What its next GPUs are worth to it; empty: unknown."""

    @property
    def claim(self) -> Claim:
        """Its claim on its queue."""
        terms = self.terms
        return Claim(queue=terms.queue, namespace=self.namespace, priority=terms.priority, gpus=self.base_gpus)

    @property
    def namespace(self) -> str:
        """Its namespace, the first part of its key."""
        return self.key.partition("/")[0]

    @property
    def terms_of_all(self) -> JobTerms:
        """Its terms including the completed workers."""
        terms, done = self.terms, len(self.completed_workers)
        return replace(terms, min_replicas=terms.min_replicas + done, max_replicas=terms.max_replicas + done)

    @property
    def base_indexes(self) -> list[int]:
        """The indexes of its base workers that are not completed."""
        every = range(self.terms_of_all.min_replicas)
        return [index for index in every if index not in self.completed_workers]

    @property
    def base_gpus(self) -> int:
        """GPUs of all its base workers."""
        return self.terms.min_replicas * self.terms.gpus_per_worker

    def used_at(self, now: float) -> float:
        """Return the seconds of its time budget that it has used."""
        return self.used_seconds + self._uncounted(now)

    def gpu_seconds_at(self, now: float) -> float:
        """Return the GPU-seconds that it has used."""
        return self.gpu_seconds_used + self._uncounted(now) * self.gpus_held

    def remaining_at(self, now: float) -> float:
        """Return the budget seconds left, never below zero."""
        return max(0.0, self.terms.time_budget_seconds - self.used_at(now))

    @property
    def gpus_held(self) -> int:
        """GPUs that the allocation gives it, base and extra, except for workers with scheduling gates."""
        return self.base_gpus_held + (0 if self.admitted_at is None else self.extra * self.terms.gpus_per_worker)

    @property
    def base_gpus_held(self) -> int:
        """GPUs that the allocation gives its base workers."""
        if self.admitted_at is None or self.nodes_by is not None:
            return 0
        return max(0, self.terms.min_replicas - self.gated) * self.terms.gpus_per_worker

    def counted(self, until: float, since: float | None = None) -> JobFacts:
        """Return the job with budgets counted up to `until`; running budgets continue from then, or from `since`."""
        if self.counted_until is None:
            return self
        used, gpu_seconds = self.used_at(until), self.gpu_seconds_at(until)
        counted_until = until if since is None else since
        return replace(self, used_seconds=used, gpu_seconds_used=gpu_seconds, counted_until=counted_until)

    def _uncounted(self, now: float) -> float:
        return 0.0 if self.counted_until is None else max(0.0, now - self.counted_until)
