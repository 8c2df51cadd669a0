"""Queues: quotas of base GPUs for the jobs of a queue, and borrowing between queues. Pure.

As in Kueue, a queue has a nominal quota for each type of GPU, and queues of one cohort borrow each other's unused
quota. Extra GPUs are not counted: they are lent from spare GPUs and reclaimed with notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from espalier_core.types.reasons import Reason

EXTERNAL: Final = ""
"""Instead of the name of a queue, for jobs whose quota another system has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota of base GPUs of one type."""

    gpu_type: str | None = None
    """The GPU type; None: all types together that no other quota of the queue names."""
    nominal: int
    """Number of GPUs that the queue may hold in any case."""
    borrowing_limit: int | None = None
    """Number of further GPUs that it may hold while others of its cohort do not use theirs; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits on the total holdings of the jobs that name the queue in `spec.queue`."""

    name: str
    cohort: str | None = None
    """The cohort, whose queues lend each other unused quota; None: the queue lends and borrows nothing."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs may use it; empty: all."""
    max_priority: int | None = None
    """Highest priority of its jobs; others are refused. None: no limit."""
    weight: int = 1
    """Divisor of its recent holdings in the order of admission."""
    quotas: tuple[Quota, ...] = ()
    """Quotas by type; empty: any number of GPUs of any type. Otherwise types without a quota are not allowed."""

    def quota(self, gpu_type: str) -> Quota | None:
        """Return the quota that counts GPUs of `gpu_type`."""
        named = {quota.gpu_type: quota for quota in self.quotas}
        return named.get(gpu_type, named.get(None))

    def admits(self, namespace: str) -> bool:
        """Return whether jobs of `namespace` may use it."""
        return not self.namespaces or namespace in self.namespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job's claim on its queue."""

    queue: str
    namespace: str
    priority: int
    gpus: int
    """GPUs of all base workers."""


class Admission(Protocol):
    """The owner of quotas, which decides whether a job may have base GPUs; the planner decides which ones."""

    def refusal(self, claim: Claim) -> Reason | None:
        """Return the reason for which a waiting job may not have them; None: it may, once there are GPUs and quota."""

    def withdrawal(self, claim: Claim) -> Reason | None:
        """Return the reason for which a job must give them back, with notice; None: it keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAdmission:
    """An `Admission` with the decision of another system about one job."""

    admitted: bool = False
    withdrawn: bool = False
    """It has taken its admission back. Without a decision, a running job keeps its GPUs."""
    message: str = ""
    """The system's own message."""
    extra: int | None = None
    """Number of extra workers that it has admitted; None: it does not manage them."""
    extra_withdrawn: int = 0
    """Number of extra workers whose admission it has taken back."""

    def refusal(self, claim: Claim) -> Reason | None:
        """Return a reason if the job is not admitted."""
        return None if self.admitted else Reason.WAITING_FOR_KUEUE

    def withdrawal(self, claim: Claim) -> Reason | None:
        """Return a reason if the admission was taken back."""
        return Reason.EVICTED_BY_KUEUE if self.withdrawn else None


_Kind = str | None
"""The GPU type of a quota."""


@dataclass(frozen=True, slots=True)
class _QueueQuota:
    """A queue, and its quota for one type of GPU."""

    queue: QueueLimits
    quota: Quota

    @property
    def kind(self) -> tuple[str, _Kind]:
        """The key of counters by queue."""
        return self.queue.name, self.quota.gpu_type

    @property
    def place(self) -> tuple[str | None, _Kind]:
        """The key of counters by cohort; queues without a cohort share one that decides nothing."""
        return self.queue.cohort, self.quota.gpu_type

    def may_borrow(self, used: int) -> bool:
        """Return whether the queue may exceed its nominal quota and hold `used` GPUs, if its cohort has them."""
        limit = self.quota.borrowing_limit
        return self.queue.cohort is not None and (limit is None or used - self.quota.nominal <= limit)


