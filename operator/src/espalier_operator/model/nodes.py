"""Nodes and workers as the scheduler sees them, and the nodes that refuse or fail workers. Pure.

kube-scheduler knows nothing of the latter: a node whose device plugin is broken is ready and has free GPUs. A job
avoids such a node while others have GPUs for it, for half an hour, and twice as long each time it fails again. All jobs
avoid a node that failed several jobs, other than those that fail wherever they start.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from espalier_core.types import environment
from espalier_core.types.status import MAX_AVOIDED_NODES
from espalier_operator.clock import doubled
from espalier_operator.model.constraints import ANYWHERE, Constraints, NodeSelectorRequirement, Taint

LEAVING_SECONDS: Final = 600.0
"""GPUs of a worker that terminates are waited for if its grace period ends within this time."""
HANGING_SECONDS: Final = 60.0
"""So long after the end of its grace period, a worker that terminates is expected to be gone."""
_AVOIDED: Final = 1800.0, 6 * 3600.0
"""For how long a node is avoided after it failed a job once, and at most, in seconds."""
_BARRED: Final = 10.0, 1800.0
"""For how long a node is not tried again, though no other has GPUs for the job."""
_SEVERAL: Final = 2
"""Jobs that a node must have failed until all avoid it."""


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
    """What it has of resources other than GPUs (`constraints.Amounts`). One that is not named is not limited, unless it
    is special (`headroom`) and other nodes name it: then a node that names others has none."""
    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What pods that are nobody's worker request of that."""
    departing: int = 0
    """GPUs of `allocatable` that are announced to go at `departs_at`; more if the node goes and all have failed."""
    departs_at: float | None = None
    unhealthy: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By resource: devices that it has and that are not allocatable."""
    fell: tuple[tuple[float, int], ...] = ()
    """When it lately had fewer GPUs than before, and how many it had before that."""

    def missing(self, since: float) -> int:
        """Return the GPUs that it has lost after `since`: a device plugin that restarts has none for seconds.

        None where all are announced to go: these do not return.
        """
        had = max((gpus for at, gpus in self.fell if at > since), default=0)
        return 0 if self.is_leaving else max(0, had - self.allocatable)

    @property
    def takes_pods(self) -> bool:
        """Whether new pods may be bound to it, as far as its state decides."""
        return self.ready and self.schedulable

    @property
    def is_leaving(self) -> bool:
        """Whether all its GPUs are announced to go."""
        return 0 < self.departing >= self.allocatable

    @property
    def offered(self) -> int:
        """Its GPUs without those that are announced to go."""
        return max(0, self.allocatable - self.departing)

    @property
    def host(self) -> str:
        """The name of the machine."""
        return host_of(self.name)

    def admits(self, constraints: Constraints) -> bool:
        """Return whether a pod with `constraints` may be bound to it, as far as its labels and taints decide."""
        return constraints.admit(self.host, self.labels, self.taints)


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
    scopes: tuple[NodeSelectorRequirement, ...] = ()
    """It holds for pods that meet all of these alone; the keys are names of scopes, as in `Terms.quota_scopes`."""

    def covers(self, scopes: tuple[tuple[str, str], ...]) -> bool:
        """Return whether it holds for pods in these scopes."""
        known = dict(scopes) if self.scopes else {}
        return all(scope.takes(known.get(scope.key)) for scope in self.scopes)


class WorkerRole(StrEnum):
    """What a worker is to the scheduler."""

    BASE = environment.Role.BASE.value
    EXTRA = environment.Role.EXTRA.value
    FOREIGN = "foreign"
    """A pod with GPUs that belongs to no job of this operator."""

    @classmethod
    def _missing_(cls, value: object) -> WorkerRole | None:
        return cls.FOREIGN if value == "alien" else None  # as earlier snapshots call it


class WorkerState(StrEnum):
    """The stage of a worker. In every stage it holds the GPUs of the node that it is bound to."""

    GATED = "gated"
    """It has scheduling gates: it wants no GPUs yet."""
    PENDING = "pending"
    RUNNING = "running"
    TERMINATING = "terminating"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process or pod that holds GPUs, or waits for them while `node` is None."""

    name: str
    job: str | None
    """Key of its job, None for a foreign worker."""
    role: WorkerRole
    index: int = 0
    """Index among the job's workers of this role; extra workers are removed from the highest index down."""
    node: str | None
    gpus: int
    state: WorkerState
    gpu_type: str | None = None
    """The type of GPU that a foreign worker without a node requires."""
    constraints: Constraints = ANYWHERE
    """What a foreign worker without a node asks of one."""
    barred_nodes: int = 0
    """How many nodes with GPUs for it kube-scheduler refuses for other reasons than `constraints`: affinity to other
    pods, volumes, ports."""
    pinned_to: str | None = None
    """The only node that it may be bound to, chosen by an earlier plan; None: kube-scheduler chooses."""
    is_rival: bool = False
    """It is foreign, and a worker of another Espalier's job. Pinned and not bound, it keeps the GPUs of its node from
    new workers, those too that pods give back which terminate there; and is no reason to reclaim any."""
    broken: bool = False
    """One of its GPUs is known to have failed: of extra workers it is the first to be taken where GPUs are lost."""
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
class Blame:
    """A node that refused a worker of a job, failed its start, or ended it."""

    node: str
    """Name of the machine."""
    at: float
    """When it last did."""
    times: int = 1
    """How often in a row."""
    message: str = ""
    """The last cause, for people."""
    refused: bool = False
    """By the node's own word; otherwise the worker failed there, and its program may be the cause."""
    elsewhere: bool = False
    """The job has trained on other nodes since: it is not the cause itself."""
    loan: int = 0
    """The newest loan of extra workers that it failed."""

    @property
    def avoided_until(self) -> float:
        """Until when the job prefers other nodes."""
        first, longest = _AVOIDED
        return self.at + doubled(first, self.times - 1, longest)

    @property
    def barred_until(self) -> float:
        """Until when the job rather waits than tries it again. A worker that failed has delays of its own."""
        first, longest = _BARRED
        return self.at + (doubled(first, self.times - 1, longest) if self.refused else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """A node that all jobs avoid."""

    node: str
    jobs: int
    """How many jobs it failed."""
    until: float
    message: str = ""


def blaming(blames: Iterable[Blame], new: Blame) -> tuple[Blame, ...]:
    """Return the blames of a job with a new one, counted from the last one of its node unless that is long ago."""
    others, times, loan = [], 1, new.loan
    for blame in blames:
        if blame.node != new.node:
            others.append(blame)
            continue
        loan = max(loan, blame.loan)
        if new.at < blame.at + 2.0 * (blame.avoided_until - blame.at):
            times += blame.times
    return (*others, replace(new, times=times, loan=loan))[-MAX_AVOIDED_NODES:]


def trained_on(blames: Iterable[Blame], nodes: Collection[str]) -> tuple[Blame, ...]:
    """Return the blames of a job that has trained for a while on `nodes`: others alone fail its base workers."""
    kept = (blame for blame in blames if blame.loan or blame.node not in nodes)
    return tuple(blame if blame.node in nodes else replace(blame, elsewhere=True) for blame in kept)


def avoided_by_all(records: Iterable[tuple[Blame, ...]], now: float) -> tuple[Avoided, ...]:
    """Return the nodes that failed several jobs, by name, from the blames of each job.

    A job whose workers several nodes refuse or fail, and that has trained on none since, may be the cause itself.
    """
    failed: dict[str, list[Blame]] = defaultdict(list)
    for blames in records:
        standing = [blame for blame in blames if now < blame.avoided_until]
        for blame in standing:
            if blame.elsewhere or (blame.refused and len(standing) == 1):
                failed[blame.node].append(blame)
    return tuple(_avoided(node, found) for node, found in sorted(failed.items()) if len(found) >= _SEVERAL)


def _avoided(node: str, blames: list[Blame]) -> Avoided:
    until = sorted((blame.avoided_until for blame in blames), reverse=True)[_SEVERAL - 1]
    return Avoided(node=node, jobs=len(blames), until=until, message=max(blames, key=lambda blame: blame.at).message)
