"""Nodes of workers, present, possible and chosen, and the foreign pods that are served.

Pods of a limited number of kinds that wait for GPUs are served. Each kind costs a search of all groups of nodes, and a
kind that names nodes makes groups of them: anyone who may create pods could slow the planner with thousands of kinds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeVar

from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import (
    NOWHERE,
    Blame,
    JobFacts,
    Node,
    Placement,
    Promise,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.constraints import Constraints, NodeSelectorRequirement, NodeSelectorTerm
from espalier_operator.planner.reservations import HeldGpus

_BASE, _EXTRA, _GATED, _TERMINATING = WorkerRole.BASE, WorkerRole.EXTRA, WorkerState.GATED, WorkerState.TERMINATING
_JOB: Final = attrgetter("job")
MOST_KINDS: Final = 100
"""Maximum number of served kinds of foreign pods. Others are left to kube-scheduler, which may bind them to free GPUs:
none are kept or reclaimed for them."""
N = TypeVar("N")


class WorkerIndex:
    """Index of workers by state and node. Terminating workers are on a list of their own."""

    def __init__(self, workers: Collection[Worker]) -> None:
        self.bound: dict[str | None, dict[int, str]] = defaultdict(dict)
        """Nodes of the live bound base workers, by job and index."""
        self.gated: dict[str | None, set[int]] = defaultdict(set)
        """Indices of base workers with scheduling gates, by job."""
        self.extras: dict[str | None, list[Worker]] = defaultdict(list)
        """Live extra workers by job."""
        self.foreign: list[Worker] = []
        """Foreign pods that wait for GPUs."""
        self.queued: list[Worker] = []
        """Workloads that wait for a queueing system."""
        self.rivals: set[str | None] = set()
        """Present and chosen nodes of another Espalier's workers."""
        self.unbound: list[Worker] = []
        """Workers that wait for their chosen node."""
        self.terminating: list[Worker] = []
        self.holders: set[str | None] = set(map(_JOB, workers))
        """Jobs that have workers of any kind, and None if there are foreign ones."""
        bound, extras = self.bound, self.extras
        for worker in workers:  # tens of thousands
            role, node = worker.role, worker.node
            if worker.state is _TERMINATING:
                self.terminating.append(worker)
            elif role is _BASE:
                if node is not None:
                    bound[worker.job][worker.index] = node
                elif worker.state is _GATED:
                    self.gated[worker.job].add(worker.index)
                elif worker.pinned_to is not None:
                    self.unbound.append(worker)
            elif role is _EXTRA:
                extras[worker.job].append(worker)
                if node is None and worker.pinned_to is not None:
                    self.unbound.append(worker)
            elif worker.queued:
                self.queued.append(worker)
            elif node is None:
                (self.foreign if worker.pinned_to is None else self.unbound).append(worker)
            if worker.is_rival:
                self.rivals.add(node or worker.pinned_to)
        self.foreign, self.queued = served(self.foreign), served(self.queued)

    def has_lost_base(self, job: str, indexes: Iterable[int]) -> bool:
        """Return whether some base workers of a job have GPUs and one without any does not wait for its first."""
        waits = {worker.index for worker in self.unbound if worker.job == job and worker.role is _BASE}
        missing = set(indexes) - self.bound[job].keys() - self.gated[job] - waits
        return bool(self.bound[job] and missing)

    def leaving_times(self) -> Iterator[float]:
        """Yield the times at which the GPUs of terminating workers begin or cease to count as about to be free."""
        for worker in self.terminating:
            yield from (time for time in worker.leaves_between() if time < math.inf)

    def ending(self, leaving: Collection[str]) -> Counter[str | None]:
        """Return the GPUs of terminating workers named in `leaving`, by node."""
        found: Counter[str | None] = Counter()
        for worker in self.terminating:
            if worker.name in leaving:
                found[worker.node] += worker.gpus
        return found


def served(pods: Iterable[Worker], most: int = MOST_KINDS) -> list[Worker]:
    """Return the waiting `pods` of at most `most` kinds, divided equally among namespaces.

    Pods are of one kind if their GPU type, GPUs and constraints are equal.
    """
    pods = list(pods)
    kinds: dict[str, dict[object, None]] = defaultdict(dict)  # of each namespace, in the order of its pods
    for pod in pods:
        kinds[_namespace(pod)][_kind(pod)] = None
    if sum(map(len, kinds.values())) <= most:
        return pods
    ranked = [(rank, namespace, kind) for namespace, found in sorted(kinds.items()) for rank, kind in enumerate(found)]
    ranked.sort(key=lambda each: each[:2])
    chosen = {(namespace, kind) for _, namespace, kind in ranked[:most]}
    return [pod for pod in pods if (_namespace(pod), _kind(pod)) in chosen]


