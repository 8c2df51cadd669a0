"""The start of a job whose queue and namespace allow it: on free GPUs, lent ones, or GPUs of jobs that yield."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import Admit
from espalier_operator.model.constraints import Amounts
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import ends_by
from espalier_operator.planner.preemption import Preemptor
from espalier_operator.planner.reservations import HeldGpus, Reservation

_MOMENT: Final = 0.001
"""Margin after the end of a period at which the next plan is made, in seconds."""
_Tries = tuple[tuple[str, ...], str | None]
"""Key of gangs: the types of GPUs that they may use, and their namespace; None: all."""
Attempt = tuple[tuple[NodePool, ...], int, int, tuple[int, ...]]
"""Key of an attempt: node pools, GPUs of a worker, workers, and reservations that it must not touch."""
_Place = tuple[tuple[tuple[int, ...], ...], int, tuple[int, ...]]
"""The groups of nodes of each node pool, the GPUs of a worker, and reservations that it must not touch."""


class _Reserved(NamedTuple):
    """A waiting job with its reservation."""

    job: JobFacts
    reservation: Reservation
    fits_namespace: bool
    """Whether the ResourceQuotas of its namespace had room for it when its turn came."""


class Starting:
    """Starts of waiting jobs in one plan, and the reservations of those that must wait."""

    def __init__(self, cycle: PlanningCycle, preemptor: Preemptor) -> None:
        self._cycle, self._record, self._preemptor = cycle, cycle.record, preemptor
        self._failed_placements = FailedPlacements()
        self._tried: Counter[_Tries] = Counter()
        """Number of gangs that found no GPUs."""
        namespaces = {job.claim.namespace for job in cycle.waiting}
        self._share = max(1, cycle.rules.backfill_depth // max(1, len(namespaces)))
        """Number of different gangs of a namespace that are tried in any case."""
        self._reserved: dict[str, _Reserved] = {}
        """Reservations by waiting job."""

    def start_or_wait(self, job: JobFacts, node_pools: Sequence[NodePool]) -> bool:
        """Start a job on one of `node_pools` without delaying reservations, or make it wait.

        Return whether it starts, or gets GPUs that are being given back.
        """
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        until = ends_by(job, self._cycle.now, self._cycle.rules)
        attempt = tuple(node_pools), gpus, workers, self._cycle.reservations.kept_from(until)
        reason, types = self._failed_placements.reason(attempt), tuple(node_pool.gpu_type for node_pool in node_pools)
        own = types, job.claim.namespace
        if reason is None and not self._may_try(own):
            reason = Reason.NO_FREE_GPU
        if reason is None:
            started = self._start_beside_others(
                job, node_pools, until, in_vain=self._failed_placements.is_hopeless(attempt)
            )
            if not isinstance(started, Reason):
                return True
            reason = started
            self._failed_placements.add(attempt, reason)
            self._tried.update(((types, None), own))
        if self._preempt(job, node_pools, until, reason):
            return True
        # Where it fits only after foreign pods have left, it reserves nothing, as others may fit before.
        fitting = (
            node_pool
            for node_pool in node_pools
            if self._cycle.capacity.could_hold_without_jobs(node_pool, gpus, workers)
        )
        reserved = self._cycle.reservations.reserve(fitting, gpus, workers, self._cycle.now, until - self._cycle.now)
        if reserved is not None:
            fits_namespace = self._cycle.namespaces.fits(job, workers)
            self._cycle.hold_quota(job, reserved.node_pool)
            self._reserved[job.key] = _Reserved(job, reserved, fits_namespace)
        self._record.refuse(job, reason, starts_by=None if reserved is None else reserved.starts_by)
        return False

    def _may_try(self, own: _Tries) -> bool:
        """Return whether another gang is tried: no more than the rules allow for all namespaces together, but at least
        the share of each namespace, so that no namespace's jobs keep others' from being tried.
        """
        types, _ = own
        tried, most = self._tried[types, None], self._cycle.rules.backfill_depth
        return tried < most or (tried < 2 * most and self._tried[own] < self._share)

    def gets_gpus(self, job: JobFacts, node_pools: Sequence[NodePool]) -> bool:
        """Return whether a waiting job would get GPUs of one of `node_pools`: free, lent, or being given back."""
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        until = ends_by(job, self._cycle.now, self._cycle.rules)
        with self._cycle.reservations.lifted(until):
            supplies = (self._cycle.pool.would_await_gang(node_pool, gpus, workers) for node_pool in node_pools)
            return any(supply is not Supply.NEVER for supply in supplies)

    def end_reservations(self) -> None:
        """End the reservations of GPUs and ResourceQuotas: the loans that follow can be reclaimed for waiting jobs."""
        self._cycle.reservations.end()
        for each in self._reserved.values():
            self._cycle.namespaces.hold(each.job, -each.job.terms.min_replicas)

    def forgo(self, job: JobFacts) -> None:
        """Keep nothing for a job that waits any more."""
        known = self._reserved.pop(job.key, None)
        if known is not None:
            self._cycle.hold_quota(job, known.reservation.node_pool, sign=-1)
            self._cycle.reservations.cancel(known.reservation)

    def start_elsewhere(self, job: JobFacts, node_pools: Sequence[NodePool]) -> None:
        """Start a waiting job on one of `node_pools` if it can start there, and cancel its reservation."""
        known = self._reserved.get(job.key)
        reserved = None if known is None else known.reservation
        if reserved is not None:
            self._cycle.hold_quota(job, reserved.node_pool, sign=-1)
        # Jobs that wait for the same quotas by now come after it.
        node_pools = self._cycle.allowed(job, node_pools, borrowing=True, is_first=True)
        fits = self._cycle.namespaces.fits(job, job.terms.min_replicas) if known is None else known.fits_namespace
        started: HeldGpus | Reason | None = Reason.QUOTA_EXCEEDED
        if node_pools and fits:
            started = self._start_beside_others(job, node_pools, ends_by(job, self._cycle.now, self._cycle.rules))
        if not isinstance(started, Reason):
            if reserved is not None:
                self._failed_placements.expire()
                self._cycle.reservations.cancel(reserved)
                del self._reserved[job.key]
            if started is not None:
                self._record.refusals.pop(job.key)
        elif reserved is not None:
            self._cycle.hold_quota(job, reserved.node_pool)

    def _start_beside_others(
        self, job: JobFacts, node_pools: Sequence[NodePool], until: float, *, in_vain: bool = False
    ) -> HeldGpus | Reason | None:
        """Do `_start` without delaying reservations, for a job that would run until `until`.

        `in_vain`: GPUs are known to be too few, and only the reason is returned.
        """
        with self._cycle.reservations.lifted(until) as (left, take):
            started = self._shortage(job, node_pools) if in_vain else self._start(job, node_pools)
            if started is None and left < math.inf:  # after that, others may have the GPUs that it waits for
                self._record.wake(self._cycle.now + left + _MOMENT)
            if isinstance(started, HeldGpus):
                take(started)
        return started

    def _start(self, job: JobFacts, node_pools: Sequence[NodePool]) -> HeldGpus | Reason | None:
        """Start a job on the first of `node_pools` where all its workers can start now; return their holding.

        They go to the policy's preferred nodes, if these have room for all of them. If there is no such node pool,
        reclaim lent GPUs for the job and return None, or return the reason if that is not enough either. Nodes that the
        job avoids are used where all others are not enough.
        """
        started: HeldGpus | Reason | None = Reason.NO_FREE_GPU
        for level in self._cycle.places.levels(job, [node_pool.gpu_type for node_pool in node_pools]):
            started = self._start_on(job, level)
            if not isinstance(started, Reason):
                break
        return started

    def _start_on(self, job: JobFacts, node_pools: Sequence[NodePool]) -> HeldGpus | Reason | None:
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        wished = self._cycle.order.wished_nodes(job)[:workers] if job.pinned else ()
        for node_pool in node_pools if wished else ():
            mark = self._cycle.transaction.mark()
            if self._cycle.pool.take_gang_at(node_pool, gpus, wished):
                return self._admit(job, node_pool, mark)
        for node_pool in node_pools:
            mark = self._cycle.transaction.mark()
            if self._cycle.pool.take_gang(node_pool, gpus, workers):
                return self._admit(job, node_pool, mark)
        surplus, reason = self._cycle.reclaims.surplus, self._shortage(job, node_pools)
        for node_pool in node_pools:
            mark = self._cycle.transaction.mark()
            supply = self._cycle.pool.await_gang(node_pool, gpus, workers)
            if supply is Supply.NOW:
                return self._admit(job, node_pool, mark)
            if supply is Supply.LATER:
                if self._cycle.reclaims.surplus > surplus:
                    self._failed_placements = FailedPlacements()
                self._cycle.hold_quota(job, node_pool)
                self._record.refuse(job, reason)
                return None
        return reason

    def _shortage(self, job: JobFacts, node_pools: Sequence[NodePool]) -> Reason:
        """Return the reason for which a job finds too few nodes of `node_pools`: other resources are short, or GPUs."""
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        # Node pools without other requests were tried just now.
        bare = (self._cycle.capacity.without_requests(node_pool) for node_pool in node_pools if node_pool.requests)
        free = (self._cycle.pool.has_gang(node_pool, gpus, workers) for node_pool in bare)
        return Reason.UNSCHEDULABLE if any(free) else Reason.NO_FREE_GPU

    def _preempt(self, job: JobFacts, node_pools: Sequence[NodePool], until: float, reason: Reason) -> bool:
        """Stop jobs that yield to a job that would run until `until`, if that gives it all its workers."""
        mark = self._cycle.transaction.mark()
        room = self._preemptor.make_room(job, node_pools, self._cycle.reservations.relied_on(until))
        if room is None:
            return False
        self._failed_placements.expire()
        node_pool, yielding = room
        taken = self._held(job, node_pool, mark)
        self._cycle.reservations.replace(map(self._cycle.places.base_holding, yielding), until, taken)
        self._cycle.stop(yielding, Reason.PREEMPTED_BY_POLICY)
        self._cycle.hold_quota(job, node_pool)
        self._record.refuse(job, reason)
        return True

    def _admit(self, job: JobFacts, node_pool: NodePool, mark: int) -> HeldGpus:
        """Admit a job whose workers were placed on `node_pool` since `mark`; return their holding."""
        placed = self._cycle.places.placed(job, mark)
        self._cycle.places.base_nodes[job.key].update(zip(job.base_indexes, placed, strict=True))
        self._cycle.hold_quota(job, node_pool)
        self._record.act(Admit(job=job.key, gpu_type=node_pool.gpu_type))
        return self._held(job, node_pool, mark)

    def _held(self, job: JobFacts, node_pool: NodePool, mark: int) -> HeldGpus:
        """Return the holding of a job's workers that were placed on `node_pool` since `mark`."""
        resources = ResourceVector(job.terms.gpus_per_worker, node_pool.requests)
        return HeldGpus(node_pool.gpu_type, self._cycle.capacity.placed_since(mark), resources)


