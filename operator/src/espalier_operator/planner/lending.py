"""Loans of the remaining GPUs as extra workers."""

from __future__ import annotations

import heapq
from collections.abc import Container
from itertools import takewhile

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts, WorkerRole
from espalier_operator.model.actions import GrantExtra
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import lendable, lendable_at, spared_until
from espalier_operator.policies.decisions import Rank


class Lending:
    """Step of a plan that lends the GPUs that are left."""

    def __init__(self, cycle: PlanningCycle) -> None:
        self._cycle, self._record = cycle, cycle.record

    def lend(self) -> None:
        """Lend the remaining GPUs, one worker at a time, to the first job in the policy's order."""
        wishes: list[tuple[Rank, int, int]] = []
        for place, job in enumerate(self._cycle.running):
            if job.key in self._record.touched:
                continue
            asked = self._cycle.reclaims.is_asked(job.key)
            most = Reason.RECLAIM_PENDING if asked else lendable(job, self._cycle.now, self._cycle.rules)
            if not isinstance(most, Reason):
                allowed = self._cycle.order.most_extra(job) - job.extra
                most = min(most, allowed) if allowed > 0 else Reason.HELD_BY_POLICY
            quota = None if job.external is None else job.external.extra
            if quota is not None and not isinstance(most, Reason):
                if quota <= job.extra:
                    workers = self._free_for(job, most)
                    reason = Reason.WAITING_FOR_KUEUE if workers else Reason.NO_FREE_GPU
                    self._record.refuse(job, reason, workers=workers)
                    continue
                most = min(most, quota - job.extra)
            if isinstance(most, Reason):
                self._record.refuse(job, most)
                if (again := lendable_at(job, most)) is not None:
                    self._record.wake(again)
            else:
                wishes.append((self._cycle.order.lending_rank(job, job.extra), place, most))
        heapq.heapify(wishes)
        granted: dict[str, int] = {}
        hoped: dict[str, int] = {}
        """Extra workers of each job, including workers granted now and after a reclaim from others."""
        while wishes:
            _, place, most = heapq.heappop(wishes)
            job = self._cycle.running[place]
            if self._cycle.reclaims.is_asked(job.key):
                continue
            if not self._cycle.namespaces.fits(job, 1, WorkerRole.EXTRA):
                if job.key not in hoped and job.key not in granted:
                    self._record.refuse(job, Reason.RESOURCE_QUOTA_EXCEEDED)
                continue
            extra, mark = hoped.get(job.key, job.extra), self._cycle.transaction.mark()
            supply = self._supply_extra(job, extra, granted)
            if supply is Supply.NOW:
                places = self._cycle.places
                lent = self._cycle.capacity.placed_since(mark)[-1:]
                places.lend(job, lent)
                places.near(job).update(lent)
                places.lent_nodes[job.key] += lent
                granted[job.key] = granted.get(job.key, job.extra) + 1
                self._cycle.namespaces.hold(job, 1, WorkerRole.EXTRA)
            elif job.key not in hoped and job.key not in granted:
                self._record.refuse(job, Reason.NO_FREE_GPU)
            if supply is not Supply.NEVER and most > 1:
                hoped[job.key] = extra + 1
                rank = self._cycle.order.lending_rank(job, extra + 1)
                heapq.heappush(wishes, (rank, place, most - 1))
        self._record.actions += [GrantExtra(job=key, extra=extra) for key, extra in granted.items()]
        for key in granted:
            self._record.refusals.pop(key, None)

    def _free_for(self, job: JobFacts, most: int) -> int:
        """Return for how many more extra workers of a job, at most `most`, GPUs are free."""
        with self._cycle.transaction.trial():
            supplies = (self._supply_extra(job, job.extra + more, ()) is Supply.NOW for more in range(most))
            return sum(takewhile(bool, supplies))

    def _supply_extra(self, job: JobFacts, extra: int, granted: Container[str]) -> Supply:
        """Get GPUs for one more than `extra` workers: free ones, or reclaimed ones where the policy allows it.

        Nothing is reclaimed for a job that was granted workers in this cycle, as it would arrive during its cooldown.
        """
        levels = self._cycle.places.levels(job, [job.gpu_type or ""], WorkerRole.EXTRA)
        found = (self._supply_on(node_pool, job, extra, granted) for (node_pool,) in levels)
        return next(filter(None, found), Supply.NEVER)

    def _supply_on(self, node_pool: NodePool, job: JobFacts, extra: int, granted: Container[str]) -> Supply:
        places, gpus = self._cycle.places, job.terms.gpus_per_worker
        if self._cycle.reclaims.is_vain(node_pool, gpus):
            return Supply.NEVER
        near = places.near(job)
        wished = self._cycle.order.wished_nodes(job) if job.pinned else ()
        if wished and any(self._cycle.capacity.take_at(node_pool, node, gpus) for node in places.wished(job, wished)):
            return Supply.NOW
        if job.key in granted and job.terms.cooldown_seconds > 0:
            return Supply.NOW if self._cycle.pool.take(node_pool, gpus, near) else Supply.NEVER

        def spared(holder: JobFacts) -> bool:
            # A job that must give back workers in this cycle is interrupted anyway: sparing it would save nothing.
            quiet = self._record.wait(spared_until(holder, falls=self._cycle.reclaims.is_asked(holder.key)))
            return quiet or holder.key in granted or holder.key == job.key

        may_take = self._cycle.order.may_take(job, extra)
        return self._cycle.pool.await_one(node_pool, gpus, may_take=may_take, spared=spared, near=near)
