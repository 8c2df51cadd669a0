"""What the scheduler sees: plain facts, frozen, and their loss-free JSON.

A `Snapshot` is all that `plan` reads. Every backend (Kubernetes, local processes, virtual time) makes one; a dump
of it is a bug report that can be replayed. All times are seconds of one clock, the one that `plan`'s `now` is
read from: wall-clock seconds on Kubernetes, budget seconds elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from espalier_api import environment
from espalier_api.documents import first_fault
from espalier_api.goodput import BatchLimits
from espalier_api.job import (
    AdaptationMode,
    AdaptiveTrainingJob,
    BasePreemption,
    BatchSizing,
    ElasticBatch,
    TrainingSpec,
)
from espalier_api.measurements import GrowthForecast
from espalier_api.pod_template import DEFAULT_GPU_RESOURCE
from espalier_api.reasons import Reason
from espalier_api.throughput import StepTime
from espalier_operator.constraints import ANYWHERE, Constraints, Taint, Toleration
from espalier_operator.queues import Claim, Queue

SNAPSHOT_VERSION: Final = 1
DEFAULT_POLICY: Final = "fair"
"""The scheduling policy where none is named."""


class SnapshotError(ValueError):
    """A dumped snapshot cannot be read; the message names the field and what is wrong with it."""


class Role(StrEnum):
    """What a worker is to the scheduler."""

    BASE = environment.Role.BASE.value
    EXTRA = environment.Role.EXTRA.value
    FOREIGN = "foreign"
    """A pod with GPUs that belongs to no job of this operator."""

    @classmethod
    def _missing_(cls, value: object) -> Role | None:
        return cls.FOREIGN if value == "alien" else None  # as earlier snapshots call it


class WorkerState(StrEnum):
    """The stage of a worker. In every stage it holds the GPUs of the node that it is bound to."""

    PENDING = "pending"
    RUNNING = "running"
    TERMINATING = "terminating"


LEAVING_SECONDS: Final = 600.0
"""GPUs of a worker that terminates are waited for if its grace period ends within this time."""
HANGING_SECONDS: Final = 60.0
"""So long after the end of its grace period, a worker that terminates is expected to be gone."""


def host_of(node: str) -> str:
    """Return the name of the machine of a node."""
    return node.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with GPUs of one type; a machine with several kinds of GPUs is one for each kind."""

    name: str
    """Name of the machine, and for a further kind of GPUs, after a slash, their resource."""
    gpu_type: str
    allocatable: int
    ready: bool = True
    silent_since: float | None = None
    """Since when it does not report; None while it does, or if that is not known."""
    schedulable: bool = True
    """It takes new pods: those that tolerate its taints."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[Taint, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What it has of resources other than GPUs (`constraints.Amounts`); one that is not named is not limited."""
    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What pods that are nobody's worker request of that."""
    departing: int = 0
    """GPUs of `allocatable` that are announced to go at `departs_at`."""
    departs_at: float | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether all its GPUs are announced to go."""
        return 0 < self.allocatable <= self.departing

    @property
    def host(self) -> str:
        """The name of the machine."""
        return host_of(self.name)

    def admits(self, constraints: Constraints) -> bool:
        """Return whether a pod with `constraints` may be bound to it, as far as its labels and taints decide."""
        return constraints.admit(self.host, self.labels, self.taints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process or pod that holds GPUs, or waits for them while `node` is None."""

    name: str
    job: str | None
    """Key of its job, None for a foreign worker."""
    role: Role
    index: int = 0
    """Index among the job's workers of this role; extra workers are removed from the highest index down."""
    node: str | None
    gpus: int
    state: WorkerState
    gpu_type: str | None = None
    """The type of GPU that a foreign worker without a node requires."""
    constraints: Constraints = ANYWHERE
    """What a foreign worker without a node asks of one."""
    pinned_to: str | None = None
    """The only node that it may be bound to, chosen by an earlier plan; None: kube-scheduler chooses."""
    is_rival: bool = False
    """It is foreign, and a worker of another Espalier's job. Pinned and not bound, it keeps the GPUs of its node from
    new workers, and is no reason to reclaim any."""
    leaves_at: float | None = None
    """When the grace period of one that terminates ends; None: that is not known, and it is about to."""
    grace_seconds: float = 0.0
    """That grace period."""

    def leaves_between(self) -> tuple[float, float]:
        """Return from when until when its GPUs count as about to be free, if it terminates.

        Whoever deletes a pod chooses its grace period, a year if they like; one that is there long after its end hangs.
        """
        if self.leaves_at is None:
            return -math.inf, math.inf
        # The clock of the API server need not be ours: what leaves soon is not judged by it.
        begin = self.leaves_at - LEAVING_SECONDS if self.grace_seconds > LEAVING_SECONDS else -math.inf
        return begin, self.leaves_at + HANGING_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Until `expires_at` the job counts as holding `extra` extra workers, even where fewer are seen."""

    job: str
    extra: int
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The nodes of workers of a job that are to be made, or made again; None: kube-scheduler chooses the node.

    A worker without an entry is not made yet: there are no GPUs for it.
    """

    base: Mapping[int, str | None] = field(default_factory=dict)
    """By index."""
    extra: tuple[str | None, ...] = ()
    """In any order: extra workers are alike."""
    moved: frozenset[str] = frozenset()
    """Names of extra workers that are not bound, and whose node has no room for them any more."""