def _namespace(pod: Worker) -> str:
    return pod.name.partition("/")[0]


def _kind(pod: Worker) -> object:
    return pod.gpu_type, pod.gpus, pod.constraints


class Avoidance:
    """Levels of constraints of each job, the best nodes first. Barred nodes are in no level."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        """Read the blames of the jobs."""
        by_all = frozenset(each.node for each in snapshot.avoided if now < each.until)
        self._snapshot = snapshot
        self._own: dict[str, tuple[Constraints, ...]] = {}
        self._barred_until: dict[str, float] = {}
        self.asked: set[Constraints] = set()
        """All constraints in addition to the jobs' own."""
        for job in snapshot.jobs:
            if job.finished or not (by_all or job.blames):
                continue
            blames = [blame for blame in job.blames if now < blame.avoided_until]
            barred = [blame for blame in job.blames if now < blame.barred_until]
            refusing = (blame for blame in blames if blame.refused)
            nodes = by_all.union(_nodes(blames)), by_all.union(_nodes(refusing)), _nodes(barred)
            levels = [_without(job.terms.constraints, each) for each in nodes]
            self._own[job.key] = tuple(dict.fromkeys(levels))
            self.asked.update(levels)
            if barred:
                self._barred_until[job.key] = min(blame.barred_until for blame in barred)
        self._unneeded = frozenset(node.host for node in snapshot.nodes if node.unneeded)
        for job in snapshot.jobs if self._unneeded else ():
            self.asked.update(self.levels(job, WorkerRole.EXTRA))

    def turning_points(self) -> Iterator[float]:
        """Yield the times at which a node is no longer avoided or barred; some are past."""
        yield from (each.until for each in self._snapshot.avoided)
        for blame in (blame for job in self._snapshot.jobs if not job.finished for blame in job.blames):
            yield from (blame.avoided_until, blame.barred_until)

    def levels(self, job: JobFacts, role: WorkerRole = WorkerRole.BASE) -> tuple[Constraints, ...]:
        """Return the constraints to try in order: without avoided nodes, without nodes that have refused the job's
        workers, and without barred ones only.
        """
        levels = self._own.get(job.key, (job.terms.constraints,))
        if role is WorkerRole.EXTRA and self._unneeded:  # they would keep unneeded nodes
            return tuple(_without(level, self._unneeded) for level in levels)
        return levels

    def barred_until(self, job: JobFacts) -> float | None:
        """Return the end of the first bar on one of a job's nodes; None: none is barred."""
        return self._barred_until.get(job.key)


def _nodes(blames: Iterable[Blame]) -> frozenset[str]:
    return frozenset(blame.node for blame in blames)


def _without(constraints: Constraints, nodes: Collection[str]) -> Constraints:
    """Return `constraints` that also exclude `nodes`."""
    if not nodes:
        return constraints
    others = NodeSelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "NotIn", tuple(sorted(nodes))),))
    return replace(constraints, volumes=(*constraints.volumes, (others,)))


