"""Shared state of the steps of one plan: jobs in the policy's order, capacity, reclaims and reservations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.ledger import Transaction
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.cluster.resource_quotas import NamespaceLedger
from espalier_operator.model import JobFacts, Promise, Snapshot, WorkerState
from espalier_operator.model.actions import Plan, Requeue, Stop
from espalier_operator.model.queues import QueueUsage
from espalier_operator.planner.lifecycle import PlanBuilder, ends_by, yield_seconds
from espalier_operator.planner.placement import Avoidance, WorkerIndex, WorkerPlacer
from espalier_operator.planner.reservations import HeldGpus, Reservations
from espalier_operator.policies import Policy
from espalier_operator.policies.decisions import LendingOrder, decided
from espalier_operator.policies.view import Decision
from espalier_operator.reclaim.extra_workers import lost_seconds
from espalier_operator.reclaim.queue import ReclaimQueue


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """The jobs that do not end in this cycle, in the policy's order."""

    decision: Decision
    order: LendingOrder
    waiting: Sequence[JobFacts]
    running: Sequence[JobFacts]
    requeued: Sequence[JobFacts]
    """Jobs that return to the queue in this cycle."""

    @classmethod
    def by(cls, policy: Policy, snapshot: Snapshot, record: PlanBuilder, jobs: Sequence[JobFacts], now: float) -> Self:
        """Return the decision of `policy` about the unfinished `jobs`, except those that an action in `record` ends."""
        # The policy keeps its memory of a job that returns to the queue in this cycle.
        over = {action.job for action in record.actions if not isinstance(action, Requeue | Stop)}
        back = {action.job for action in record.actions if isinstance(action, Requeue)}
        barred = {job.key for job in jobs if job.admitted_at is None and job.external and not job.external.admitted}
        decision = decided(policy, snapshot, [job for job in jobs if job.key not in over | barred], now)
        requeued = [job for job in jobs if job.key in back]
        going_on = [job for job in jobs if job.key not in over and job.key not in back]
        order = LendingOrder(decision, [*going_on, *requeued])
        in_order = order.sorted(going_on)
        return cls(
            decision,
            order,
            waiting=[job for job in in_order if job.admitted_at is None],
            running=[job for job in in_order if job.admitted_at is not None],
            requeued=requeued,
        )


