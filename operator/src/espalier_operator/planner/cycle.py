"""What the steps of one plan share: what is there, what is kept, and for whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Capacity
from espalier_operator.cluster.ledger import Transaction
from espalier_operator.cluster.node_pools import NodePool
from espalier_operator.cluster.resource_quotas import NamespaceLedger
from espalier_operator.model import JobFacts, Node, Snapshot, Worker, WorkerState
from espalier_operator.model.actions import Plan, Requeue, Stop
from espalier_operator.model.queues import QueueUsage
from espalier_operator.planner.lifecycle import JobLimits, PlanBuilder, ends_by, stop_seconds
from espalier_operator.planner.places import Avoidance, WorkerPlacer
from espalier_operator.planner.pool import Pool
from espalier_operator.planner.preemption import GpuTypeMigrations, Preemptor
from espalier_operator.planner.reservations import HeldGpus, Reservations
from espalier_operator.planner.worker_index import WorkerIndex
from espalier_operator.policies import Policy
from espalier_operator.policies.order import LendingOrder
from espalier_operator.policies.snapshot_view import decided
from espalier_operator.reclaim.queue import ReclaimQueue


class PlanningCycle:
    """One call of `plan`: its steps work with what the earlier ones left of it."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.now, self.rules = now, snapshot.rules
        self.record = record = PlanBuilder(now)
        self.transaction = Transaction()
        self.worker_index = worker_index = WorkerIndex(snapshot.workers)
        promises = {promise.job: promise for promise in snapshot.promises}
        self.ledger = QueueUsage(snapshot.queues, snapshot.held_claims())
        self.job_limits = job_limits = JobLimits(record, self.ledger, self.rules, now)
        unfinished = [job_limits.within_limits(job) for job in snapshot.jobs if not job.finished]
        open_jobs = [job for job in unfinished if not job_limits.ends(job)]
        # One that goes back to the queue in this cycle keeps what the policy remembers of it.
        over = {action.job for action in record.actions if not isinstance(action, Requeue | Stop)}
        self.decision = decided(policy, snapshot, [job for job in unfinished if job.key not in over], now)
        if self.decision.until is not None:
            record.wake(self.decision.until)
        back = {action.job for action in record.actions if isinstance(action, Requeue)}
        self.requeued = [job for job in unfinished if job.key in back]
        self.order = LendingOrder(self.decision, [*open_jobs, *self.requeued])
        open_jobs = self.order.sorted(open_jobs)
        self.waiting = [job for job in open_jobs if job.admitted_at is None]
        self.running = [job for job in open_jobs if job.admitted_at is not None]
        self.preemptible = sorted(
            (job for job in self.running if job.terms.base_preemptible),
            key=lambda job: (job.terms.priority, -(job.admitted_at or 0.0), job.key),
        )
        kept = {
            job.key: job_limits.extra_kept(job, self.order, promises.get(job.key), len(worker_index.extras[job.key]))
            for job in self.running
        }
        leaving = self._leaving(snapshot, worker_index.extras, kept)
        self.avoidance = Avoidance(snapshot, record, now)
        asked = {job.terms.constraints for job in snapshot.jobs} | {
            worker.constraints for worker in worker_index.foreign
        }
        asked |= self.avoidance.asked
        others = [*worker_index.foreign, *(worker for worker in worker_index.unbound if worker.is_rival)]
        self.capacity = Capacity(
            snapshot.nodes,
            snapshot.workers,
            leaving,
            asked,
            snapshot.jobs,
            snapshot.rules.rack_label,
            others,
            self.transaction,
        )
        self.places = WorkerPlacer(self.capacity, worker_index, snapshot.placements, self.avoidance)
        for job in snapshot.jobs:
            if job.stopping is not None and job.admitted_at is not None and not job.finished:
                self.ledger.give_back(job.claim, job.gpu_type or "")
        self.places.hold_pinned(snapshot.nodes, snapshot.jobs, leaving)
        # Includes jobs that end in this cycle: their workers may be binding at this moment.
        for job in self.places.choosiest_first(job for job in snapshot.jobs if job.extra):
            self.places.hold_promised(job, promises.get(job.key), kept.get(job.key, 0), now)
        self.reclaims = ReclaimQueue(self.capacity, self.running, worker_index.extras, leaving, self.order, now)
        self.namespaces = NamespaceLedger(snapshot.namespace_limits, snapshot.jobs, snapshot.workers, leaving, kept)
        self.pool = Pool(self.capacity, self.reclaims)
        self.reservations = Reservations(
            self.capacity, snapshot.rules.reservations, self._running_until, self.reclaims.extra_workers
        )
        for job in self.running:
            if self.order.is_elsewhere(job) and self.places.node_pool_on(job, self.order.gpu_type(job) or "") is None:
                self.order.let_stay(job)
        self.preemption = Preemptor(
            running=self._yielding() if self.order.preempts else (),
            order=self.order,
            capacity=self.capacity,
            pool=self.pool,
            holding=self.places.base_holding,
            now=now,
            wake=record.wake,
        )
        self.moves = GpuTypeMigrations(
            preemption=self.preemption,
            order=self.order,
            capacity=self.capacity,
            pool=self.pool,
            ledger=self.ledger,
            is_busy=self.is_busy,
            node_pool_on=self.places.node_pool_on,
            kept=self._relied_on,
        )
        self.departures = {node.name: node.departs_at for node in snapshot.nodes if node.departing}
        self.dips = self._dips(node for node in snapshot.nodes if node.fell)
        """By node: GPUs that it has just lost, and that may return."""

    def result(self) -> Plan:
        """Return the plan, with a notice for each job that is asked to give something back."""
        for notice in self.reclaims.notices():
            if notice.job not in self.record.touched:
                self.record.actions.append(notice)
                self.record.refusals.pop(notice.job, None)
                self.record.wake(notice.deadline)
        return Plan(
            actions=tuple(self.record.actions),
            refusals=self.record.refusals,
            placements=self.places.chosen(),
            shares=self.decision.shares,
            ignored=self.decision.ignored,
            fallback=self.decision.fallback,
            wake_at=self.record.wake_at,
            policy_memory=self.decision.memory,
        )

    def forget(self) -> None:
        """Forget everything. What the steps share refers to itself: a cycle, left to the garbage collector.

        With 1,000 jobs that is a few megabytes a plan, and the operator collects rarely.
        """
        self.transaction.log.clear()
        self.__dict__.clear()

    def _leaving(
        self, snapshot: Snapshot, extras: Mapping[str | None, Sequence[Worker]], kept: Mapping[str, int]
    ) -> set[str]:
        """Return the workers whose GPUs become free without another action; `kept` are the extra workers that stay."""
        leaving = set()
        for worker in self.worker_index.terminating:
            begin, end = worker.leaves_between()
            if begin <= self.now < end:
                leaving.add(worker.name)
            for time in (begin, end):
                if self.now < time < math.inf:
                    self.record.wake(time)
        stays = {job.key for job in self.running if job.stopping is None}
        over = ({job.key for job in snapshot.jobs} - stays) & self.worker_index.holders
        if over:
            ending = (worker for worker in snapshot.workers if worker.job in over)
            leaving |= {worker.name for worker in ending if worker.state is not WorkerState.TERMINATING}
        for key, extra in kept.items():
            leaving |= {worker.name for worker in extras[key] if worker.index >= extra}
        return leaving

    def _dips(self, nodes: Iterable[Node]) -> dict[str, int]:
        patience, dips = self.rules.dip_seconds, dict[str, int]()
        for node in nodes:
            missing = node.missing(self.now - patience)
            if missing:
                dips[node.name] = missing
                for at, _ in node.fell:
                    self.record.wake(at + patience)
        return dips

    def _running_until(self) -> Iterator[tuple[float, HeldGpus]]:
        """Yield until when at the latest the jobs that run hold what."""
        for job in self.running:
            if job.stopping is None:
                yield ends_by(job, self.now, self.rules), self.places.base_holding(job)

    def _yielding(self) -> list[JobFacts]:
        """Return the running jobs that allow to be preempted, in order; those on another type than theirs last."""
        yielding = [job for job in self.running if job.terms.base_preemptible]
        return sorted(yielding, key=self.order.is_elsewhere)

    def _relied_on(self, jobs: Iterable[JobFacts]) -> set[str]:
        """Return the nodes on which earlier jobs count that `jobs`, wherever they run, could delay."""
        return self.reservations.relied_on(max(ends_by(job, self.now, self.rules) for job in jobs))

    def is_busy(self, job: JobFacts) -> bool:
        """Return whether a running job does not yield in this cycle: others wait for what it gives back."""
        return job.key in self.record.touched or self.reclaims.is_asked(job.key)

    def stop(self, jobs: Iterable[JobFacts], reason: Reason) -> None:
        """Stop running jobs, with time for a checkpoint."""
        for job in jobs:
            self.ledger.give_back(job.claim, job.gpu_type or "")
            grace = max(stop_seconds(job.terms, self.rules), 0.0 if job.terms.program else job.terms.notice_seconds)
            self.record.act(Stop(job=job.key, reason=reason, deadline=self.now + grace))
            self.record.wake(self.now + grace)

    def allowed(
        self, job: JobFacts, node_pools: Iterable[NodePool], *, borrowing: bool, is_first: bool = False
    ) -> list[NodePool]:
        """Return those of `node_pools` on whose GPUs the job's queue may run it."""
        if not self.ledger.limits:
            return [*node_pools]
        claim = job.claim
        return [
            node_pool
            for node_pool in node_pools
            if self.ledger.allows(claim, node_pool.gpu_type, borrowing=borrowing, is_first=is_first)
        ]

    def hold_quota(self, job: JobFacts, node_pool: NodePool, *, sign: int = 1) -> None:
        """Count what a job was granted, or is to have, on `node_pool`: for its queue, and for its namespace.

        With a `sign` of -1 it is counted no more.
        """
        self.ledger.hold(job.claim, node_pool.gpu_type, sign=sign)
        self.namespaces.hold(job, sign * job.terms.min_replicas)