class FailedPlacements:
    """Cache of failed attempts. Starts take GPUs from later jobs, and reclaims bring no more than was counted, so an
    equal or larger gang fails too, except after jobs yield or a reservation is cancelled (`expire`).
    """

    def __init__(self) -> None:
        """Start empty."""
        self._reasons: dict[Attempt, Reason] = {}
        self._smallest: dict[_Place, list[tuple[Amounts, int]]] = defaultdict(list)
        """(Requests of a worker, number of workers) of the smallest failed gangs."""

    def reason(self, attempt: Attempt) -> Reason | None:
        """Return the reason of the failure of an equal attempt; None: none was made."""
        return self._reasons.get(attempt)

    def is_hopeless(self, attempt: Attempt) -> bool:
        """Return whether an attempt for a gang that requests no more has failed."""
        (node_pool, *_), _, workers, _ = attempt
        requests = dict(node_pool.requests)
        return any(
            workers >= fewest and all(requests.get(name, 0) >= amount for name, amount in least)
            for least, fewest in self._smallest.get(_place(attempt), ())
        )

    def add(self, attempt: Attempt, reason: Reason) -> None:
        """Record a failed attempt."""
        (node_pool, *_), _, workers, _ = attempt
        self._reasons[attempt] = reason
        if not self.is_hopeless(attempt):
            self._smallest[_place(attempt)].append((node_pool.requests, workers))

    def expire(self) -> None:
        """Drop conclusions about larger gangs, as there may now be more GPUs than were counted."""
        self._smallest.clear()


def _place(attempt: Attempt) -> _Place:
    node_pools, gpus, _, untouchable = attempt
    return tuple(node_pool.groups for node_pool in node_pools), gpus, untouchable
