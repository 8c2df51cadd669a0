"""Where the workers of a plan are, may be and will be, and which pods of others are served.

Served are pods that wait for GPUs, of a limited number of kinds. Each kind costs a look at all groups of nodes, and a
kind that names nodes makes groups of them. Whoever may create pods could make the planner slow with thousands of kinds.
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
"""Pods of further kinds are left to kube-scheduler, which may bind them to free GPUs: none are kept or reclaimed for
them."""
N = TypeVar("N")


class WorkerIndex:
    """Who is where. Workers that terminate are on a list of their own."""

    def __init__(self, workers: Collection[Worker]) -> None:
        self.bound: dict[str | None, dict[int, str]] = defaultdict(dict)
        """By job: the nodes of its live base workers that are bound to one."""
        self.gated: dict[str | None, set[int]] = defaultdict(set)
        """By job: its base workers that want no GPUs yet."""
        self.extras: dict[str | None, list[Worker]] = defaultdict(list)
        """By job: its live extra workers."""
        self.foreign: list[Worker] = []
        """Pods of others that wait for GPUs."""
        self.queued: list[Worker] = []
        """Workloads that wait for a queueing system."""
        self.rivals: set[str | None] = set()
        """Nodes where workers of another Espalier are, or will be."""
        self.unbound: list[Worker] = []
        """Workers that wait for the node that was chosen for them."""
        self.terminating: list[Worker] = []
        self.holders: set[str | None] = set(map(_JOB, workers))
        """Jobs that have workers of any kind, and None where others have."""
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
        """Return whether base workers of a job have GPUs, and one that has none does not wait for its first."""
        waits = {worker.index for worker in self.unbound if worker.job == job and worker.role is _BASE}
        missing = set(indexes) - self.bound[job].keys() - self.gated[job] - waits
        return bool(self.bound[job] and missing)

    def leaving_times(self) -> Iterator[float]:
        """Yield the times from which on workers that terminate are counted on, or no more."""
        for worker in self.terminating:
            yield from (time for time in worker.leaves_between() if time < math.inf)

    def ending(self, leaving: Collection[str]) -> Counter[str | None]:
        """Return by node the GPUs of workers that terminate, of those named in `leaving`."""
        found: Counter[str | None] = Counter()
        for worker in self.terminating:
            if worker.name in leaving:
                found[worker.node] += worker.gpus
        return found


def served(pods: Iterable[Worker], most: int = MOST_KINDS) -> list[Worker]:
    """Return the `pods` (each waits for GPUs) of at most `most` kinds; all namespaces have equally many of these.

    Pods are of one kind if nothing tells them apart but their name: type of GPU, GPUs and constraints.
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
    """What each job asks of nodes in turn: the best first. Nodes that it must not use yet are in none."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        """Read the blames of the jobs."""
        by_all = frozenset(each.node for each in snapshot.avoided if now < each.until)
        self._snapshot = snapshot
        self._own: dict[str, tuple[Constraints, ...]] = {}
        self._barred_until: dict[str, float] = {}
        self.asked: set[Constraints] = set()
        """All that is asked in addition to what jobs ask themselves."""
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

    def turning_points(self) -> Iterator[float]:
        """Yield the times at which a node is no longer avoided, or barred; some of them are past."""
        yield from (each.until for each in self._snapshot.avoided)
        for blame in (blame for job in self._snapshot.jobs if not job.finished for blame in job.blames):
            yield from (blame.avoided_until, blame.barred_until)

    def levels(self, job: JobFacts) -> tuple[Constraints, ...]:
        """Return what a job asks of nodes: without those that it avoids; if there are none, without those that have
        refused its workers, and then without barred ones alone.
        """
        return self._own.get(job.key, (job.terms.constraints,))

    def barred_until(self, job: JobFacts) -> float | None:
        """Return until when the first of a job's nodes is barred; None: none is."""
        return self._barred_until.get(job.key)


def _nodes(blames: Iterable[Blame]) -> frozenset[str]:
    return frozenset(blame.node for blame in blames)


