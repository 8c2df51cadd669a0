"""Admission of waiting jobs in order, with the checks of nodes, quotas and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import Admit
from espalier_operator.model.constraints import Constraints
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import admission_of, is_held_back, obstacle, runs_until
from espalier_operator.planner.preemption import GpuTypeMigrations, Preemptor
from espalier_operator.planner.provisioning import NodeRequests
from espalier_operator.planner.starting import Starting
from espalier_operator.reclaim.extra_workers import ExtraWorker


class AdmissionStep:
    """Step of a plan that admits waiting jobs in turn."""

    def __init__(self, cycle: PlanningCycle, node_requests: NodeRequests) -> None:
        self._cycle, self._record, self._node_requests = cycle, cycle.record, node_requests
        self._unmet: list[JobFacts] = []
        """Jobs that get no GPUs of the nodes that there are, in order."""
        running = [job for job in cycle.running if job.terms.base_preemptible] if cycle.order.preempts else []
        # Jobs on another type of GPU than their share's yield last, or move.
        self._preemptor = Preemptor(cycle, sorted(running, key=cycle.order.is_elsewhere))
        self._moves = GpuTypeMigrations(cycle, self._preemptor)
        self._starting = Starting(cycle, self._preemptor)
        self._elsewhere: dict[str, list[NodePool]] = {}
        """Node pools on which jobs that wait for GPUs of their quota might start if their queue borrows."""
        self._preemptible = cycle.preemptible()
        self._known_node_pools: dict[tuple[str | None, Constraints, int, int, str | None], list[NodePool]] = {}

    def admit(self) -> None:
        """Start waiting jobs in order; a job that must wait is not delayed by later ones.

        Jobs whose queue must borrow for them come after all others; so do jobs that wait for GPUs of their quota and
        might borrow others.
        """
        borrowers: list[JobFacts] = []
        self._preemptor.exchanging = self._moves.exchanging()
        for job in self._cycle.order.sorted([*self._cycle.waiting, *self._between_types()]):
            if job.admitted_at is not None:
                self._moves.keep(job)
            elif not self._admit_in_turn(job, borrowing=False):
                borrowers.append(job)
        for job in borrowers:
            if job.key in self._elsewhere:
                self._starting.start_elsewhere(job, self._elsewhere[job.key])
            else:
                self._admit_in_turn(job, borrowing=True)
        self._cycle.stop(self._moves.stopping(), Reason.PREEMPTED_BY_POLICY)
        for job in self._unmet if self._cycle.rules.node_groups else ():
            self._starting.forgo(job)
            self._node_requests.request(job)
        self._starting.end_reservations()

    def _between_types(self) -> list[JobFacts]:
        """Return the jobs that are saving their checkpoints, or have just done so, to move to another type of GPU."""
        return [
            job
            for job in [*self._cycle.running, *self._cycle.requeued]
            if job.stopping is not None
            and job.stopping.reason is Reason.PREEMPTED_BY_POLICY
            and self._cycle.order.is_elsewhere(job)
            and not self._cycle.order.waits(job)
        ]

    def _admit_in_turn(self, job: JobFacts, *, borrowing: bool) -> bool:
        """Start a waiting job, or refuse it.

        Return False where its queue must borrow for it to start at once, which is tried later.
        """
        terms, gpus, workers = job.terms, job.terms.gpus_per_worker, job.terms.min_replicas
        wished, claim, are_barred = self._cycle.order.gpu_type(job), job.claim, False
        node_pools = self._wished_node_pools(terms.gpu_type, terms.constraints, gpus, workers, wished)
        if node_pools and self._cycle.avoidance.barred_until(job) is not None:
            *_, constraints = self._cycle.avoidance.levels(job)
            node_pools = self._wished_node_pools(terms.gpu_type, constraints, gpus, workers, wished)
            are_barred = not node_pools
        not_taken = admission_of(job, self._cycle.ledger).refusal(claim)
        if job.terms.suspend:
            self._record.refuse(job, Reason.SUSPENDED)
        elif not_taken is not None:
            self._record.refuse(job, not_taken)
        elif gpus == 0 and not self._cycle.order.waits(job):
            self._cycle.places.base_nodes[job.key].update(dict.fromkeys(job.base_indexes))
            self._record.act(Admit(job=job.key, gpu_type=None))
        elif is_held_back(job, self._cycle.now):
            self._record.refuse(job, obstacle(job))
            self._record.wake(job.hold_until or 0.0)
        elif gpus and are_barred:
            self._record.refuse(job, Reason.NODES_AVOIDED)
        elif gpus and not node_pools:
            fits_elsewhere = self._cycle.places.large_enough(
                terms.gpu_type, terms.constraints.gpus_alone, gpus, workers
            )
            may_come = self._node_requests.could_hold(job)
            lacks = Reason.NO_FREE_GPU if may_come else Reason.TOO_LARGE
            self._record.refuse(job, Reason.UNSCHEDULABLE if fits_elsewhere and not may_come else lacks)
            if may_come and not self._cycle.order.waits(job):
                self._unmet.append(job)
        elif self._cycle.order.waits(job):
            self._record.refuse(job, Reason.HELD_BY_POLICY)
        elif not (allowed := self._cycle.allowed(job, node_pools, borrowing=borrowing)):
            types = [node_pool.gpu_type for node_pool in node_pools]
            if not borrowing and self._cycle.allowed(job, node_pools, borrowing=True):
                self._cycle.ledger.defer(claim, types)
                return False
            if self._would_have_room_in_namespace(job):
                self._record.refuse(job, self._reclaim_quota(job, types))
                self._cycle.ledger.wait(claim, types)
            else:  # it could not start even with the quota, which others would only borrow again
                self._record.refuse(job, Reason.QUOTA_EXCEEDED)
        elif not self._get_room_in_namespace(job, allowed):
            self._record.refuse(job, Reason.RESOURCE_QUOTA_EXCEEDED)
        elif not self._starting.start_or_wait(job, allowed):
            if not borrowing and len(allowed) < len(node_pools):
                borrowed = [
                    node_pool
                    for node_pool in self._cycle.allowed(job, node_pools, borrowing=True)
                    if node_pool not in allowed
                ]
                if borrowed:
                    self._elsewhere[job.key] = borrowed
                    return False
            self._unmet.append(job)
        return True

    def _get_room_in_namespace(self, job: JobFacts, node_pools: Sequence[NodePool]) -> bool:
        """Return whether the ResourceQuotas of its namespace allow a job to start on one of `node_pools`.

        They have room for all its base workers, or would have it without extra workers in the namespace. These are
        reclaimed, and the job waits for that, once the GPUs are there: until then it waits for GPUs.
        """
        namespaces, workers = self._cycle.namespaces, job.terms.min_replicas
        if not namespaces.is_closed(job) and namespaces.fits(job, workers):
            return True
        lent = self._lent_that_keeps_out(job)
        if lent is not None and not self._starting.gets_gpus(job, node_pools):
            return True
        if lent is not None:
            self._cycle.reclaims.ask_back(lent)
            self._cycle.hold_quota(job, node_pools[0])
        if namespaces.could_ever_fit(job, workers):
            namespaces.wait(job)
        return False

    def _would_have_room_in_namespace(self, job: JobFacts) -> bool:
        """Return whether ResourceQuotas have room for a job, or would have it without the loans in its namespace."""
        namespaces = self._cycle.namespaces
        fits = not namespaces.is_closed(job) and namespaces.fits(job, job.terms.min_replicas)
        return fits or self._lent_that_keeps_out(job) is not None

    def _lent_that_keeps_out(self, job: JobFacts) -> list[ExtraWorker] | None:
        """Return the loans in the namespace of a job without which its ResourceQuotas would have room.

        None: without them there would be no room either.
        """
        namespaces, workers = self._cycle.namespaces, job.terms.min_replicas
        if namespaces.is_closed(job) or not namespaces.could_ever_fit(job, workers):
            return None
        lacks = namespaces.lacks(job, workers)
        return None if lacks is None else self._cycle.reclaims.lent_in_namespace(job.key, lacks)

    def _reclaim_quota(self, job: JobFacts, gpu_types: Iterable[str]) -> Reason:
        """Stop the fewest jobs that free enough quota of one type for `job`; return the reason for which it waits.

        Jobs of other queues must have borrowed the quota; for jobs of its own queue, the policy must preempt.
        """
        reason = Reason.QUOTA_EXCEEDED
        for gpu_type in gpu_types:
            exceeds = self._cycle.ledger.exceeds(job.claim, gpu_type) if self._cycle.order.preempts else None
            if exceeds is not None:
                yielding = self._preemptor.of_queue(job, gpu_type, exceeds)
                if yielding is None:
                    continue
                self._cycle.stop(yielding, Reason.PREEMPTED_BY_POLICY)
                self._cycle.ledger.promise(job.claim, gpu_type)
                return Reason.QUOTA_EXCEEDED
            lacks = self._cycle.ledger.lacks(job.claim, gpu_type)
            if lacks is None:
                continue
            stopped, later = self._borrowers(job, gpu_type, lacks)
            given = sum(holder.claim.gpus for holder in stopped)
            if lacks > given:
                reason = Reason.MIN_RUNTIME if lacks <= given + later else reason
                continue
            self._cycle.stop(stopped, Reason.QUOTA_RECLAIMED)
            self._cycle.ledger.promise(job.claim, gpu_type)
            return Reason.QUOTA_EXCEEDED
        return reason

    def _borrowers(self, job: JobFacts, gpu_type: str, lacks: int) -> tuple[list[JobFacts], int]:
        """Return running jobs that would give back `lacks` borrowed GPUs, in the order of `preemptible`.

        Also return the number of GPUs of other such jobs, which have not run for their minimum runtime yet.
        """
        found: list[JobFacts] = []
        given: Counter[str] = Counter()
        later = 0
        for holder in self._preemptible:
            if lacks <= sum(given.values()):
                break
            candidate = holder.gpu_type == gpu_type and self._record.may_stop(holder)
            borrowed = self._cycle.ledger.borrowed(holder.claim, gpu_type, lender=job.claim) - given[holder.terms.queue]
            if not candidate or borrowed <= 0:
                continue
            if self._record.wait(runs_until(holder)):
                later += min(borrowed, holder.claim.gpus)
                continue
            found.append(holder)
            given[holder.terms.queue] += holder.claim.gpus
        return found, later

    def _wished_node_pools(
        self, gpu_type: str | None, constraints: Constraints, gpus: int, workers: int, wished: str | None
    ) -> list[NodePool]:
        """Return the large enough node pools, only those of the policy's `wished` type if there are any.

        The result is cached, as many waiting jobs are alike.
        """
        kind = gpu_type, constraints, gpus, workers, wished
        node_pools = self._known_node_pools.get(kind)
        if node_pools is None:
            node_pools = self._cycle.places.large_enough(gpu_type, constraints, gpus, workers)
            node_pools = self._known_node_pools[kind] = [
                node_pool for node_pool in node_pools if node_pool.gpu_type == wished
            ] or node_pools
        return node_pools
