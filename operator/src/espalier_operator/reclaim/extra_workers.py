"""Lent extra workers in the order in which they are reclaimed, what they hold by node, what is asked back. Pure."""

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
from espalier_operator.reclaim.victims import lost_seconds


class ExtraWorker(NamedTuple):
    """An extra worker that can be reclaimed."""

    job: JobFacts
    worker: Worker
    """Bound, or expected on its node."""
    resources: ResourceVector
    """What it holds of the node."""
    place: int
    """Among the extra workers of the job, in the order in which they are asked back."""


class ReclaimOrder:
    """The extra workers on one type of GPU in the order of reclaim."""

    def __init__(self, in_order: Callable[[], list[ExtraWorker]]) -> None:
        """Sort them when the first is read: most plans read none."""
        self._in_order = in_order
        self.read = 0
        """How many were read, by any search."""
        self.first = 0
        """The place of the first that was not passed over for good."""
        self.beyond: dict[int, int] = {}
        """By place where there is nothing to be had any more: the next place where there may be."""

    def rewind(self, first: int) -> None:
        """Start the next search at `first` again, where some are no longer asked back."""
        self.first = first
        self.beyond.clear()

    @cached_property
    def extra_workers(self) -> list[ExtraWorker]:
        """All of them."""
        return self._in_order()

    def __iter__(self) -> Iterator[ExtraWorker]:
        """Yield from `first`."""
        place = self.first
        while (extra_worker := self.at(place)) is not None:
            yield extra_worker
            place += 1

    def at(self, place: int) -> ExtraWorker | None:
        """Return the extra worker at `place`, no further than the next that was not read; None if there is none."""
        if place >= self.read:
            if self.read == len(self.extra_workers):
                return None
            self.read += 1
        return self.extra_workers[place]

    def pass_over(self, is_out: Callable[[ExtraWorker], bool]) -> None:
        """Start the next search after the entries at the head that are out, as far as they were read."""
        while self.first < self.read and is_out(self.extra_workers[self.first]):
            self.first += 1


class ExtraWorkers:
    """The extra workers of running jobs: live or promised extra workers that are not leaving."""

    def __init__(
        self,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
    ) -> None:
        """Take the running jobs and their extra workers; those named in `leaving` are excluded."""
        self._extras, self._leaving = extras, leaving
        self._holders = {job.key: job for job in jobs if job.extra}
        self._by_job: dict[str, list[ExtraWorker]] = {}
        self._falling: dict[str, list[int]] = {}
        """By job: the indices of its extra workers, negated, so that they rise."""
        self._lent: dict[str, ResourceVector] = {}
        """By node: what is lent there, as of the last call of `by_node`."""
        self._counted: dict[str, tuple[int, dict[str, ResourceVector]]] = {}
        """By job: how many workers it was to keep then, and what of `_lent` is its."""

    def of(self, key: str) -> list[ExtraWorker]:
        """Return the extra workers of a job, the first to be asked back first."""
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
        """Return the next one of a job whose extra workers were read, if it keeps `kept` of them; None: it has none."""
        extra_workers = self._by_job[key]
        place = bisect_right(self._falling[key], -kept)
        return extra_workers[place] if place < len(extra_workers) else None

    def lines(self, order: LendingOrder, now: float) -> dict[str, ReclaimOrder]:
        """Return them by type of GPU in reverse order of lending rank, within a job from the highest index.

        Spare workers of one level are equals to the policy: those go first whose jobs lose least.
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
        """Return by node what is lent there beyond what each job `keeps` (extra workers, the lowest indices)."""
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
        """Return by node what those of a job hold that can still be asked back: it keeps `kept` workers."""
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
    """What one job is asked for."""

    job: JobFacts
    extra: int
    """The extra workers that it keeps, those with the lowest indices."""
    deadline: float
    reason: Reason


class ReclaimRequests:
    """The reclaim requests of one plan."""

    def __init__(self, now: float, transaction: Transaction) -> None:
        """Ask for nothing; changes are written to `transaction`."""
        self._now, self._log, self._number = now, transaction.log, transaction.undone_by(self._restore)
        self.made: dict[str, ReclaimRequest] = {}
        """By job."""

    def _restore(self, job: str, extra: int | None, deadline: float) -> None:
        """Undo a request: let a job keep `extra` again until `deadline`; None: it is asked for nothing."""
        if extra is None:
            del self.made[job]
        else:
            self.made[job].extra, self.made[job].deadline = extra, deadline

    def kept(self, job: JobFacts) -> int:
        """Return how many extra workers a job keeps."""
        made = self.made.get(job.key)
        return job.extra if made is None else made.extra

    def is_out(self, extra_worker: ExtraWorker) -> bool:
        """Return whether an extra worker is asked back."""
        made = self.made.get(extra_worker.job.key)
        return made is not None and extra_worker.worker.index >= made.extra

    def ask(self, extra_worker: ExtraWorker, reason: Reason, by: float | None) -> None:
        """Ask for one and those of its job with higher indices, after the job's notice, or earlier: `by` a time."""
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
        """Do what `ask` does where the job is asked already, and keeps this one; at the deadline that stands."""
        self._log.append((self._number, made.job.key, made.extra, made.deadline))
        made.extra = extra_worker.worker.index

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that must give back workers and has none yet."""
        return [
            NoticeReclaim(job=made.job.key, extra=made.extra, deadline=made.deadline, reason=made.reason)
            for made in self.made.values()
            if made.job.reclaim is None
        ]
