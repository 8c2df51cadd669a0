"""The start of a job whose queue and namespace allow it: on free GPUs, lent ones, or those of jobs that yield."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_pools import NodePool
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import Admit
from espalier_operator.model.constraints import Amounts
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import ends_by
from espalier_operator.planner.reservations import HeldGpus, Reservation

_Tries = tuple[tuple[str, ...], str | None]
"""Gangs that may use these types of GPUs, of one namespace; None: of all."""
Attempt = tuple[tuple[NodePool, ...], int, int, tuple[int, ...]]
"""Where a gang was to start, its workers' GPUs, its workers, and what it must not touch."""
_Place = tuple[tuple[tuple[int, ...], ...], int, tuple[int, ...]]
"""The groups of nodes of each site, the GPUs of a worker, and what it must not touch."""


class _Reserved(NamedTuple):
    """What is kept for a job that waits."""

    job: JobFacts
    reservation: Reservation
    fits_namespace: bool
    """Whether the ResourceQuotas of its namespace had room for it when its turn came."""


class Starting:
    """The starts of one tick."""

    def __init__(self, tick: PlanningCycle) -> None:
        self._tick, self._record = tick, tick.record
        self._vain = FailedPlacements()
        self._tried: Counter[_Tries] = Counter()
        """How many found none."""
        namespaces = {job.claim.namespace for job in tick.waiting}
        self._share = max(1, tick.rules.backfill_depth // max(1, len(namespaces)))
        """How many different gangs of a namespace are tried whatever others there are."""
        self._reserved: dict[str, _Reserved] = {}
        """By job that waits."""

    def start_or_wait(self, job: JobFacts, sites: Sequence[NodePool]) -> bool:
        """Start a job on one of `sites` without touching what is kept for others when it still runs, or let it wait.

        Return whether it starts, or gets what is being given back.
        """
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        until = ends_by(job, self._tick.now, self._tick.rules)
        attempt = tuple(sites), gpus, workers, self._tick.reservations.kept_from(until)
        reason, types = self._vain.reason(attempt), tuple(site.gpu_type for site in sites)
        own = types, job.claim.namespace
        if reason is None and not self._may_try(own):
            reason = Reason.NO_FREE_GPU
        if reason is None:
            started = self._start_beside_others(job, sites, until, in_vain=self._vain.is_hopeless(attempt))
            if not isinstance(started, Reason):
                return True
            reason = started
            self._vain.add(attempt, reason)
            self._tried.update(((types, None), own))
        if self._preempt(job, sites, until, reason):
            return True
        # Where it fits only once others' pods have left, it keeps nothing from those who fit before.
        fitting = (site for site in sites if self._tick.capacity.could_hold_without_jobs(site, gpus, workers))
        reserved = self._tick.reservations.reserve(fitting, gpus, workers, self._tick.now, until - self._tick.now)
        if reserved is not None:
            fits_namespace = self._tick.namespaces.fits(job, workers)
            self._tick.hold_quota(job, reserved.site)
            self._reserved[job.key] = _Reserved(job, reserved, fits_namespace)
        self._record.refuse(job, reason, starts_by=None if reserved is None else reserved.starts_by)
        return False

    def _may_try(self, own: _Tries) -> bool:
        """Return whether another gang is tried: of all namespaces together no more than the rules say, and of each at
        least its share, so that nobody's jobs keep those of others from being tried.
        """
        types, _ = own
        tried, most = self._tried[types, None], self._tick.rules.backfill_depth
        return tried < most or (tried < 2 * most and self._tried[own] < self._share)

    def gets_gpus(self, job: JobFacts, sites: Sequence[NodePool]) -> bool:
        """Return whether a job that waits would get GPUs of one of `sites` now, or of what is lent or given back."""
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        until = ends_by(job, self._tick.now, self._tick.rules)
        self._tick.reservations.lift(until)
        found = any(self._tick.pool.would_await_gang(site, gpus, workers) is not Supply.NEVER for site in sites)
        self._tick.reservations.restore(until)
        return found

    def end_reservations(self) -> None:
        """Keep GPUs and ResourceQuotas no longer for jobs that wait: what follows can be asked back when they start."""
        self._tick.reservations.end()
        for each in self._reserved.values():
            self._tick.namespaces.hold(each.job, -each.job.terms.min_replicas)

    def start_elsewhere(self, job: JobFacts, sites: Sequence[NodePool]) -> None:
        """Start a job that waits on one of `sites` if it can start there, and give up what it has reserved."""
        known = self._reserved.get(job.key)
        reserved = None if known is None else known.reservation
        if reserved is not None:
            self._tick.hold_quota(job, reserved.site, sign=-1)
        # Those that wait for the same quotas by now come after it.
        sites = self._tick.allowed(job, sites, borrowing=True, is_first=True)
        fits = self._tick.namespaces.fits(job, job.terms.min_replicas) if known is None else known.fits_namespace
        started: HeldGpus | Reason | None = Reason.QUOTA_EXCEEDED
        if sites and fits:
            started = self._start_beside_others(job, sites, ends_by(job, self._tick.now, self._tick.rules))
        if not isinstance(started, Reason):
            if reserved is not None:
                self._vain.hope()
                self._tick.reservations.cancel(reserved)
                del self._reserved[job.key]
            if started is not None:
                self._record.refusals.pop(job.key)
        elif reserved is not None:
            self._tick.hold_quota(job, reserved.site)

    def _start_beside_others(
        self, job: JobFacts, sites: Sequence[NodePool], until: float, *, in_vain: bool = False
    ) -> HeldGpus | Reason | None:
        """Do what `_start` does with what is not kept for others while a job would run until `until`.

        `in_vain`: it is known that there are too few GPUs, and only asked why.
        """
        self._tick.reservations.lift(until)
        started = self._shortage(job, sites) if in_vain else self._start(job, sites)
        self._tick.reservations.restore(until, started if isinstance(started, HeldGpus) else None)
        return started

    def _start(self, job: JobFacts, sites: Sequence[NodePool]) -> HeldGpus | Reason | None:
        """Start a job on the first of `sites` where all its workers can start now; return what they hold.

        They go to the nodes that the policy wishes, if these have room for all of them. If there is no such site, let
        lent GPUs be reclaimed for the job, and return None; or return why that is not enough either. Nodes that the job
        avoids are used where all others are not enough.
        """
        started: HeldGpus | Reason | None = Reason.NO_FREE_GPU
        for level in self._tick.places.levels(job, [site.gpu_type for site in sites]):
            started = self._start_on(job, level)
            if not isinstance(started, Reason):
                break
        return started

    def _start_on(self, job: JobFacts, sites: Sequence[NodePool]) -> HeldGpus | Reason | None:
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        wished = self._tick.order.wished_nodes(job)[:workers] if job.pinned else ()
        for site in sites if wished else ():
            mark = self._tick.capacity.mark()
            if self._tick.pool.take_gang_at(site, gpus, wished):
                return self._admit(job, site, mark)
        for site in sites:
            mark = self._tick.capacity.mark()
            if self._tick.pool.take_gang(site, gpus, workers):
                return self._admit(job, site, mark)
        surplus, reason = self._tick.reclaims.surplus, self._shortage(job, sites)
        for site in sites:
            mark = self._tick.capacity.mark()
            supply = self._tick.pool.await_gang(site, gpus, workers)
            if supply is Supply.NOW:
                return self._admit(job, site, mark)
            if supply is Supply.LATER:
                if self._tick.reclaims.surplus > surplus:
                    self._vain = FailedPlacements()
                self._tick.hold_quota(job, site)
                self._record.refuse(job, reason)
                return None
        return reason

    def _shortage(self, job: JobFacts, sites: Sequence[NodePool]) -> Reason:
        """Return why a job finds too few nodes of `sites`: other resources are used up, or GPUs are."""
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        # Where they request nothing but GPUs, it was tried just now.
        bare = (self._tick.capacity.without_requests(site) for site in sites if site.requests)
        free = (self._tick.pool.has_gang(site, gpus, workers) for site in bare)
        return Reason.UNSCHEDULABLE if any(free) else Reason.NO_FREE_GPU

    def _preempt(self, job: JobFacts, sites: Sequence[NodePool], until: float, reason: Reason) -> bool:
        """Let jobs yield their base GPUs to a job that would run until `until`, if that gives it all its workers."""
        mark = self._tick.capacity.mark()
        room = self._tick.preemption.make_room(job, sites, self._tick.reservations.relied_on(until), self._tick.is_busy)
        if room is None:
            return False
        self._vain.hope()
        site, yielding = room
        taken = self._held(job, site, mark)
        self._tick.reservations.replace(map(self._tick.places.base_holding, yielding), until, taken)
        self._tick.stop(yielding, Reason.PREEMPTED_BY_POLICY)
        self._tick.hold_quota(job, site)
        self._record.refuse(job, reason)
        return True

    def _admit(self, job: JobFacts, site: NodePool, mark: int) -> HeldGpus:
        """Admit a job whose workers were placed on `site` since `mark`; return what they hold."""
        placed = self._tick.places.placed(job, mark)
        self._tick.places.base_nodes[job.key].update(zip(job.base_indexes, placed, strict=True))
        self._tick.hold_quota(job, site)
        self._record.act(Admit(job=job.key, gpu_type=site.gpu_type))
        return self._held(job, site, mark)

    def _held(self, job: JobFacts, site: NodePool, mark: int) -> HeldGpus:
        """Return what the workers of a job hold that were placed on `site` since `mark`."""
        goods = ResourceVector(job.terms.gpus_per_worker, site.requests)
        return HeldGpus(site.gpu_type, self._tick.capacity.placed_since(mark), goods)


class FailedPlacements:
    """The attempts that were in vain. A start takes GPUs from those after it, and a reclaim brings no more than was
    counted, so they stay so; except where jobs yield, or a reservation is given up (`hope`).
    """

    def __init__(self) -> None:
        """Nothing was."""
        self._reasons: dict[Attempt, Reason] = {}
        self._smallest: dict[_Place, list[tuple[Amounts, int]]] = defaultdict(list)
        """What each worker requested, and how many workers there were."""

    def reason(self, attempt: Attempt) -> Reason | None:
        """Return why this attempt, or one for an equal gang, was in vain; None: it was not made."""
        return self._reasons.get(attempt)

    def is_hopeless(self, attempt: Attempt) -> bool:
        """Return whether a gang that requests no more was in vain."""
        (site, *_), _, workers, _ = attempt
        requests = dict(site.requests)
        return any(
            workers >= fewest and all(requests.get(name, 0) >= amount for name, amount in least)
            for least, fewest in self._smallest.get(_place(attempt), ())
        )

    def add(self, attempt: Attempt, reason: Reason) -> None:
        """Take note that an attempt was in vain."""
        (site, *_), _, workers, _ = attempt
        self._reasons[attempt] = reason
        if not self.is_hopeless(attempt):
            self._smallest[_place(attempt)].append((site.requests, workers))

    def hope(self) -> None:
        """Take note that there may be more GPUs for others than were counted."""
        self._smallest.clear()


def _place(attempt: Attempt) -> _Place:
    sites, gpus, _, untouchable = attempt
    return tuple(site.groups for site in sites), gpus, untouchable
