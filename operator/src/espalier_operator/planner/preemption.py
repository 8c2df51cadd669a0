"""Which running jobs stop for others, or change their type of GPU, where the policy preempts. Pure.

Only a job that allows it yields, to one that the policy serves before it, and after `minRuntimeSeconds`. First yields
who is to have no GPUs and loses least (`reclaim.victims`), then the last in the policy's order, and as few as give the
waiting job all its workers, or its quota. Nobody yields GPUs on which a reservation counts: an earlier job waits for
them.

A job moves that is to have GPUs of another type and allows it, once all its workers fit there: on GPUs that are free,
lent, given up by jobs that are to have none, or given up by others that move. So two jobs change places, and more do in
a ring. What their queues hold after all have moved counts, so queues without spare quota exchange theirs; none holds
more meanwhile, for each starts again only within the quota that others have given back by then. All that must stop for
a move stop in one plan, each after `minRuntimeSeconds`, with notice; what they give up is kept for those that move
there (`plan`) until they have saved their checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.reclaim.victims import lost_seconds

_Move = tuple[JobFacts, NodePool]
"""Who moves, and where it may run then."""


class Preemptor:
    """The preemption of base GPUs in one plan."""

    def __init__(self, cycle: PlanningCycle, running: Sequence[JobFacts]) -> None:
        """Take the `running` jobs that allow to be preempted, in the policy's order."""
        self._cycle, self.running = cycle, running
        self._capacity, self._pool, self._order = cycle.capacity, cycle.pool, cycle.order
        self.exchanging: Set[str] = frozenset()
        """Jobs that change places (`GpuTypeMigrations`): they yield as if each were on the type of its share."""
        self._failed_placements = set[tuple[NodePool, int, int]]()
        """Gangs for which nobody could make room: nor can anybody for the same gang of a later job."""

    def make_room(
        self, taker: JobFacts, node_pools: Iterable[NodePool], kept: Set[str]
    ) -> tuple[NodePool, list[JobFacts]] | None:
        """Reserve room for all base workers of `taker` on the first possible node pool; return it, and who must yield.

        On the nodes `kept` nobody yields, nor does a job that is busy.
        """
        gpus, workers = taker.terms.gpus_per_worker, taker.terms.min_replicas
        for node_pool in node_pools:
            if (node_pool, gpus, workers) in self._failed_placements:
                continue
            yielding = [each for each in self._candidates(taker) if self._helps(each, node_pool, kept)]
            count = self._fewest(taker, node_pool, yielding)
            if count is None:
                self._failed_placements.add((node_pool, gpus, workers))
                continue
            chosen = yielding[:count]
            for each in reversed(chosen[:-1]):  # one that came before may be on other nodes, or too small
                without = [other for other in chosen if other is not each]
                if self._suffices(taker, node_pool, without):
                    chosen = without
            self.release(chosen)
            self._pool.await_gang(node_pool, gpus, workers)
            return node_pool, chosen
        return None

    def of_queue(self, taker: JobFacts, gpu_type: str, gpus: int) -> list[JobFacts] | None:
        """Return who of the queue of `taker` must yield for it to have `gpus` more of the quota; None: too few can."""
        found: list[JobFacts] = []
        for holder in self._candidates(taker):
            if gpus <= 0:
                break
            if holder.terms.queue == taker.terms.queue and holder.gpu_type == gpu_type:
                found.append(holder)
                gpus -= holder.claim.gpus
        return found if gpus <= 0 else None

    def _candidates(self, taker: JobFacts) -> list[JobFacts]:
        """Return the jobs that yield to `taker`: of those to have none who loses least, then the last."""
        found = []
        for holder in reversed(self.running):
            if holder.key in self.exchanging and not self._order.is_earlier(taker, holder):
                continue
            if not self._order.is_before(taker, holder):
                break
            if holder.stopping is not None or self._cycle.is_busy(holder):
                continue
            if self.may_yield(holder):
                found.append(holder)
        # Each of the others, once stopped, takes the GPUs of those after it: two would stop instead of one.
        idle = sorted((each for each in found if self._order.waits(each)), key=self.lost)
        return [*idle, *(each for each in found if not self._order.waits(each))] if idle else found

    def lost(self, holder: JobFacts) -> float:
        """Return what `holder` loses if it stops."""
        return lost_seconds(holder, self._cycle.now)

    def may_yield(self, holder: JobFacts) -> bool:
        """Return whether a job has run for as long as its terms ask."""
        spared_until = (holder.admitted_at or 0.0) + holder.terms.min_runtime_seconds
        if self._cycle.now < spared_until:
            self._cycle.record.wake(spared_until)
        return self._cycle.now >= spared_until

    def _helps(self, holder: JobFacts, node_pool: NodePool, kept: Set[str]) -> bool:
        nodes = self._cycle.places.base_holding(holder).nodes
        on_site = any(self._capacity.is_in(node_pool, node) for node in nodes)
        return holder.gpu_type == node_pool.gpu_type and on_site and kept.isdisjoint(nodes)

    def _fewest(self, taker: JobFacts, node_pool: NodePool, yielding: Sequence[JobFacts]) -> int | None:
        """Return how many of `yielding` must yield, from the first on, by bisection; None where all are too few."""
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
        """Expect what running jobs hold to be given back."""
        for job in yielding:
            holding = self._cycle.places.base_holding(job)
            for node in holding.nodes:
                self._capacity.expect(node, holding.each.gpus, holding.each.requests)