class QueueUsage:
    """An `Admission`: holdings of the jobs of each queue. Without any queue, nothing is limited."""

    def __init__(self, queues: Iterable[QueueLimits], held: Iterable[tuple[Claim, str]]) -> None:
        """Count the `held` claims, each with its granted type of GPU."""
        self._queues = {queue.name: queue for queue in queues}
        if self._queues:
            self._queues[EXTERNAL] = QueueLimits(name=EXTERNAL)
        held = held if self._queues else ()
        self._used: Counter[tuple[str, _Kind]] = Counter()
        self._closed: set[tuple[str, _Kind]] = set()
        self._deferred: set[tuple[str, _Kind]] = set()
        self._owed: set[tuple[str | None, _Kind]] = set()
        """Cohorts and GPU types for which a queue waits within its nominal quota."""
        self._totals: Counter[tuple[str | None, _Kind]] = Counter()
        """Sum of nominal quotas by cohort."""
        self._held_by_cohort: Counter[tuple[str | None, _Kind]] = Counter()
        """GPUs held by cohort."""
        for queue in self._queues.values():
            for quota in queue.quotas:
                self._totals[_QueueQuota(queue, quota).place] += quota.nominal
        self._leaving: Counter[tuple[str, _Kind]] = Counter()
        """GPUs being given back, by queue."""
        self._promised: Counter[tuple[str | None, _Kind]] = Counter()
        """GPUs awaited within nominal quotas less GPUs being given back, by cohort."""
        self._awaited: Counter[tuple[str, _Kind]] = Counter()
        """GPUs awaited within the nominal quota, by queue."""
        for claim, gpu_type in held:
            self.hold(claim, gpu_type)
        self._began, self._began_by_cohort = Counter(self._used), Counter(self._held_by_cohort)
        """Holdings at the beginning of the plan."""

    @property
    def limits(self) -> bool:
        """Whether there is any queue."""
        return bool(self._queues)

    def usage(self) -> Iterator[tuple[str, _Kind, int, int]]:
        """Yield (queue, GPU type, nominal GPUs, held GPUs) of each quota."""
        for queue in self._queues.values():
            for quota in queue.quotas:
                yield queue.name, quota.gpu_type, quota.nominal, self._used[queue.name, quota.gpu_type]

    def refusal(self, claim: Claim) -> Reason | None:
        """Return the reason for which the queue never takes the job; None if it may."""
        if not self._queues:
            return None
        queue = self._queues.get(claim.queue)
        if queue is None or not queue.admits(claim.namespace):
            return Reason.QUEUE_NOT_FOUND
        if queue.max_priority is not None and claim.priority > queue.max_priority:
            return Reason.PRIORITY_TOO_HIGH
        return None

    def withdrawal(self, claim: Claim) -> Reason | None:
        """Return None: what a queue has borrowed is given back once a job waits for it (`planner.admission`)."""
        return None

    def priority(self, claim: Claim) -> int:
        """Return the effective priority: a running job may have raised its own above its queue's limit."""
        queue = self._queues.get(claim.queue)
        limit = None if queue is None else queue.max_priority
        return claim.priority if limit is None else min(claim.priority, limit)

    def hold(self, claim: Claim, gpu_type: str, *, sign: int = 1) -> None:
        """Count granted GPUs; a `sign` of -1 undoes it."""
        share = self._share(claim, gpu_type)
        if share is not None:
            self._used[share.kind] += sign * claim.gpus
            self._held_by_cohort[share.place] += sign * claim.gpus

    def allows(self, claim: Claim, gpu_type: str, *, borrowing: bool, is_first: bool = False) -> bool:
        """Return whether the queue may hold the GPUs in addition; without `borrowing`, within its nominal quota.

        `is_first`: no job of the queue precedes this one.
        """
        queue = self._queues.get(claim.queue)
        if queue is None or not queue.quotas:
            return True
        share = self._share(claim, gpu_type)
        is_closed = share is not None and share.kind in self._closed and not is_first
        if share is None or is_closed or (share.kind in self._deferred and not borrowing):
            return False
        used = self._used[share.kind] + claim.gpus
        may_borrow = borrowing and share.place not in self._owed and share.may_borrow(used)
        if used > share.quota.nominal and not may_borrow:
            return False
        return queue.cohort is None or self._held_by_cohort[share.place] + claim.gpus <= self._totals[share.place]

    def hold_later(self, claim: Claim, gpu_type: str) -> bool:
        """Count GPUs for a job that stops to move to another type, if its queue may hold them once all have stopped.

        The queue may hold its nominal quota, or as much as it held.
        """
        queue = self._queues.get(claim.queue)
        if queue is None or not queue.quotas:
            return True
        share = self._share(claim, gpu_type)
        if share is None:
            return False
        later = self._used[share.kind] - self._leaving[share.kind] + claim.gpus
        together = self._held_by_cohort[share.place] + self._promised[share.place] + claim.gpus
        fits = later <= max(share.quota.nominal, self._began[share.kind])
        if queue.cohort is not None:
            fits = fits and together <= max(self._totals[share.place], self._began_by_cohort[share.place])
        if fits:
            self.hold(claim, gpu_type)
        return fits

    def exchange(self, given: Iterable[tuple[Claim, str]]) -> Callable[[Claim, str], bool]:
        """Return a predicate: whether one job after another may have GPUs of a type once the `given` are given back.

        A queue may then hold what it may hold anyway (`allows`), or no more than now: an exchange of equal size needs
        no spare quota. Each accepted job counts for later ones. The ledger itself does not change.
        """
        more: Counter[tuple[str, _Kind]] = Counter()
        more_by_cohort: Counter[tuple[str | None, _Kind]] = Counter()
        for claim, gpu_type in given:
            share = self._share(claim, gpu_type)
            if share is not None:
                more[share.kind] -= claim.gpus
                more_by_cohort[share.place] -= claim.gpus

        def may_have(claim: Claim, gpu_type: str) -> bool:
            queue, share = self._queues.get(claim.queue), self._share(claim, gpu_type)
            if queue is None or not queue.quotas:
                return True
            if share is None:
                return False
            own, together = more[share.kind] + claim.gpus, more_by_cohort[share.place] + claim.gpus
            is_open = share.kind not in self._closed and share.kind not in self._deferred
            fits = own <= 0 or (is_open and self._used[share.kind] + own <= share.quota.nominal)
            if queue.cohort is not None and together > 0:
                fits = fits and self._held_by_cohort[share.place] + together <= self._totals[share.place]
            if fits:
                more[share.kind], more_by_cohort[share.place] = own, together
            return fits

        return may_have

    def defer(self, claim: Claim, gpu_types: Iterable[str]) -> None:
        """Keep later jobs of the queue behind one that waits until jobs of queues that do not borrow are served."""
        self._deferred.update(share.kind for share in self._shares(claim, gpu_types))

    def exceeds(self, claim: Claim, gpu_type: str) -> int | None:
        """Return the number of GPUs that jobs of its own queue must give back for a job to fit into the nominal quota.

        0 where they are doing so; None where the job fits already, or never will.
        """
        share = self._share(claim, gpu_type)
        if share is None or claim.gpus > share.quota.nominal:
            return None
        over = self._used[share.kind] + self._awaited[share.kind] + claim.gpus - share.quota.nominal
        return None if over <= 0 else max(0, over - self._leaving[share.kind])

    def lacks(self, claim: Claim, gpu_type: str) -> int | None:
        """Return the number of GPUs that others must give back for a job within the nominal quota of its queue.

        None: it needs more than that quota, or there is no cohort that could have borrowed. GPUs that are being given
        back count, unless others wait for them.
        """
        share = self._share(claim, gpu_type)
        if share is None or share.queue.cohort is None:
            return None
        if self._used[share.kind] + self._awaited[share.kind] + claim.gpus > share.quota.nominal:
            return None
        return self._held_by_cohort[share.place] + self._promised[share.place] + claim.gpus - self._totals[share.place]

    def borrowed(self, claim: Claim, gpu_type: str, lender: Claim) -> int:
        """Return the number of GPUs borrowed by the queue of `claim` that may be `lender`'s, less those it gives back.

        Only jobs that ran when the plan began count: running jobs have not borrowed GPUs kept for one that waits.
        """
        share, owner = self._share(claim, gpu_type), self._share(lender, gpu_type)
        if share is None or owner is None or share.place != owner.place:
            return 0
        held = min(self._began[share.kind], self._used[share.kind])
        return max(0, held - self._leaving[share.kind] - share.quota.nominal)

    def give_back(self, claim: Claim, gpu_type: str) -> None:
        """Count a job's GPUs as being given back."""
        share = self._share(claim, gpu_type)
        if share is not None:
            self._leaving[share.kind] += claim.gpus
            self._promised[share.place] -= claim.gpus

    def promise(self, claim: Claim, gpu_type: str) -> None:
        """Keep GPUs that are given back for a job that waits for them."""
        share = self._share(claim, gpu_type)
        if share is not None:
            self._promised[share.place] += claim.gpus
            self._awaited[share.kind] += claim.gpus

    def wait(self, claim: Claim, gpu_types: Iterable[str]) -> None:
        """Record that the job waits for its quota: it precedes others of its queue and those that borrow from it.

        A job that can never be allowed holds back no other.
        """
        for share in self._shares(claim, gpu_types):
            if self._could_ever_hold(share, claim.gpus):
                self._closed.add(share.kind)
                if self._used[share.kind] + claim.gpus <= share.quota.nominal:
                    self._owed.add(share.place)

    def could_ever_hold(self, claim: Claim, gpu_types: Iterable[str]) -> bool:
        """Return whether an otherwise empty queue might hold the GPUs, of one of these types."""
        queue = self._queues.get(claim.queue)
        if queue is None or not queue.quotas:
            return True
        return any(self._could_ever_hold(share, claim.gpus) for share in self._shares(claim, gpu_types))

    def _share(self, claim: Claim, gpu_type: str) -> _QueueQuota | None:
        """Return the quota for `gpu_type` of the queue of `claim`; None where it has none."""
        queue = self._queues.get(claim.queue)
        quota = None if queue is None else queue.quota(gpu_type)
        return None if queue is None or quota is None else _QueueQuota(queue, quota)

    def _shares(self, claim: Claim, gpu_types: Iterable[str]) -> list[_QueueQuota]:
        found = (self._share(claim, gpu_type) for gpu_type in gpu_types)
        return [share for share in found if share is not None]

    def _could_ever_hold(self, share: _QueueQuota, gpus: int) -> bool:
        """Return whether the queue might hold that many GPUs if no GPUs were held."""
        return gpus <= share.quota.nominal or (share.may_borrow(gpus) and gpus <= self._totals[share.place])