NOWHERE: Final = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
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
        return node.ready and node.schedulable and fits

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
class JobFacts:
    """One job: its terms and its current state."""

    key: str
    terms: Terms
    submitted_at: float
    admitted_at: float | None = None
    gpu_type: str | None = None
    """The type it was admitted on; all its workers stay on it."""
    generation: int = 0
    acknowledged_generation: int = 0
    extra: int = 0
    """Extra workers lent, those being reclaimed included until they are released."""
    reclaim: Reclaim | None = None
    granted_at: float | None = None
    """When extra GPUs were last lent to it."""
    changed_at: float | None = None
    """When its extra GPUs last changed, up or down."""
    leader_running: bool = False
    has_reported: bool = False
    training: bool = False
    """Its leader is past its start-up."""
    evaluating: bool = False
    """Its leader has announced its last evaluation, or reported since that the job is complete."""
    trained: bool = False
    """Its leader has been past its start-up at some time since the job was admitted."""
    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    failures: int = 0
    last_failure: str = ""
    """Description of the last failure, for people."""
    trouble: Reason | None = None
    """What prevents its workers from starting, if known: the image, the nodes, the API server."""
    refused_since: float | None = None
    """Since when kube-scheduler finds no node for one of its base workers, or a ResourceQuota has no room for it."""
    pinned: bool = True
    """The planner chooses the nodes of its workers; False once kube-scheduler has refused such a node."""
    hold_until: float | None = None
    """It is granted nothing more before: what it was granted could not be bound."""
    lend_after: float | None = None
    """It is lent nothing before: its extra workers did not last."""
    preemptions: int = 0
    """How often GPUs were taken from it by force, or its leader was ended from outside."""
    stopping: Stopping | None = None
    ended: Ended | None = None
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
        gpus = self.terms.min_replicas * self.terms.gpus_per_worker
        namespace, _, _ = self.key.partition("/")
        return Claim(queue=self.terms.queue, namespace=namespace, priority=self.terms.priority, gpus=gpus)

    @property
    def remaining_seconds(self) -> float:
        """Budget seconds left, never below zero."""
        return max(0.0, self.terms.time_budget_seconds - self.used_seconds)

    @property
    def gpus_held(self) -> int:
        """GPUs that the allocation gives it, base and extra."""
        if self.admitted_at is None:
            return 0
        return (self.terms.min_replicas + self.extra) * self.terms.gpus_per_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimit:
    """What a ResourceQuota allows the pods of its namespace to request of one resource, all together."""

    namespace: str
    quota: str
    """Name of the ResourceQuota."""
    resource: str
    """As `constraints.Amounts` names it, or the resource of GPUs."""
    hard: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The scheduler's own settings; part of the snapshot, so that a replay decides by the same ones."""

    policy: str = DEFAULT_POLICY
    """The scheduling policy with its settings, as `espalier_operator.policies.settings.configured` reads it."""
    lend_min_fraction: float = 0.05
    """Nothing is lent to a job with less than this share of its time budget left. Growth at 95 % of the budget still
    improved accuracy (digits, rate restarted and linear to the deadline, +.05 in 5 of 5 seeds). Later growth was not
    measured: the job would end before the workers have warmed up."""
    stop_grace_seconds: float = 30.0
    """Seconds between the demand to write a checkpoint and end (suspension, end of the GPU budget) and a forced end."""
    rivalry_seconds: float = 20.0
    """A job that lost its GPUs before it trained waits for a random part of this, if another Espalier has workers on
    nodes that it can use: two gangs that each got a part of these nodes must not meet there again."""
    placement_seconds: float = 60.0
    """A job waits again if kube-scheduler finds no node for a base worker for so long, though GPUs are free for it."""
    pin_seconds: float = 5.0
    """kube-scheduler chooses the nodes of base workers itself if it refuses the chosen ones for so long, though the
    planner has GPUs free there."""
    startup_seconds: float = 300.0
    """How long a job may take from its admission, or from a restart, until its budget runs. Backfilling counts on it:
    one that takes longer may delay a job that waits by the difference."""
    fair_share_half_life_seconds: float = 0.0
    """After so long, GPUs that were held count half as much in the order of admission; 0: they do not count."""
    aging_seconds: float = 0.0
    """A job that waits rises by a step of priority in the order of admission each time so long has passed; 0: never."""
    backfill_depth: int = 100
    """How many different gangs that find no GPUs are tried, by types of GPUs; as Slurm's bf_max_job_test, it limits the
    time of a plan. Jobs after these wait."""
    reservations: int = 8
    """How many jobs that wait keep GPUs, the first ones of the queue: none that comes later delays them."""
    evaluation_seconds: float = 60.0
    """A leader that has announced its last evaluation may exceed its budget by these seconds and the grace period. It
    does not grow with the budget: anyone can announce an evaluation."""

    tolerated_taints: tuple[str, ...] = ()
    """Keys of taints that all workers tolerate."""
    rack_label: str | None = None
    """The label of nodes that names their rack; None: racks are not known, only zones."""

    def takes_workers(self, node: Node) -> bool:
        """Return whether `node` takes new workers of jobs whose templates ask nothing of nodes."""
        workers = Constraints(tolerations=tuple(Toleration(key, "Exists") for key in self.tolerated_taints))
        return node.ready and node.schedulable and node.admits(workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that `plan` reads."""

    taken_at: float
    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    promises: tuple[Promise, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    queues: tuple[Queue, ...] = ()
    """Without any, no job needs one."""
    namespace_limits: tuple[NamespaceLimit, ...] = ()
    """By the ResourceQuotas of the namespaces in which jobs are."""
    placements: Mapping[str, Placement] = field(default_factory=dict, hash=False)
    """By job: what the last plan chose for workers that are not seen yet, so that this one keeps to it."""
    rules: Rules = Rules()
    policy_memory: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the policy's last decision asked to keep."""

    def held_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield what each admitted job holds of its queue, and on which type of GPU."""
        for job in self.jobs:
            if job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def to_json(self) -> str:
        """Return the snapshot as JSON text from which `from_json` makes an equal one."""
        body = _SNAPSHOT.dump_python(self, mode="json")
        return json.dumps({"version": SNAPSHOT_VERSION, "kind": "Snapshot", **body}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Parse what `to_json` wrote; `SnapshotError` where it is damaged or of another version."""
        try:
            body: Any = json.loads(text)
        except ValueError as error:
            raise SnapshotError(f"not complete JSON: {error}") from error
        if not isinstance(body, dict) or body.pop("kind", None) != "Snapshot":
            raise SnapshotError("is not a snapshot: kind is not 'Snapshot'")
        version = body.pop("version", None)
        if version != SNAPSHOT_VERSION:
            raise SnapshotError(f"version is {version!r}; this Espalier reads {SNAPSHOT_VERSION}")
        try:
            return _SNAPSHOT.validate_python(body)
        except ValidationError as error:
            raise SnapshotError(first_fault(error)) from error


_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
