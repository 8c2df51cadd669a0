"""Preemption of running jobs, and their migration between types of GPU, where the policy preempts. Pure.

Only a job that allows it yields, to a job that the policy serves before it, and after `minRuntimeSeconds`. Jobs without
GPUs in the decision yield first, the smallest loss first (`lost_seconds`), then the last in the policy's order, and
only as many as give the waiting job all its workers, or its quota. No job yields GPUs on which a reservation relies, as
an earlier job waits for them.

A job whose share is of another type of GPU moves, if it allows it, once all its workers fit there: on GPUs that are
free, lent, given up by jobs without GPUs in the decision, or given up by others that move. So two jobs can change
places, and more can in a ring. The holdings of queues after all moves count, so queues without spare quota exchange
theirs; none holds more meanwhile, as each job starts again only within the quota given back by then. All jobs that
must stop for a move stop in one plan, each after `minRuntimeSeconds`, with notice; their GPUs are kept for the jobs
that move there (`plan`) until these have saved their checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import runs_until
from espalier_operator.reclaim.extra_workers import lost_seconds

_Move = tuple[JobFacts, NodePool]
"""(Moving job, its new node pool)."""


class Preemptor:
    """The preemption of base GPUs in one plan."""

    def __init__(self, cycle: PlanningCycle, running: Sequence[JobFacts]) -> None:
        """Take the preemptible `running` jobs, in the policy's order."""
        self._cycle, self.running = cycle, running
        self._capacity, self._pool, self._order = cycle.capacity, cycle.pool, cycle.order
        self.exchanging: Set[str] = frozenset()
        """Jobs that change places (`GpuTypeMigrations`) and yield as if each were on the type of its share."""
        self._failed_placements = set[tuple[NodePool, int, int]]()
        """Gangs for which no room could be made, so that none can for the same gang of a later job."""

    def make_room(
        self, taker: JobFacts, node_pools: Iterable[NodePool], kept: Set[str]
    ) -> tuple[NodePool, list[JobFacts]] | None:
        """Reserve room for all base workers of `taker` on the first possible node pool; return it and the jobs to stop.

        No job on the nodes `kept` yields, and none that this plan may not stop.
        """
        gpus, workers = taker.terms.gpus_per_worker, taker.terms.min_replicas
        for node_pool in node_pools:
            if not self._may_take(taker, node_pool.gpu_type) or (node_pool, gpus, workers) in self._failed_placements:
                continue
            yielding = [each for each in self._candidates(taker) if self._helps(each, node_pool, kept)]
            count = self._fewest(taker, node_pool, yielding)
            if count is None:
                self._failed_placements.add((node_pool, gpus, workers))
                continue
            chosen = yielding[:count]
            for each in reversed(chosen[:-1]):  # an earlier one may be on other nodes, or too small
                without = [other for other in chosen if other is not each]
                if self._suffices(taker, node_pool, without):
                    chosen = without
            self.release(chosen)
            self._pool.await_gang(node_pool, gpus, workers)
            return node_pool, chosen
        return None

    def of_queue(self, taker: JobFacts, gpu_type: str, gpus: int) -> list[JobFacts] | None:
        """Return the jobs of the queue of `taker` that must yield `gpus` of the quota to it; None: too few can."""
        found: list[JobFacts] = []
        for holder in self._candidates(taker) if self._may_take(taker, gpu_type) else ():
            if gpus <= 0:
                break
            if holder.terms.queue == taker.terms.queue and holder.gpu_type == gpu_type:
                found.append(holder)
                gpus -= holder.claim.gpus
        return found if gpus <= 0 else None

    def _may_take(self, taker: JobFacts, gpu_type: str) -> bool:
        """Return whether others may stop for `taker` there: not where its share names GPUs on which it cannot run.

        It runs on others that are free. Jobs that stopped for it would come back in the next cycle.
        """
        return self._order.gpu_type(taker) in (None, gpu_type)

    def _candidates(self, taker: JobFacts) -> list[JobFacts]:
        """Return the jobs that may yield to `taker`: jobs without GPUs in the decision by loss, then the last first."""
        found = []
        for holder in reversed(self.running):
            if holder.key in self.exchanging and not self._order.is_earlier(taker, holder):
                continue
            if not self._order.is_before(taker, holder):
                break
            if self._cycle.record.may_stop(holder) and not self._cycle.record.wait(runs_until(holder)):
                found.append(holder)
        # Each of the others, once stopped, takes the GPUs of later ones: two would stop instead of one.
        idle = sorted((each for each in found if self._order.waits(each)), key=self.lost)
        return [*idle, *(each for each in found if not self._order.waits(each))] if idle else found

    def lost(self, holder: JobFacts) -> float:
        """Return the seconds that `holder` loses if it stops."""
        return lost_seconds(holder, self._cycle.now)

    def _helps(self, holder: JobFacts, node_pool: NodePool, kept: Set[str]) -> bool:
        nodes = self._cycle.places.base_holding(holder).nodes
        on_site = any(self._capacity.is_in(node_pool, node) for node in nodes)
        return holder.gpu_type == node_pool.gpu_type and on_site and kept.isdisjoint(nodes)

    def _fewest(self, taker: JobFacts, node_pool: NodePool, yielding: Sequence[JobFacts]) -> int | None:
        """Return by bisection how many of the first of `yielding` must yield; None where all are too few."""
        low, high = 0, len(yielding)
        if not yielding or not self._suffices(taker, node_pool, yielding):
            return None
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._suffices(taker, node_pool, yielding[:middle]) else (middle, high)
        return high

    def _suffices(self, taker: JobFacts, node_pool: NodePool, yielding: Iterable[JobFacts]) -> bool:
        with self._cycle.transaction.trial():
            self.release(yielding)
            supply = self._pool.await_gang(node_pool, taker.terms.gpus_per_worker, taker.terms.min_replicas)
        return supply is not Supply.NEVER

    def release(self, yielding: Iterable[JobFacts]) -> None:
        """Count the base GPUs of running jobs as being given back."""
        for job in yielding:
            holding = self._cycle.places.base_holding(job)
            for node in holding.nodes:
                self._capacity.expect(node, holding.each.gpus, holding.each.requests)


