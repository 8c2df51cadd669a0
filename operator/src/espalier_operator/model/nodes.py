"""Nodes and workers as the scheduler sees them, and records of nodes that refuse or fail workers. Pure.

kube-scheduler keeps no such records: a node whose device plugin is broken is ready and has free GPUs. A job avoids
such a node while others have GPUs for it, for half an hour, and twice as long each time it fails again. All jobs avoid
a node that failed several jobs, not counting jobs that fail wherever they start.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from espalier_core.types import environment
from espalier_core.types.status import MAX_AVOIDED_NODES
from espalier_operator.clock import doubled
from espalier_operator.model.constraints import ANYWHERE, Constraints, NodeSelectorRequirement, Taint

LEAVING_SECONDS: Final = 600.0
"""Longest remaining grace period of a terminating worker whose GPUs are waited for."""
HANGING_SECONDS: Final = 60.0
"""Time after the end of its grace period by which a terminating worker is expected to be gone."""
_AVOIDED: Final = 1800.0, 6 * 3600.0
"""Seconds for which a node is avoided after it failed a job once, and at most."""
_BARRED: Final = 10.0, 1800.0
"""Seconds for which a node is not tried again though no other has GPUs for the job: once, and at most."""
_SEVERAL: Final = 2
"""Number of failed jobs from which all jobs avoid a node."""


def host_of(node: str) -> str:
    """Return the name of the machine of a node."""
    return node.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with GPUs of one type; a machine with several kinds of GPUs is one node for each kind."""

    name: str
    """Name of the machine; for a further kind of GPUs with a slash and their resource."""
    gpu_type: str
    allocatable: int
    ready: bool = True
    silent_since: float | None = None
    """Time since which it does not report; None while it does, or if unknown."""
    schedulable: bool = True
    """It takes new pods that tolerate its taints."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[Taint, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Allocatable resources other than GPUs (`constraints.Amounts`). A resource that is not named is unlimited, unless
    it is special (`headroom`) and other nodes name it: then a node that names any resources has none of it."""
    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Requests of those resources by pods that are not workers."""
    departing: int = 0
    """Number of `allocatable` GPUs announced to go at `departs_at`; more if the node goes and all have failed."""
    departs_at: float | None = None
    unneeded: bool = False
    """An autoscaler will remove it, unless base workers or pods of others come: nothing is lent on it."""
    unhealthy: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Number of devices that it has but cannot allocate, by resource."""
    fell: tuple[tuple[float, int], ...] = ()
    """Recent falls of its number of GPUs: (time, GPUs before)."""

    def missing(self, since: float) -> int:
        """Return the number of GPUs that it has lost after `since`: a restarting device plugin has none for seconds.

        It is 0 where all are announced to go, as these do not return.
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
        """The number of its GPUs that are not announced to go."""
        return max(0, self.allocatable - self.departing)

    @property
    def host(self) -> str:
        """The name of the machine."""
        return host_of(self.name)

    def admits(self, constraints: Constraints) -> bool:
        """Return whether a pod with `constraints` may be bound to it, as far as its labels and taints decide."""
        return constraints.admit(self.host, self.labels, self.taints)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one kind that an autoscaler adds when pods wait: capacity that may come."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True
    )

    name: str
    labels: Annotated[Mapping[str, str], Field(min_length=1)] = field(hash=False)
    """Labels of its nodes, and of no others, which the autoscaler knows before a node exists."""
    gpus: Annotated[int, Field(gt=0)]
    """GPUs of a node."""
    max_nodes: Annotated[int, Field(ge=0)]
    """Maximum number of its nodes."""
    gpu_type: str = ""
    """The type of these GPUs."""
    taints: tuple[Taint, ...] = ()

    @property
    def node(self) -> Node:
        """A node as it would be added."""
        return Node(
            name=self.name, gpu_type=self.gpu_type, allocatable=self.gpus, labels=self.labels, taints=self.taints
        )

    def has(self, node: Node) -> bool:
        """Return whether `node` is in the group."""
        return self.labels.items() <= node.labels.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimit:
    """A ResourceQuota's limit on the total requests of its namespace's pods for one resource."""

    namespace: str
    quota: str
    """Name of the ResourceQuota."""
    resource: str
    """Name as in `constraints.Amounts`, or the resource of GPUs."""
    hard: int
    used: int
    scopes: tuple[NodeSelectorRequirement, ...] = ()
    """It applies only to pods that meet all of these; the keys are names of scopes, as in `JobTerms.quota_scopes`."""

    def covers(self, scopes: tuple[tuple[str, str], ...]) -> bool:
        """Return whether the limit applies to pods in these scopes."""
        known = dict(scopes) if self.scopes else {}
        return all(scope.takes(known.get(scope.key)) for scope in self.scopes)


class WorkerRole(StrEnum):
    """The role of a worker for the scheduler."""

    BASE = environment.Role.BASE.value
    EXTRA = environment.Role.EXTRA.value
    FOREIGN = "foreign"
    """A pod with GPUs that belongs to no job of this operator."""

    @classmethod
    def _missing_(cls, value: object) -> WorkerRole | None:
        return cls.FOREIGN if value == "alien" else None  # the name in earlier snapshots


class WorkerState(StrEnum):
    """The stage of a worker. In every stage it holds the GPUs of the node that it is bound to."""

    GATED = "gated"
    """It has scheduling gates and wants no GPUs yet."""
    PENDING = "pending"
    RUNNING = "running"
    TERMINATING = "terminating"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process or pod that holds GPUs, or waits for them while `node` is None."""

    name: str
    job: str | None
    """Key of its job; None for a foreign worker."""
    role: WorkerRole
    index: int = 0
    """Index among the job's workers of this role; extra workers are removed from the highest index down."""
    node: str | None
    gpus: int
    state: WorkerState
    gpu_type: str | None = None
    """GPU type required by a foreign worker without a node."""
    constraints: Constraints = ANYWHERE
    """Constraints of a foreign worker without a node."""
    barred_nodes: int = 0
    """Number of nodes with GPUs for it that kube-scheduler refuses for reasons other than `constraints`: affinity to
    other pods, volumes, ports."""
    pinned_to: str | None = None
    """The only node that it may be bound to, chosen by an earlier plan; None: kube-scheduler chooses."""
    queued: int = 0
    """It stands for so many equal pods of a workload that a queueing system has not admitted: they wait together."""
    is_rival: bool = False
    """It is foreign: a worker of another Espalier's job. While pinned and not bound, it keeps the GPUs of its node from
    new workers, including those of pods that terminate there, and is no reason to reclaim any."""
    broken: bool = False
    """One of its GPUs is known to have failed: where GPUs are lost, broken extra workers are taken first."""
    asked_to_leave: bool = False
    """Somebody asks it to leave its node: as an extra worker it is given back, and a base that allows it moves."""
    leaves_at: float | None = None
    """End of the grace period of a terminating worker; None: unknown, taken as imminent."""
    grace_seconds: float = 0.0
    """Length of that grace period."""

    def leaves_between(self) -> tuple[float, float]:
        """Return the interval in which its GPUs count as about to be free, if it terminates.

        Whoever deletes a pod may choose any grace period, even a year; a pod that exists long after its end hangs.
        """
        if self.leaves_at is None:
            return -math.inf, math.inf
        # The clock of the API server may differ from ours, so a short grace period needs no start.
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
    """Nodes for the workers of a job that must be created, or recreated; None: kube-scheduler chooses the node.

    A worker without an entry is not created yet, as there are no GPUs for it.
    """

    base: Mapping[int, str | None] = field(default_factory=dict)
    """Node of each base worker, by index."""
    extra: tuple[str | None, ...] = ()
    """Nodes of extra workers, in any order, as extra workers are alike."""
    moved: frozenset[str] = frozenset()
    """Names of unbound extra workers whose node has no room for them any more."""