def _without(constraints: Constraints, nodes: Collection[str]) -> Constraints:
    """Return `constraints` of a pod that must not be bound to `nodes`."""
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
        """`prior` is what the last plan chose for workers that may not be there yet."""
        self._capacity, self._worker_index, self._prior, self._avoidance = capacity, worker_index, prior, avoidance
        self._pins_extra = pins_extra
        self._node_pools: dict[str, NodePool] = {}
        """By admitted job: where its workers may run."""
        self._nodes: dict[str, set[str]] = {}
        """By job: where its workers are, or will be."""
        self.pinned: dict[str | None, dict[int, tuple[Supply, str]]] = defaultdict(dict)
        """By job: its base workers that wait for the node that was chosen for them; when they get its GPUs, and it."""
        self.moved: dict[str, list[Worker]] = defaultdict(list)
        """By job: its workers that are not bound, and whose node has no room for them."""
        self.base_nodes: dict[str, dict[int, str | None]] = defaultdict(dict)
        self.extra_nodes: dict[str, list[str | None]] = defaultdict(list)
        """By job: where its workers that are still to be made will run."""
        self.lent_nodes: dict[str, list[str]] = defaultdict(list)
        """By job: the nodes of the workers that this plan lends it."""

    def hold_pinned(self, nodes: Collection[Node], jobs: Iterable[JobFacts], leaving: set[str]) -> None:
        """Keep GPUs for workers that are not bound, on the nodes that were chosen for them.

        Our own first: where another Espalier has chosen the same node, kube-scheduler decides who is bound. A worker of
        another one is bound as soon as pods that terminate there leave room for it; what our jobs are only asked to
        give back, it does not count on.
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
        """Keep GPUs for extra workers that a job was granted and that are not seen; count them among its own."""
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
        """Return where the workers of an admitted job may run."""
        known = self._node_pools.get(job.key)
        if known is None:
            known = self._node_pools[job.key] = self._capacity.node_pool(job.gpu_type or "", job.terms.constraints)
        return known

    def levels(self, job: JobFacts, gpu_types: Iterable[str]) -> Iterator[list[NodePool]]:
        """Yield where new workers of a job may run, by type of GPU: the node pools that it prefers, and then others."""
        for constraints in self._avoidance.levels(job):
            yield [self._capacity.node_pool(gpu_type, constraints) for gpu_type in gpu_types]

    def node_pool_on(self, job: JobFacts, gpu_type: str) -> NodePool | None:
        """Return where a running job may run on another type of GPU, whatever its quota."""
        terms = job.terms
        if terms.gpu_type not in (None, gpu_type):
            return None
        node_pools = self.large_enough(gpu_type, terms.constraints, terms.gpus_per_worker, terms.min_replicas)
        return next(iter(node_pools), None)

    def node_pools(self, gpu_type: str | None, constraints: Constraints | None) -> list[NodePool]:
        """Return where a pod may run that may wait for `gpu_type` alone, or for any; by type."""
        types = self._capacity.gpu_types if gpu_type is None else [gpu_type]
        return [node_pool for name in types if (node_pool := self._capacity.node_pool(name, constraints)).groups]

    def large_enough(
        self, gpu_type: str | None, constraints: Constraints | None, gpus: int, workers: int
    ) -> list[NodePool]:
        """Return the node pools where `workers` of `gpus` each would fit if nobody else ran there."""
        node_pools = self.node_pools(gpu_type, constraints)
        return [node_pool for node_pool in node_pools if self._capacity.could_ever_hold(node_pool, gpus, workers)]

    def choosiest_first(self, jobs: Iterable[JobFacts]) -> list[JobFacts]:
        """Return `jobs` ordered by how few nodes admit them: GPUs are not kept for others where they need them."""
        return sorted(jobs, key=lambda job: len(self.node_pool(job).groups))

    def chosen_before(self, job: JobFacts, index: int) -> str | None:
        """Return the node that the last plan chose for a base worker."""
        return self._prior.get(job.key, NOWHERE).base.get(index)

    def placed(self, job: JobFacts, mark: int) -> list[str | None]:
        """Return the nodes that were chosen for workers of `job` since `mark`."""
        return [node if job.pinned else None for node in self._capacity.placed_since(mark)]

    def near(self, job: JobFacts) -> set[str]:
        """Return the nodes to which further workers of an admitted job should be close."""
        known = self._nodes.get(job.key)
        if known is None:
            extra = [worker.node for worker in self._worker_index.extras[job.key]]
            nodes = {*self._worker_index.bound[job.key].values(), *self.base_nodes[job.key].values(), *extra}
            known = self._nodes[job.key] = {node for node in nodes if node is not None}
        return known

    def wished(self, job: JobFacts, nodes: Sequence[str]) -> list[str]:
        """Return those of the `nodes` wished for a running job where it has no worker, one for each."""
        extra = (worker.node for worker in self._worker_index.extras[job.key])
        held = [*self.base_holding(job).nodes, *filter(None, extra), *self.lent_nodes[job.key]]
        return _less(nodes, held)

    def base_holding(self, job: JobFacts) -> HeldGpus:
        """Return what the base workers of a running job hold."""
        waiting = (node for _, node in self.pinned[job.key].values())
        nodes = [
            *self._worker_index.bound[job.key].values(),
            *waiting,
            *filter(None, self.base_nodes[job.key].values()),
        ]
        resources = ResourceVector(job.terms.gpus_per_worker, job.terms.constraints.requests)
        return HeldGpus(job.gpu_type or "", nodes, resources)

    def chosen(self) -> dict[str, Placement]:
        """Return by job the nodes of its workers that are to be made, or made again."""
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
    """Keep GPUs in `capacity` for what `job` was granted and is not bound; return that as workers of where it will be.

    Those are the unbound ones of `seen` (the job's live extra workers), and while `promise` holds those that are not
    to be seen at all, in the first of `node_pools` that has room; there on the nodes `chosen` for them before if these
    have room. Workers from index `kept` up are being
    given back: they are counted until they are gone, and are not in the answer. Where there is no room for one it is
    left to be bound, or its promise to expire.
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
    """Return `nodes` less those of `without`, one for each."""
    return list((Counter(nodes) - Counter(without)).elements())