class GpuTypeMigrations:
    """The moves between types of GPU in one plan."""

    def __init__(self, cycle: PlanningCycle, preemptor: Preemptor) -> None:
        self._cycle, self._preemptor = cycle, preemptor
        self._order, self._pool, self._ledger = cycle.order, cycle.pool, cycle.ledger

    def stopping(self) -> list[JobFacts]:
        """Return the jobs to stop, which move or give up their GPUs for movers, and keep these GPUs."""
        movers = self._movers()
        if not movers:
            return []
        kept = self._cycle.relied_on([job for job, _ in movers])
        givers = [job for job in self._able() if self._order.waits(job) and self._stands_apart(job, kept)]
        movers = self._fitting([each for each in movers if self._stands_apart(each[0], kept)], givers)
        if not movers:
            return []
        for giver in sorted(givers, key=self._preemptor.lost)[::-1]:
            fewer = [job for job in givers if job is not giver]
            if not self._stuck(movers, fewer):
                givers = fewer
        found = [*(job for job, _ in movers), *givers]
        self._preemptor.release(found)
        for job, node_pool in movers:
            self._pool.await_gang(node_pool, job.terms.gpus_per_worker, job.terms.min_replicas)
        return found

    def exchanging(self) -> frozenset[str]:
        """Return the jobs that could move if only movers gave up their GPUs.

        Their quotas are for each other: no later waiting job takes them. Empty without queues, as policies know the
        number of GPUs.
        """
        movers = self._movers() if self._ledger.limits else []
        return frozenset(job.key for job, _ in self._fitting(movers, ())) if movers else frozenset()

    def keep(self, job: JobFacts) -> None:
        """Keep GPUs and quota of the next type for a job that is saving its checkpoint to move there."""
        node_pool = self._cycle.places.node_pool_on(job, self._order.gpu_type(job) or "")
        if node_pool is not None and self._ledger.hold_later(job.claim, node_pool.gpu_type):
            self._pool.await_gang(node_pool, job.terms.gpus_per_worker, job.terms.min_replicas)

    def _fitting(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> list[_Move]:
        """Return the `movers` that fit in their new node pools if all of them and `givers` gave up their GPUs.

        All are tried together, without those that do not fit, then without the first: others may fit in its place.
        """
        found, rest = list[_Move](), [*movers]
        while rest:
            tried = [*found, *rest]
            while stuck := self._stuck(tried, givers):
                tried = [(job, node_pool) for job, node_pool in tried if job.key not in stuck]
            fitting = {job.key for job, _ in tried}
            rest = [each for each in rest if each[0].key not in fitting] if len(tried) > len(found) else rest[1:]
            found = tried
        return found

    def _movers(self) -> list[_Move]:
        """Return the jobs that should move to another type of GPU, in order, with their new node pools."""
        found = []
        for job in self._able():
            wished = self._order.gpu_type(job)
            node_pool = (
                None if wished is None or self._order.waits(job) else self._cycle.places.node_pool_on(job, wished)
            )
            if node_pool is not None:
                found.append((job, node_pool))
        return found

    def _able(self) -> list[JobFacts]:
        """Return the jobs that may be stopped now and do not keep their GPUs by the decision."""
        return [
            job
            for job in self._preemptor.running
            if (self._order.is_elsewhere(job) or self._order.waits(job))
            and job.terms.gpus_per_worker
            and self._cycle.record.may_stop(job)
            and not self._cycle.record.wait(runs_until(job))
        ]

    def _stands_apart(self, job: JobFacts, kept: Set[str]) -> bool:
        return kept.isdisjoint(self._cycle.places.base_holding(job).nodes)

    def _stuck(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> set[str]:
        """Return the movers that do not fit in their new node pools if all of them and `givers` gave up their GPUs."""
        stopped = [*(job for job, _ in movers), *givers]
        with self._cycle.transaction.trial():
            self._preemptor.release(stopped)
            may_have = self._ledger.exchange((job.claim, job.gpu_type or "") for job in stopped)
            return {
                job.key
                for job, node_pool in movers
                if not may_have(job.claim, node_pool.gpu_type)
                or self._pool.await_gang(node_pool, job.terms.gpus_per_worker, job.terms.min_replicas) is Supply.NEVER
            }
