"""The loss of a job whose GPUs are taken, extra workers in reclaim order, and the reclaim requests of a plan. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import NamedTuple

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.headroom import NOTHING, ResourceVector
from espalier_operator.cluster.ledger import Transaction
from espalier_operator.model import JobFacts, Worker, WorkerRole
from espalier_operator.model.actions import NoticeReclaim
from espalier_operator.policies.decisions import LendingOrder, Rank


def lost_seconds(job: JobFacts, now: float, role: WorkerRole = WorkerRole.BASE) -> float:
    """Return the seconds of work that each GPU of a job's workers of `role` loses if they are taken at `now`.

    They are the seconds since its last checkpoint, as a trainer may fail to save one when it is stopped, and of the
    repeated start; an extra worker leaves between two steps, so it loses only the start. 0 where unknown.
    """
    start = job.start_seconds or 0.0
    if role is WorkerRole.EXTRA:
        return start
    if job.saved_at is None or job.admitted_at is None:
        return 0.0
    # The time since its admission contains the start.
    return max(0.0, now - job.saved_at) + (start if job.saved_at > job.admitted_at else 0.0)


class ExtraWorker(NamedTuple):
    """An extra worker that can be reclaimed."""

    job: JobFacts
    worker: Worker
    """The worker, bound or expected on its node."""
    resources: ResourceVector
    """Its holdings on the node."""
    place: int
    """Position among the extra workers of its job, in reclaim order."""


class ReclaimOrder:
    """The extra workers on one type of GPU in reclaim order."""

    def __init__(self, in_order: Callable[[], list[ExtraWorker]]) -> None:
        """Take the function that sorts them, called when the first is read: most plans read none."""
        self._in_order = in_order
        self.read = 0
        """Number of entries read so far, by any search."""
        self.first = 0
        """Place at which searches start; earlier entries are requested already."""
        self.beyond: dict[int, int] = {}
        """Skips: from a place without candidates to the next place that may have one."""

    def rewind(self, first: int) -> None:
        """Start the next search at `first` again, after requests were undone."""
        self.first = first
        self.beyond.clear()

    @cached_property
    def extra_workers(self) -> list[ExtraWorker]:
        """All extra workers."""
        return self._in_order()

    def __iter__(self) -> Iterator[ExtraWorker]:
        """Yield the extra workers from `first` on."""
        place = self.first
        while (extra_worker := self.at(place)) is not None:
            yield extra_worker
            place += 1

    def at(self, place: int) -> ExtraWorker | None:
        """Return the extra worker at `place`, at most the next unread one; None if there is none."""
        if place >= self.read:
            if self.read == len(self.extra_workers):
                return None
            self.read += 1
        return self.extra_workers[place]

    def pass_over(self, is_out: Callable[[ExtraWorker], bool]) -> None:
        """Advance `first` past the entries at the head that were read and are out."""
        while self.first < self.read and is_out(self.extra_workers[self.first]):
            self.first += 1


class ExtraWorkers:
    """The extra workers of running jobs: live or promised ones that are not leaving."""

    def __init__(
        self,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
    ) -> None:
        """Take the running jobs and their extra workers; workers named in `leaving` are excluded."""
        self._extras, self._leaving = extras, leaving
        self._holders = {job.key: job for job in jobs if job.extra}
        self._by_job: dict[str, list[ExtraWorker]] = {}
        self._falling: dict[str, list[int]] = {}
        """Indices of the extra workers of each job, negated, so that they rise."""
        self._lent: dict[str, ResourceVector] = {}
        """Lent resources by node, as of the last call of `by_node`."""
        self._counted: dict[str, tuple[int, dict[str, ResourceVector]]] = {}
        """(Workers that it kept, its part of `_lent`) at that call, by job."""

    def of(self, key: str) -> list[ExtraWorker]:
        """Return the extra workers of a job in reclaim order."""
        extra_workers = self._by_job.get(key)
        if extra_workers is None:
            job = self._holders[key]
            lent = [worker for worker in self._extras[key] if worker.node and worker.name not in self._leaving]
            lent.sort(key=attrgetter("index"), reverse=True)
            requests = job.terms.constraints.requests
            resources = {gpus: ResourceVector(gpus, requests) for gpus in {worker.gpus for worker in lent}}
            extra_workers = [
                ExtraWorker(job, worker, resources[worker.gpus], place) for place, worker in enumerate(lent)
            ]
            self._by_job[key], self._falling[key] = extra_workers, [-worker.index for worker in lent]
        return extra_workers

    def below(self, key: str, kept: int) -> ExtraWorker | None:
        """Return the next extra worker to reclaim of a job, read before, that keeps `kept`; None: it has none."""
        extra_workers = self._by_job[key]
        place = bisect_right(self._falling[key], -kept)
        return extra_workers[place] if place < len(extra_workers) else None

    def lines(self, order: LendingOrder, now: float) -> dict[str, ReclaimOrder]:
        """Return the reclaim order of each type of GPU: by falling lending rank, within a job from the highest index.

        Spare workers of one level are equal to the policy; among them, workers whose jobs lose least go first.
        """
        holders: dict[str, list[JobFacts]] = defaultdict(list)
        for job in self._holders.values():
            holders[job.gpu_type or ""].append(job)

        def in_order(jobs: Iterable[JobFacts]) -> list[ExtraWorker]:
            levels: dict[Rank, list[ExtraWorker]] = defaultdict(list)
            for job in order.last_first(jobs):
                extra_workers = self.of(job.key)
                for level, extra_worker in zip(
                    order.levels(job, [extra_worker.worker.index for extra_worker in extra_workers]),
                    extra_workers,
                    strict=True,
                ):
                    levels[level].append(extra_worker)
            for level, equals in levels.items():
                if order.is_spare(level):
                    equals.sort(key=lambda each: lost_seconds(each.job, now, WorkerRole.EXTRA))
            return [extra_worker for level in sorted(levels, reverse=True) for extra_worker in levels[level]]

        return {gpu_type: ReclaimOrder(partial(in_order, jobs)) for gpu_type, jobs in holders.items()}

    def by_node(self, keeps: Callable[[JobFacts], int]) -> Mapping[str, ResourceVector]:
        """Return the lent resources by node that can still be reclaimed: each job `keeps` its lowest indices."""
        for key, job in self._holders.items():
            kept, known = keeps(job), self._counted.get(key)
            if known is not None and known[0] == kept:
                continue
            before, after = {} if known is None else known[1], self._held_beyond(key, kept)
            for node, resources in before.items():
                self._lent[node] -= resources
            for node, resources in after.items():
                self._lent[node] = self._lent.get(node, NOTHING) + resources
            self._counted[key] = kept, after
        return self._lent

    def _held_beyond(self, key: str, kept: int) -> dict[str, ResourceVector]:
        """Return the resources by node of the `kept` extra workers of a job, which can still be reclaimed."""
        workers: dict[tuple[str, int], int] = defaultdict(int)
        for extra_worker in self.of(key):
            worker = extra_worker.worker
            if worker.index < kept and worker.node is not None:
                workers[worker.node, worker.gpus] += 1
        requests, held = self._holders[key].terms.constraints.requests, dict[str, ResourceVector]()
        kinds = {(gpus, count) for (_, gpus), count in workers.items()}  # few: nodes are filled
        resources = {(gpus, count): ResourceVector(gpus, requests) * count for gpus, count in kinds}
        for (node, gpus), count in workers.items():
            held[node] = held.get(node, NOTHING) + resources[gpus, count]
        return held


@dataclass(slots=True)
class ReclaimRequest:
    """The reclaim request to one job."""

    job: JobFacts
    extra: int
    """Number of extra workers that it keeps, those with the lowest indices."""
    deadline: float
    reason: Reason


class ReclaimRequests:
    """The reclaim requests of one plan."""

    def __init__(self, now: float, transaction: Transaction) -> None:
        """Start without requests; changes are written to `transaction`."""
        self._now, self._log, self._number = now, transaction.log, transaction.undone_by(self._restore)
        self.made: dict[str, ReclaimRequest] = {}
        """Requests by job."""

    def _restore(self, job: str, extra: int | None, deadline: float) -> None:
        """Undo a request: restore its `extra` and `deadline`; None: delete it."""
        if extra is None:
            del self.made[job]
        else:
            self.made[job].extra, self.made[job].deadline = extra, deadline

    def kept(self, job: JobFacts) -> int:
        """Return the number of extra workers that a job keeps."""
        made = self.made.get(job.key)
        return job.extra if made is None else made.extra

    def is_out(self, extra_worker: ExtraWorker) -> bool:
        """Return whether the reclaim of an extra worker is requested."""
        made = self.made.get(extra_worker.job.key)
        return made is not None and extra_worker.worker.index >= made.extra

    def ask(self, extra_worker: ExtraWorker, reason: Reason, by: float | None) -> None:
        """Request an extra worker and those of its job with higher indices, after the job's notice, or by `by`."""
        job, index = extra_worker.job, extra_worker.worker.index
        deadline = self._now + job.terms.notice_seconds
        if by is not None:
            deadline = min(deadline, max(by, self._now))
        made = self.made.get(job.key)
        if made is None:
            self._log.append((self._number, job.key, None, deadline))
            self.made[job.key] = ReclaimRequest(job, min(job.extra, index), deadline, reason)
            return
        self._log.append((self._number, job.key, made.extra, made.deadline))
        if index < made.extra:
            made.extra = index
        if deadline < made.deadline:
            made.deadline = deadline

    def ask_more(self, made: ReclaimRequest, extra_worker: ExtraWorker) -> None:
        """Extend the request to a job, which keeps this extra worker so far, without a change of its deadline."""
        self._log.append((self._number, made.job.key, made.extra, made.deadline))
        made.extra = extra_worker.worker.index

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that must give back workers and has no pending one."""
        return [
            NoticeReclaim(job=made.job.key, extra=made.extra, deadline=made.deadline, reason=made.reason)
            for made in self.made.values()
            if made.job.reclaim is None
        ]