class WorkerPlacer:
    """The nodes of one cycle's workers."""

    def __init__(
        self,
        capacity: Capacity,
        worker_index: WorkerIndex,
        prior: Mapping[str, Placement],
        avoidance: Avoidance,
        pins_extra: bool = False,
    ) -> None:
        """Take `prior`, the last plan's choice for workers that may not exist yet."""
        self._capacity, self._worker_index, self._prior, self._avoidance = capacity, worker_index, prior, avoidance
        self._pins_extra = pins_extra
        self._node_pools: dict[str, NodePool] = {}
        """Node pool of each admitted job."""
        self._nodes: dict[str, set[str]] = {}
        """Present and chosen nodes of the workers of each job."""
        self.pinned: dict[str | None, dict[int, tuple[Supply, str]]] = defaultdict(dict)
        """(When it gets its GPUs, chosen node) of each base worker that waits for its node, by job and index."""
        self.moved: dict[str, list[Worker]] = defaultdict(list)
        """Unbound workers whose node has no room for them, by job."""
        self.base_nodes: dict[str, dict[int, str | None]] = defaultdict(dict)
        self.extra_nodes: dict[str, list[str | None]] = defaultdict(list)
        """Nodes for extra workers that must be created, by job."""
        self.lent_nodes: dict[str, list[str]] = defaultdict(list)
        """Nodes of the workers that this plan lends, by job."""

    def hold_pinned(self, nodes: Collection[Node], jobs: Iterable[JobFacts], leaving: set[str]) -> None:
        """Keep GPUs for unbound workers on their chosen nodes.

        Our own come first: where another Espalier has chosen the same node, kube-scheduler decides. A worker of another
        Espalier is bound as soon as terminating pods leave room for it; it does not rely on GPUs that our jobs are only
        requested to give back.
        """
        machines = {node.name: node for node in nodes} if self._worker_index.rivals else {}
        ending = self._worker_index.ending(leaving) if self._worker_index.rivals else Counter[str | None]()
        known = {job.key: job for job in jobs}
        for worker in sorted(self._worker_index.unbound, key=lambda worker: worker.is_rival):
            job = known.get(worker.job or "")
            if job is None:
                chosen = machines.get(worker.pinned_to or "")
                if chosen is not None and chosen.admits(worker.constraints):
                    requests, given = worker.constraints.requests, ending[chosen.name]
                    if self._capacity.reserve(chosen.name, worker.gpus, requests, ending=given) is Supply.LATER:
                        ending[chosen.name] -= worker.gpus
                continue
            stays = worker.name not in leaving
            supply = self._capacity.hold_at(self.node_pool(job), worker.pinned_to, worker.gpus, stays=stays)
            if supply is Supply.NEVER or worker.pinned_to is None:
                self.moved[job.key].append(worker)
            elif worker.role is WorkerRole.BASE:
                self.pinned[job.key][worker.index] = supply, worker.pinned_to
            else:
                own = self._worker_index.extras[job.key]
                own[own.index(worker)] = replace(worker, node=worker.pinned_to)

    def hold_promised(self, job: JobFacts, promise: Promise | None, kept: int, now: float) -> None:
        """Keep GPUs for granted extra workers that are not seen, and add them to the job's workers."""
        own = self._worker_index.extras[job.key]
        chosen = _less(self._prior.get(job.key, NOWHERE).extra, (worker.node for worker in own))
        preferred = (node_pool for (node_pool,) in self.levels(job, [job.gpu_type or ""]))
        node_pools = [*dict.fromkeys((*preferred, self.node_pool(job)))]
        promised = _hold_promised(self._capacity, job, node_pools, promise, own, kept, now, chosen)
        self.lend(job, (worker.node for worker in promised))
        own += promised

    def lend(self, job: JobFacts, nodes: Iterable[str | None]) -> None:
        """Choose the nodes of extra workers to be made. Unpinned, they would ask an autoscaler for nodes."""
        self.extra_nodes[job.key] += [node if job.pinned or self._pins_extra else None for node in nodes]

    def node_pool(self, job: JobFacts) -> NodePool:
        """Return the node pool of an admitted job."""
        known = self._node_pools.get(job.key)
        if known is None:
            known = self._node_pools[job.key] = self._capacity.node_pool(job.gpu_type or "", job.terms.constraints)
        return known

    def levels(
        self, job: JobFacts, gpu_types: Iterable[str], role: WorkerRole = WorkerRole.BASE
    ) -> Iterator[list[NodePool]]:
        """Yield the node pools for new workers of a job, one per type of GPU: preferred ones first, then others."""
        for constraints in self._avoidance.levels(job, role):
            yield [self._capacity.node_pool(gpu_type, constraints) for gpu_type in gpu_types]

    def node_pool_on(self, job: JobFacts, gpu_type: str) -> NodePool | None:
        """Return the node pool of a running job on another GPU type, regardless of quota; None where none fits."""
        terms = job.terms
        if terms.gpu_type not in (None, gpu_type):
            return None
        node_pools = self.large_enough(gpu_type, terms.constraints, terms.gpus_per_worker, terms.min_replicas)
        return next(iter(node_pools), None)

    def node_pools(self, gpu_type: str | None, constraints: Constraints | None) -> list[NodePool]:
        """Return the node pools of a pod, one per type of GPU; `gpu_type` None: of any type."""
        types = self._capacity.gpu_types if gpu_type is None else [gpu_type]
        return [node_pool for name in types if (node_pool := self._capacity.node_pool(name, constraints)).groups]

    def large_enough(
        self, gpu_type: str | None, constraints: Constraints | None, gpus: int, workers: int
    ) -> list[NodePool]:
        """Return the node pools where `workers` of `gpus` each would fit on empty nodes."""
        node_pools = self.node_pools(gpu_type, constraints)
        return [node_pool for node_pool in node_pools if self._capacity.could_ever_hold(node_pool, gpus, workers)]

    def choosiest_first(self, jobs: Iterable[JobFacts]) -> list[JobFacts]:
        """Return `jobs` by number of node groups, fewest first, so that others do not take the GPUs that they need."""
        return sorted(jobs, key=lambda job: len(self.node_pool(job).groups))

    def chosen_before(self, job: JobFacts, index: int) -> str | None:
        """Return the last plan's node for a base worker."""
        return self._prior.get(job.key, NOWHERE).base.get(index)

    def placed(self, job: JobFacts, mark: int) -> list[str | None]:
        """Return the nodes chosen for workers of `job` since `mark`."""
        return [node if job.pinned else None for node in self._capacity.placed_since(mark)]

    def near(self, job: JobFacts) -> set[str]:
        """Return the nodes near which further workers of an admitted job should run."""
        known = self._nodes.get(job.key)
        if known is None:
            extra = [worker.node for worker in self._worker_index.extras[job.key]]
            nodes = {*self._worker_index.bound[job.key].values(), *self.base_nodes[job.key].values(), *extra}
            known = self._nodes[job.key] = {node for node in nodes if node is not None}
        return known

    def wished(self, job: JobFacts, nodes: Sequence[str]) -> list[str]:
        """Return the preferred `nodes` of a running job less one for each of its workers there."""
        extra = (worker.node for worker in self._worker_index.extras[job.key])
        held = [*self.base_holding(job).nodes, *filter(None, extra), *self.lent_nodes[job.key]]
        return _less(nodes, held)

    def base_holding(self, job: JobFacts) -> HeldGpus:
        """Return the holding of the base workers of a running job."""
        waiting = (node for _, node in self.pinned[job.key].values())
        nodes = [
            *self._worker_index.bound[job.key].values(),
            *waiting,
            *filter(None, self.base_nodes[job.key].values()),
        ]
        resources = ResourceVector(job.terms.gpus_per_worker, job.terms.constraints.requests)
        return HeldGpus(job.gpu_type or "", nodes, resources)

    def chosen(self) -> dict[str, Placement]:
        """Return the placement of workers to create or recreate, by job."""
        found = {}
        for key in self.base_nodes.keys() | self.extra_nodes.keys() | self.moved.keys():
            moved = frozenset(worker.name for worker in self.moved[key] if worker.role is WorkerRole.EXTRA)
            placement = Placement(base=self.base_nodes[key], extra=tuple(self.extra_nodes[key]), moved=moved)
            if placement != NOWHERE:
                found[key] = placement
        return found