class GpuTypeMigrations:
    """The moves of one plan."""

    def __init__(self, cycle: PlanningCycle, preemptor: Preemptor) -> None:
        self._cycle, self._preemptor = cycle, preemptor
        self._order, self._pool, self._ledger = cycle.order, cycle.pool, cycle.ledger

    def stopping(self) -> list[JobFacts]:
        """Return who must stop: the jobs that move, and those that give up their GPUs for them; keep these GPUs."""
        movers = self._movers()
        if not movers:
            return []
        kept = self._cycle.relied_on([job for job, _ in movers])
        givers = [job for job in self._able() if self._order.waits(job) and self._stands_apart(job, kept)]
        movers = self._fitting([each for each in movers if self._stands_apart(each[0], kept)], givers)
        if not movers:
            return []
        for giver in sorted([*reversed(givers)], key=lambda each: -self._preemptor.lost(each)):
            fewer = [job for job in givers if job is not giver]
            if not self._stuck(movers, fewer):
                givers = fewer
        found = [*(job for job, _ in movers), *givers]
        self._preemptor.release(found)
        for job, node_pool in movers:
            self._pool.await_gang(node_pool, job.terms.gpus_per_worker, job.terms.min_replicas)
        return found

    def exchanging(self) -> frozenset[str]:
        """Return who could move if all that move gave up what they hold, and nobody else did.

        Their quotas are for each other: no later job that waits takes them. Without queues there is no need to tell,
        for policies know how many GPUs there are.
        """
        movers = self._movers() if self._ledger.limits else []
        return frozenset(job.key for job, _ in self._fitting(movers, ())) if movers else frozenset()

    def keep(self, job: JobFacts) -> None:
        """Keep GPUs and quota of its next type for a job that is saving its checkpoint to move there."""
        node_pool = self._cycle.places.node_pool_on(job, self._order.gpu_type(job) or "")
        if node_pool is not None and self._ledger.hold_later(job.claim, node_pool.gpu_type):
            self._pool.await_gang(node_pool, job.terms.gpus_per_worker, job.terms.min_replicas)

    def _fitting(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> list[_Move]:
        """Return those of `movers` that fit where they would go, if all of them and `givers` gave up what they hold.

        All are tried together, without those that do not fit, then without the first: others may fit in its stead.
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
        """Return the jobs that are to have another type of GPU, in order, and where they would go."""
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
        """Return the jobs that may be stopped now, and are not to keep what they have."""
        return [
            job
            for job in self._preemptor.running
            if (self._order.is_elsewhere(job) or self._order.waits(job))
            and job.terms.gpus_per_worker
            and job.stopping is None
            and not self._cycle.is_busy(job)
            and self._preemptor.may_yield(job)
        ]

    def _stands_apart(self, job: JobFacts, kept: Set[str]) -> bool:
        return kept.isdisjoint(self._cycle.places.base_holding(job).nodes)

    def _stuck(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> set[str]:
        """Return which movers do not fit where they would go, if all of them and `givers` gave up what they hold."""
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
