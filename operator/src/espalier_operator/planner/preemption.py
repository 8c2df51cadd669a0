"""Whose base GPUs a waiting job takes over, where the policy preempts. Pure.

Only a job that allows it yields, to one that the policy serves before it, and after `minRuntimeSeconds`. The last in
the policy's order yields first, and as few as give the waiting job all its workers, or its quota. Nobody yields GPUs on
which a reservation counts: an earlier job waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.node_pools import Site
from espalier_operator.model import JobFacts
from espalier_operator.planner.pool import Pool
from espalier_operator.planner.reservations import Holding
from espalier_operator.policies.order import Order


@dataclass(slots=True, kw_only=True)
class Preemption:
    """The preemption of base GPUs in one plan."""

    running: Sequence[JobFacts]
    """In the policy's order; those that allow to be preempted."""
    order: Order
    capacity: Capacity
    pool: Pool
    holding: Callable[[JobFacts], Holding]
    """What the base workers of a running job hold."""
    now: float
    wake: Callable[[float], None]
    """Called with the time from which on a job may yield that may not yet."""
    exchanging: Set[str] = frozenset()
    """Jobs that change places (`moves`): they yield as if each were on the type of its share."""
    _vain: set[tuple[Site, int, int]] = field(default_factory=set)
    """Gangs for which nobody could make room: nor can anybody for the same gang of a later job."""

    def make_room(
        self, taker: JobFacts, sites: Iterable[Site], kept: Set[str], is_busy: Callable[[JobFacts], bool]
    ) -> tuple[Site, list[JobFacts]] | None:
        """Reserve room for all base workers of `taker` on the first possible site; return it, and who must yield.

        On the nodes `kept` nobody yields, nor does a job that is busy.
        """
        gpus, workers = taker.terms.gpus_per_worker, taker.terms.min_replicas
        for site in sites:
            if (site, gpus, workers) in self._vain:
                continue
            yielding = [each for each in self._candidates(taker, is_busy) if self._helps(each, site, kept)]
            count = self._fewest(taker, site, yielding)
            if count is None:
                self._vain.add((site, gpus, workers))
                continue
            chosen = yielding[:count]
            for each in reversed(chosen[:-1]):  # one that came before may be on other nodes, or too small
                without = [other for other in chosen if other is not each]
                if self._suffices(taker, site, without):
                    chosen = without
            self.release(chosen)
            self.pool.await_gang(site, gpus, workers)
            return site, chosen
        return None

    def of_queue(
        self, taker: JobFacts, gpu_type: str, gpus: int, is_busy: Callable[[JobFacts], bool]
    ) -> list[JobFacts] | None:
        """Return who of the queue of `taker` must yield for it to have `gpus` more of the quota; None: too few can."""
        found: list[JobFacts] = []
        for holder in self._candidates(taker, is_busy):
            if gpus <= 0:
                break
            if holder.terms.queue == taker.terms.queue and holder.gpu_type == gpu_type:
                found.append(holder)
                gpus -= holder.claim.gpus
        return found if gpus <= 0 else None

    def _candidates(self, taker: JobFacts, is_busy: Callable[[JobFacts], bool]) -> list[JobFacts]:
        """Return the jobs that yield to `taker`, the last of the policy's order first."""
        found = []
        for holder in reversed(self.running):
            if holder.key in self.exchanging and not self.order.is_earlier(taker, holder):
                continue
            if not self.order.is_before(taker, holder):
                break
            if holder.stopping is not None or is_busy(holder):
                continue
            if self.may_yield(holder):
                found.append(holder)
        return found

    def may_yield(self, holder: JobFacts) -> bool:
        """Return whether a job has run for as long as its terms ask."""
        spared_until = (holder.admitted_at or 0.0) + holder.terms.min_runtime_seconds
        if self.now < spared_until:
            self.wake(spared_until)
        return self.now >= spared_until

    def _helps(self, holder: JobFacts, site: Site, kept: Set[str]) -> bool:
        nodes = self.holding(holder).nodes
        on_site = any(self.capacity.is_in(site, node) for node in nodes)
        return holder.gpu_type == site.gpu_type and on_site and kept.isdisjoint(nodes)

    def _fewest(self, taker: JobFacts, site: Site, yielding: Sequence[JobFacts]) -> int | None:
        """Return how many of `yielding` must yield, from the first on, by bisection; None where all are too few."""
        low, high = 0, len(yielding)
        if not yielding or not self._suffices(taker, site, yielding):
            return None
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._suffices(taker, site, yielding[:middle]) else (middle, high)
        return high

    def _suffices(self, taker: JobFacts, site: Site, yielding: Iterable[JobFacts]) -> bool:
        mark = self.capacity.mark()
        self.release(yielding)
        supply = self.pool.would_await_gang(site, taker.terms.gpus_per_worker, taker.terms.min_replicas)
        self.capacity.undo(mark)
        return supply is not Supply.NEVER

    def release(self, yielding: Iterable[JobFacts]) -> None:
        """Expect what running jobs hold to be given back."""
        for job in yielding:
            holding = self.holding(job)
            for node in holding.nodes:
                self.capacity.expect(node, holding.each.gpus, holding.each.requests)