NOWHERE: Final = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A node that refused a worker of a job, failed its start, or ended it."""

    node: str
    """Name of the machine."""
    at: float
    """Time of the last case."""
    times: int = 1
    """Number of cases in a row."""
    message: str = ""
    """The last cause, for people."""
    refused: bool = False
    """The node itself refused or ended the worker; otherwise the worker failed there, maybe by its program's fault."""
    elsewhere: bool = False
    """The job has trained on other nodes since, so it is not the cause itself."""
    loan: int = 0
    """The newest loan whose extra workers the node failed."""

    @property
    def avoided_until(self) -> float:
        """Time until which the job prefers other nodes."""
        first, longest = _AVOIDED
        return self.at + doubled(first, self.times - 1, longest)

    @property
    def barred_until(self) -> float:
        """Time until which the job waits rather than try the node again. A failed worker has delays of its own."""
        first, longest = _BARRED
        return self.at + (doubled(first, self.times - 1, longest) if self.refused else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """A node that all jobs avoid."""

    node: str
    jobs: int
    """Number of jobs that it failed."""
    until: float
    message: str = ""


def blaming(blames: Iterable[Blame], new: Blame) -> tuple[Blame, ...]:
    """Return the blames of a job with a new one, whose count continues its node's last one unless that is old."""
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
    """Return the blames of a job that has trained for a while on `nodes`: only other nodes fail its base workers."""
    kept = (blame for blame in blames if blame.loan or blame.node not in nodes)
    return tuple(blame if blame.node in nodes else replace(blame, elsewhere=True) for blame in kept)


def avoided_by_all(records: Iterable[tuple[Blame, ...]], now: float) -> tuple[Avoided, ...]:
    """Return the nodes that failed several jobs, by name, from the blames of each job.

    A job that several nodes refuse or fail, and that has trained nowhere since, may be the cause itself.
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