def _hold_promised(
    capacity: Capacity,
    job: JobFacts,
    node_pools: Sequence[NodePool],
    promise: Promise | None,
    seen: Sequence[Worker],
    kept: int,
    now: float,
    chosen: Sequence[str | None] = (),
) -> list[Worker]:
    """Keep GPUs in `capacity` for granted, unbound extra workers of `job`; return these as workers on their nodes.

    They are the unbound ones of `seen` (the job's live extra workers) and, while `promise` holds, those not seen at
    all. They go to the first of `node_pools` that has room, on the nodes `chosen` before if these have room. Workers
    from index `kept` up are being given back: they are counted until they are gone, and are not in the result. A
    worker without room is left to be bound, or its promise to expire.
    """
    bound = {worker.index for worker in seen if worker.node is not None}
    due = job.extra if promise is not None and now < promise.expires_at else len(seen)
    unbound = [index for index in range(job.extra) if index not in bound][: max(0, due - len(bound))]
    promised = []
    gpus, before = job.terms.gpus_per_worker, [*chosen]
    for index in unbound:
        prior, node = before.pop() if before and index < kept else None, None
        for node_pool in node_pools:
            if capacity.hold_at(node_pool, prior, gpus) is not Supply.NEVER:
                node = prior
            else:
                node = capacity.hold(node_pool, gpus) if index < kept else capacity.occupy(node_pool, gpus)
            if node is not None:
                break
        if node is not None and index < kept:
            promised.append(
                Worker(
                    name=f"{job.key} extra {index}, promised",
                    job=job.key,
                    role=WorkerRole.EXTRA,
                    index=index,
                    node=node,
                    gpus=gpus,
                    state=WorkerState.PENDING,
                )
            )
    return promised


def _less(nodes: Iterable[N], without: Iterable[N]) -> list[N]:
    """Return the multiset difference of `nodes` and `without`."""
    return list((Counter(nodes) - Counter(without)).elements())
