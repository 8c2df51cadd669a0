"""A job as the scheduler sees it: what it asks for, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from espalier_core.estimates.goodput import BatchLimits, StepTime
from espalier_core.types.job import (
    AdaptationMode,
    AdaptiveTrainingJob,
    BasePreemption,
    BatchSizing,
    ElasticBatch,
    TrainingSpec,
)
from espalier_core.types.measurements import GrowthForecast
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_core.types.reasons import Reason
from espalier_operator.model.constraints import ANYWHERE, Constraints
from espalier_operator.model.nodes import Blame, Node
from espalier_operator.model.queues import Claim

REFUSALS: Final = frozenset(
    (
        Reason.UNSCHEDULABLE,
        Reason.POD_REJECTED,
        Reason.IMAGE_PULL_FAILED,
        Reason.VOLUME_UNAVAILABLE,
        Reason.SCHEDULING_GATED,
    )
)
"""What keeps workers from starting for which there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What a job asks for: the part of its spec that the scheduler reads. Field names as in the spec."""

    min_replicas: int
    max_replicas: int
    gpus_per_worker: int = 1
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    """The extended resource by which its workers request their GPUs."""
    priority: int = 0
    queue: str = "default"
    gpu_type: str | None = None
    """The only type of GPU it runs on; None: any, but all its workers on the same."""
    constraints: Constraints = ANYWHERE
    """What its workers ask of a node in addition."""
    quota_scopes: tuple[tuple[str, str], ...] = ()
    """The scopes of ResourceQuotas that its base workers are in; that of their PriorityClass with the name of it."""
    extra_quota_scopes: tuple[tuple[str, str], ...] = ()
    """The same of its extra workers."""
    time_budget_seconds: float
    grace_seconds: float = 10.0
    """Seconds that it may continue past its budget before it is ended by force."""
    gpu_seconds_budget: float | None = None
    base_preemptible: bool = False
    """Whether its base GPUs may be taken back where its queue has borrowed them."""
    notice_seconds: float = 30.0
    cooldown_seconds: float = 60.0
    min_runtime_seconds: float = 60.0
    adapts: bool = True
    """False for adaptation mode Off."""
    program: bool = False
    """Whether its workers do not use the library: they report nothing, are stopped by SIGTERM, and end by exit code."""
    trains_together: bool = False
    """Whether extra workers train; if so, a job that does not adapt can use them as well."""
    scales_batch: bool = False
    """Whether a step of more workers has more examples (`elasticBatch: scaleLinear`)."""
    batch_limits: BatchLimits | None = None
    """Within which its trainer chooses the batch size by goodput; None: it is the author's."""
    suspend: bool = False
    backoff_limit: int = 3
    max_preemptions: int | None = None
    pre_running_deadline_seconds: float | None = None

    def admit(self, node: Node) -> bool:
        """Return whether its workers may be bound to `node`, were its GPUs free."""
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
            batch_limits=_batch_limits(spec.training),
            suspend=spec.suspend,
            backoff_limit=spec.backoff_limit,
            max_preemptions=spec.max_preemptions,
            pre_running_deadline_seconds=spec.pre_running_deadline_seconds,
        )


def _batch_limits(training: TrainingSpec) -> BatchLimits | None:
    if training.batch is BatchSizing.FIXED:
        return None
    return BatchLimits(
        batch_size=training.batch_size,
        max_batch_size=training.max_batch_size or training.batch_size,
        max_pass_size=training.max_batch_size_per_worker,
    )