class Pool:
    """GPUs from both sources: free ones, and lent ones that can be reclaimed.

    A need of 0 GPUs is always met.
    """

    def __init__(self, capacity: Capacity, reclaims: ReclaimQueue) -> None:
        """Take both sources, which write to one transaction."""
        self._capacity, self._reclaims, self._transaction = capacity, reclaims, capacity.transaction

    def take(self, node_pool: NodePool, gpus: int, near: Collection[str] = ()) -> bool:
        """Hand out `gpus` of one node at once, close to the nodes `near`."""
        return gpus == 0 or self._capacity.take(node_pool, gpus, near) is not None

    def take_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Hand out `gpus` for each of `workers` at once, or nothing."""
        return gpus == 0 or self._capacity.take_gang(node_pool, gpus, workers)

    def take_gang_at(self, node_pool: NodePool, gpus: int, nodes: Sequence[str]) -> bool:
        """Hand out `gpus` (> 0) of each of `nodes` at once, which may repeat, or nothing."""
        mark = self._transaction.mark()
        if all(self._capacity.take_at(node_pool, node, gpus) for node in nodes):
            return True
        self._transaction.undo(mark)
        return False

    def has_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Return whether `take_gang` would succeed on a node pool for workers that need only GPUs."""
        return gpus == 0 or self._capacity.has_gang(node_pool, gpus, workers)

    def obtain(self, node_pools: Sequence[NodePool], gpus: int, near: Collection[str] = ()) -> Supply:
        """Keep `gpus` of one node of the first possible node pool; where none will be free, reclaim lent ones."""
        kept = (self._keep(node_pool, gpus, near) for node_pool in node_pools)
        covered = (self._reclaims.cover(node_pool, gpus) for node_pool in node_pools)
        return next(filter(None, chain(kept, covered)), Supply.NEVER)

    def obtain_beside(self, node_pools: Sequence[NodePool], gpus: int, barred: int) -> Supply:
        """Do the same for a pod that kube-scheduler keeps from `barred` unknown nodes with GPUs for it.

        If no more nodes than that have GPUs, they are those nodes: nothing is kept there, and lent GPUs are reclaimed
        elsewhere. If more have GPUs, kube-scheduler has not examined some yet: GPUs of `barred` + 1 nodes are kept
        until it has, so that the right ones are among them.
        """
        free = self._capacity.close_off(node_pools, gpus, barred + 1)
        supply = self.obtain(node_pools, gpus) if len(free) <= barred else Supply.NOW
        self._capacity.reopen(free)
        for node_pool, node in free if len(free) > barred else ():
            self._capacity.reserve(node, gpus, node_pool.requests)
        return supply

    def await_gang(self, node_pool: NodePool, gpus: int, workers: int) -> Supply:
        """Keep `gpus` for each of `workers`, with reclaims of lent ones; keep nothing where that is not enough.

        Return the supply of the worker served last.
        """
        mark, supply = self._transaction.mark(), Supply.NOW
        while gpus > 0 and workers > 0:
            kept = self._capacity.keep_some(node_pool, gpus, workers)
            if kept is None:
                kept = self._reclaims.cover_some(node_pool, gpus, workers)
            supply, workers = min(supply, kept[0]), workers - kept[1]
            if supply is Supply.NEVER:
                self._transaction.undo(mark)
                break
        return supply

    def would_await_gang(self, node_pool: NodePool, gpus: int, workers: int) -> Supply:
        """Return what `await_gang` would return."""
        with self._transaction.trial():
            return self.await_gang(node_pool, gpus, workers)

    def await_one(
        self,
        node_pool: NodePool,
        gpus: int,
        may_take: Callable[[JobFacts, int], bool] | None = None,
        spared: Callable[[JobFacts], bool] | None = None,
        near: Collection[str] = (),
    ) -> Supply:
        """Keep `gpus` of one node that are free or being given back, or reclaim lent ones by `ReclaimQueue.cover`."""
        return self._keep(node_pool, gpus, near) or self._reclaims.cover(node_pool, gpus, may_take, spared)

    def _keep(self, node_pool: NodePool, gpus: int, near: Collection[str] = ()) -> Supply:
        """Keep `gpus` of one node: free ones close to the nodes `near`, or ones being given back."""
        if self.take(node_pool, gpus, near):
            return Supply.NOW
        return Supply.NEVER if self._capacity.set_aside(node_pool, gpus) is None else Supply.LATER


