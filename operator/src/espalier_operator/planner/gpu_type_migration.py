"""Which running jobs change their type of GPU, where the policy preempts. Pure.

A job moves that is to have GPUs of another type and allows it, once all its workers fit there: on GPUs that are free,
lent, given up by jobs that are to have none, or given up by others that move. So two jobs change places, and more do in
a ring. What their queues hold after all have moved counts, so queues without spare quota exchange theirs; none holds
more meanwhile, for each starts again only within the quota that others have given back by then. All that must stop for
a move stop in one plan, each after `minRuntimeSeconds`, with notice; what they give up is kept for those that move
there (`plan`) until they have saved their checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.node_pools import Site
from espalier_operator.model import JobFacts
from espalier_operator.model.queues import Ledger
from espalier_operator.planner.pool import Pool
from espalier_operator.planner.preemption import Preemption
from espalier_operator.policies.order import Order

_Move = tuple[JobFacts, Site]
"""Who moves, and where it may run then."""


@dataclass(slots=True, kw_only=True)
class Moves:
    """The moves of one plan."""

    preemption: Preemption
    order: Order
    capacity: Capacity
    pool: Pool
    ledger: Ledger
    is_busy: Callable[[JobFacts], bool]
    site_on: Callable[[JobFacts, str], Site | None]
    """Returns where a job may run on a type, whatever its quota; None: nowhere."""
    kept: Callable[[Sequence[JobFacts]], Set[str]]
    """Returns the nodes on which earlier jobs count that these jobs could delay: nobody there moves."""

    def stopping(self) -> list[JobFacts]:
        """Return who must stop: the jobs that move, and those that give up their GPUs for them; keep these GPUs."""
        movers = self._movers()
        if not movers:
            return []
        kept = self.kept([job for job, _ in movers])
        givers = [job for job in self._able() if self.order.waits(job) and self._stands_apart(job, kept)]
        movers = self._fitting([each for each in movers if self._stands_apart(each[0], kept)], givers)
        if not movers:
            return []
        for giver in [*reversed(givers)]:
            fewer = [job for job in givers if job is not giver]
            if not self._stuck(movers, fewer):
                givers = fewer
        found = [*(job for job, _ in movers), *givers]
        self.preemption.release(found)
        for job, site in movers:
            self.pool.await_gang(site, job.terms.gpus_per_worker, job.terms.min_replicas)
        return found

    def exchanging(self) -> frozenset[str]:
        """Return who could move if all that move gave up what they hold, and nobody else did.

        Their quotas are for each other: no later job that waits takes them. Without queues there is no need to tell,
        for policies know how many GPUs there are.
        """
        movers = self._movers() if self.ledger.limits else []
        return frozenset(job.key for job, _ in self._fitting(movers, ())) if movers else frozenset()

    def keep(self, job: JobFacts) -> None:
        """Keep GPUs and quota of its next type for a job that is saving its checkpoint to move there."""
        site = self.site_on(job, self.order.gpu_type(job) or "")
        if site is not None and self.ledger.hold_later(job.claim, site.gpu_type):
            self.pool.await_gang(site, job.terms.gpus_per_worker, job.terms.min_replicas)

    def _fitting(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> list[_Move]:
        """Return those of `movers` that fit where they would go, if all of them and `givers` gave up what they hold.

        All are tried together, without those that do not fit, then without the first: others may fit in its stead.
        """
        found, rest = list[_Move](), [*movers]
        while rest:
            tried = [*found, *rest]
            while stuck := self._stuck(tried, givers):
                tried = [(job, site) for job, site in tried if job.key not in stuck]
            fitting = {job.key for job, _ in tried}
            rest = [each for each in rest if each[0].key not in fitting] if len(tried) > len(found) else rest[1:]
            found = tried
        return found

    def _movers(self) -> list[_Move]:
        """Return the jobs that are to have another type of GPU, in order, and where they would go."""
        found = []
        for job in self._able():
            wished = self.order.gpu_type(job)
            site = None if wished is None or self.order.waits(job) else self.site_on(job, wished)
            if site is not None:
                found.append((job, site))
        return found

    def _able(self) -> list[JobFacts]:
        """Return the jobs that may be stopped now, and are not to keep what they have."""
        return [
            job
            for job in self.preemption.running
            if (self.order.is_elsewhere(job) or self.order.waits(job))
            and job.terms.gpus_per_worker
            and job.stopping is None
            and not self.is_busy(job)
            and self.preemption.may_yield(job)
        ]

    def _stands_apart(self, job: JobFacts, kept: Set[str]) -> bool:
        return kept.isdisjoint(self.preemption.holding(job).nodes)

    def _stuck(self, movers: Sequence[_Move], givers: Sequence[JobFacts]) -> set[str]:
        """Return which movers do not fit where they would go, if all of them and `givers` gave up what they hold."""
        mark, asked = self.capacity.mark(), self.pool.mark()
        stopped = [*(job for job, _ in movers), *givers]
        self.preemption.release(stopped)
        may_have = self.ledger.exchange((job.claim, job.gpu_type or "") for job in stopped)
        stuck = {
            job.key
            for job, site in movers
            if not may_have(job.claim, site.gpu_type)
            or self.pool.await_gang(site, job.terms.gpus_per_worker, job.terms.min_replicas) is Supply.NEVER
        }
        self.capacity.undo(mark)
        self.pool.undo(asked)
        return stuck