def grace_of(job: AdaptiveTrainingJob, least_seconds: float, scale: float = 1.0) -> float:
    """Return the seconds that `job` may continue past its budget: a tenth of it, and at least `least_seconds`.

    A program has the grace period of its pod instead, in a clock that advances `scale` seconds a second.
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
    """A pending demand: the job must write a checkpoint and end by `deadline`."""

    reason: Reason
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended, or its leader, which has ended by itself and must not be started again."""

    reason: Reason
    failed: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What is recorded of a job from one observation to the next, as far as the planner decides by it.

    A backend's `JobState` and the planner's `JobFacts` both have these fields; a job's status keeps most of them under
    the same names (`job.view`).
    """

    admitted_at: float | None = None
    """When its base GPUs were granted; None while it waits."""
    gpu_type: str | None = None
    """The type it was admitted on; all its workers stay on it."""
    completed_workers: tuple[int, ...] = ()
    """Base workers, by index, that ended with exit code 0 before the leader: they need no GPUs, and are not started
    again."""
    extra: int = 0
    """Extra workers lent, those being reclaimed included until they are released."""
    reclaim: Reclaim | None = None
    granted_at: float | None = None
    """When extra GPUs were last lent to it."""
    changed_at: float | None = None
    """When its extra GPUs last changed, up or down."""
    trained: bool = False
    """Its leader has been past its start-up at some time since the job was admitted."""
    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    budget_end_seconds: float | None = None
    """The used seconds at which its time budget ends: its budget, or what it had used when that was lowered to less, or
    when it was found to be used up."""
    counted_until: float | None = None
    """The moment up to which its budgets are counted. None in `JobFacts`: they stand still, and do not run on."""
    failures: int = 0
    last_failure: str = ""
    """Description of the last failure, for people."""
    refused_since: float | None = field(default=None, compare=False)
    """Since when a base worker cannot start, as kube-scheduler finds no node for it or somebody refuses it; None while
    that is not so."""
    gated: int = 0
    """Base workers with scheduling gates: they hold no GPUs."""
    down_since: float | None = field(default=None, compare=False)
    """Since when no leader runs of a job that has trained and is not about to end; None while one does."""
    hold_until: float | None = None
    """It is granted nothing more before: what it was granted could not be used."""
    lend_after: float | None = None
    """It is lent nothing before: its extra workers did not last."""
    preemptions: int = 0
    """How often GPUs were taken from it by force, or its leader was ended from outside."""
    stopping: Stopping | None = None
    ended: Ended | None = None
    """How the leader ended, until the planner has acted on it."""
    blames: tuple[Blame, ...] = field(default=(), compare=False)
    """Nodes that refused, failed or ended its workers."""

    def recorded(self) -> dict[str, Any]:
        """Return these fields by name."""
        return {name: getattr(self, name) for name in _RECORDED}


_RECORDED: Final = tuple(each.name for each in fields(JobRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts(JobRecord):
    """One job as the planner sees it: what is recorded of it, its terms, and what is observed now."""

    key: str
    terms: JobTerms
    """Of those workers that are not completed."""
    submitted_at: float
    generation: int = 0
    acknowledged_generation: int = 0
    leader_running: bool = False
    has_reported: bool = False
    training: bool = False
    """Its leader is past its start-up."""
    evaluating: bool = False
    """Its leader has announced its last evaluation, or reported since that the job is complete."""
    trouble: Reason | None = None
    """What prevents its workers from starting, if known: the image, the nodes, the API server."""
    extra_trouble: Reason | None = None
    """What prevented the extra workers from starting that it was last lent, if known."""
    pinned: bool = True
    """The planner chooses the nodes of its workers; False once kube-scheduler has refused such a node."""
    if_forced: Ended | None = None
    """What it comes to where its trainer has to be ended by force; None where that does not report, or has stopped."""
    finished: bool = False
    """Its outcome is recorded; only its remaining workers still matter."""
    recent_use: float = 0.0
    """Base GPUs that its queue or namespace held lately on average, over the weight of the queue; while it waits."""
    aged: int = 0
    """By how many steps of priority its waiting has raised it in the order of admission."""
    speeds: tuple[StepTime, ...] = ()
    """What was measured of its steps, the newest at the end."""
    done: float | None = None
    """The part of its work that a program says it has done, 0 to 1; None if it does not say."""
    noise_scale: float | None = None
    """Of its gradients, in examples; None: not known, or too large to tell."""
    growth: GrowthForecast | None = None
    """What growing would gain it, as its agent expects; None: not known."""

    @property
    def claim(self) -> Claim:
        """What it asks its queue for."""
        terms = self.terms
        return Claim(queue=terms.queue, namespace=self.namespace, priority=terms.priority, gpus=self.base_gpus)

    @property
    def namespace(self) -> str:
        """Its namespace, the first part of its key."""
        return self.key.partition("/")[0]

    @property
    def terms_of_all(self) -> JobTerms:
        """Its terms with the completed workers."""
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
        """GPUs that the allocation gives it, base and extra, but for workers with scheduling gates."""
        return self.base_gpus_held + (0 if self.admitted_at is None else self.extra * self.terms.gpus_per_worker)

    @property
    def base_gpus_held(self) -> int:
        """Those of its base workers."""
        if self.admitted_at is None:
            return 0
        return max(0, self.terms.min_replicas - self.gated) * self.terms.gpus_per_worker

    def counted(self, until: float, since: float | None = None) -> JobFacts:
        """Return it with its budgets counted up to a time. If they ran they run on from then, or from `since`."""
        if self.counted_until is None:
            return self
        used, gpu_seconds = self.used_at(until), self.gpu_seconds_at(until)
        counted_until = until if since is None else since
        return replace(self, used_seconds=used, gpu_seconds_used=gpu_seconds, counted_until=counted_until)

    def _uncounted(self, now: float) -> float:
        return 0.0 if self.counted_until is None else max(0.0, now - self.counted_until)