class PlanningCycle:
    """State of one call of `plan`, which its steps change one after the other."""

    def __init__(
        self,
        snapshot: Snapshot,
        jobs: OpenJobs,
        workers: WorkerIndex,
        record: PlanBuilder,
        ledger: QueueUsage,
        kept: Mapping[str, int],
        now: float,
    ) -> None:
        """Count the capacity; `kept` is the number of extra workers of each running job that stay."""
        self.now, self.rules, self.snapshot, self.kept = now, snapshot.rules, snapshot, kept
        self.record, self.worker_index, self.ledger = record, workers, ledger
        self.decision, self.order = jobs.decision, jobs.order
        self.waiting, self.running, self.requeued = jobs.waiting, jobs.running, jobs.requeued
        self.leaving = self._leaving()
        self.avoidance = Avoidance(snapshot, now)
        strangers = (worker.constraints for worker in (*workers.foreign, *workers.queued))
        asked = {job.terms.constraints for job in snapshot.jobs}.union(strangers)
        others = [*workers.foreign, *(worker for worker in workers.unbound if worker.is_rival)]
        self.transaction = Transaction()
        self.capacity = Capacity(
            snapshot.nodes,
            snapshot.workers,
            self.leaving,
            asked | self.avoidance.asked,
            snapshot.jobs,
            snapshot.rules.rack_label,
            others,
            self.transaction,
        )
        self.places = WorkerPlacer(
            self.capacity, workers, snapshot.placements, self.avoidance, bool(snapshot.rules.node_groups)
        )
        self.reclaims = ReclaimQueue(self.capacity, self.running, workers.extras, self.leaving, self.order, now)
        self.namespaces = NamespaceLedger(
            snapshot.namespace_limits, snapshot.jobs, snapshot.workers, self.leaving, kept
        )
        self.pool = Pool(self.capacity, self.reclaims)
        self.reservations = Reservations(
            self.capacity, snapshot.rules.reservations, self._running_until, self.reclaims.extra_workers
        )

    def hold_granted(self, promises: Mapping[str, Promise]) -> None:
        """Keep GPUs for granted workers that are not bound: workers that wait for their node, and promised ones.

        Jobs that end in this cycle are included, as their workers may be binding at this moment.
        """
        for time in (*self.avoidance.turning_points(), *self.worker_index.leaving_times()):
            self.record.wake(time)
        self.places.hold_pinned(self.snapshot.nodes, self.snapshot.jobs, self.leaving)
        for job in self.places.choosiest_first(job for job in self.snapshot.jobs if job.extra):
            self.places.hold_promised(job, promises.get(job.key), self.kept.get(job.key, 0), self.now)
        for job in self.running:
            if self.order.is_elsewhere(job) and self.places.node_pool_on(job, self.order.gpu_type(job) or "") is None:
                self.order.let_stay(job)

    def give_notice(self) -> None:
        """Add the notices of this plan's reclaim requests."""
        for notice in self.reclaims.notices():
            if notice.job not in self.record.touched:
                self.record.actions.append(notice)
                self.record.refusals.pop(notice.job, None)
                self.record.wake(notice.deadline)

    def result(self) -> Plan:
        """Return the plan, and clear all state.

        The state refers to itself: a cycle, left to the garbage collector, which the operator runs rarely. With 1,000
        jobs that would be a few megabytes per plan.
        """
        planned = Plan(
            actions=tuple(self.record.actions),
            refusals=self.record.refusals,
            placements=self.places.chosen(),
            shares=self.decision.shares,
            ignored=self.decision.ignored,
            fallback=self.decision.fallback,
            wake_at=self.record.wake_at,
            policy_memory=self.decision.memory,
        )
        self.transaction.end()
        self.__dict__.clear()
        return planned

    def _leaving(self) -> set[str]:
        """Return the workers whose GPUs become free without another action."""
        workers = self.worker_index
        leaving = {worker.name for worker in workers.terminating if _is_within(self.now, worker.leaves_between())}
        stays = {job.key for job in self.running if job.stopping is None}
        over = ({job.key for job in self.snapshot.jobs} - stays) & workers.holders
        if over:
            ending = (worker for worker in self.snapshot.workers if worker.job in over)
            leaving |= {worker.name for worker in ending if worker.state is not WorkerState.TERMINATING}
        for key, extra in self.kept.items():
            leaving |= {worker.name for worker in workers.extras[key] if worker.index >= extra}
        return leaving

    def _running_until(self) -> Iterator[tuple[float, HeldGpus]]:
        """Yield (latest end, holding) for each running job."""
        for job in self.running:
            if job.stopping is None:
                yield ends_by(job, self.now, self.rules), self.places.base_holding(job)

    def preemptible(self) -> list[JobFacts]:
        """Return the preemptible running jobs: the lowest priority first, then the smallest loss."""
        now = self.now
        return sorted(
            (job for job in self.running if job.terms.base_preemptible),
            key=lambda job: (job.terms.priority, lost_seconds(job, now), -(job.admitted_at or 0.0), job.key),
        )

    def relied_on(self, jobs: Iterable[JobFacts]) -> set[str]:
        """Return the nodes on which reservations rely that `jobs`, wherever they run, could delay."""
        return self.reservations.relied_on(max(ends_by(job, self.now, self.rules) for job in jobs))

    def stop(self, jobs: Iterable[JobFacts], reason: Reason) -> None:
        """Stop running jobs, with time for a checkpoint."""
        for job in jobs:
            self.ledger.give_back(job.claim, job.gpu_type or "")
            grace = yield_seconds(job.terms, self.rules)
            self.record.act(Stop(job=job.key, reason=reason, deadline=self.now + grace))
            self.record.wake(self.now + grace)

    def allowed(
        self, job: JobFacts, node_pools: Iterable[NodePool], *, borrowing: bool, is_first: bool = False
    ) -> list[NodePool]:
        """Return the `node_pools` on whose GPUs the job's queue may run it."""
        if not self.ledger.limits:
            return [*node_pools]
        claim = job.claim
        return [
            node_pool
            for node_pool in node_pools
            if self.ledger.allows(claim, node_pool.gpu_type, borrowing=borrowing, is_first=is_first)
        ]

    def hold_quota(self, job: JobFacts, node_pool: NodePool, *, sign: int = 1) -> None:
        """Count a job's grant or reservation on `node_pool` for its queue and namespace; a `sign` of -1 undoes it."""
        self.ledger.hold(job.claim, node_pool.gpu_type, sign=sign)
        self.namespaces.hold(job, sign * job.terms.min_replicas)


def _is_within(time: float, span: tuple[float, float]) -> bool:
    return span[0] <= time < span[1]
