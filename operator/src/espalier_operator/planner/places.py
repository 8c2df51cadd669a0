"""Where the workers of jobs are, may be, and will be; and which nodes jobs avoid because workers failed there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_pools import NodePool
from espalier_operator.model import NOWHERE, Blame, JobFacts, Node, Placement, Promise, Snapshot, Worker, WorkerRole
from espalier_operator.model.constraints import Constraints, NodeSelectorRequirement, NodeSelectorTerm
from espalier_operator.planner.pool import hold_promised
from espalier_operator.planner.reservations import HeldGpus
from espalier_operator.planner.worker_index import WorkerIndex

N = TypeVar("N")


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
        self, capacity: Capacity, worker_index: WorkerIndex, prior: Mapping[str, Placement], avoidance: Avoidance
    ) -> None:
        """`prior` is what the last plan chose for workers that may not be there yet."""
        self._capacity, self._worker_index, self._prior, self._avoidance = capacity, worker_index, prior, avoidance
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
        promised = hold_promised(self._capacity, job, node_pools, promise, own, kept, now, chosen)
        self.extra_nodes[job.key] += [worker.node if job.pinned else None for worker in promised]
        own += promised

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


def _less(nodes: Iterable[N], without: Iterable[N]) -> list[N]:
    """Return `nodes` less those of `without`, one for each."""
    return list((Counter(nodes) - Counter(without)).elements())
