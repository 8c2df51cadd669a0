"""Lent extra workers, in the order in which they are reclaimed, and what they hold by node. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import NamedTuple

from espalier_operator.cluster.resources import NOTHING, Goods
from espalier_operator.model import JobFacts, Worker
from espalier_operator.policies.order import Order, Rank


class Loan(NamedTuple):
    """An extra worker that can be reclaimed."""

    job: JobFacts
    worker: Worker
    """Bound, or expected on its node."""
    goods: Goods
    """What it holds of the node."""
    place: int
    """Among the loans of the job, in the order in which they are asked back."""


class Line:
    """The loans on one type of GPU in the order of reclaim."""

    def __init__(self, in_order: Callable[[], list[Loan]]) -> None:
        """Sort them when the first is read: most plans read none."""
        self._in_order = in_order
        self.read = 0
        """How many were read, by any search."""
        self.first = 0
        """The place of the first that was not passed over for good."""
        self.beyond: dict[int, int] = {}
        """By place where there is nothing to be had any more: the next place where there may be."""

    @cached_property
    def loans(self) -> list[Loan]:
        """All of them."""
        return self._in_order()

    def __iter__(self) -> Iterator[Loan]:
        """Yield from `first`."""
        place = self.first
        while (loan := self.at(place)) is not None:
            yield loan
            place += 1

    def at(self, place: int) -> Loan | None:
        """Return the loan at `place`, no further than the next that was not read; None if there is none."""
        if place >= self.read:
            if self.read == len(self.loans):
                return None
            self.read += 1
        return self.loans[place]

    def pass_over(self, is_out: Callable[[Loan], bool]) -> None:
        """Start the next search after the entries at the head that are out, as far as they were read."""
        while self.first < self.read and is_out(self.loans[self.first]):
            self.first += 1


class Loans:
    """The loans of running jobs: live or promised extra workers that are not leaving."""

    def __init__(
        self,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
    ) -> None:
        """Take the running jobs and their extra workers; those named in `leaving` are excluded."""
        self._extras, self._leaving = extras, leaving
        self._holders = {job.key: job for job in jobs if job.extra}
        self._by_job: dict[str, list[Loan]] = {}
        self._falling: dict[str, list[int]] = {}
        """By job: the indices of its loans, negated, so that they rise."""
        self._lent: dict[str, Goods] = {}
        """By node: what is lent there, as of the last call of `by_node`."""
        self._counted: dict[str, tuple[int, dict[str, Goods]]] = {}
        """By job: how many workers it was to keep then, and what of `_lent` is its."""

    def of(self, key: str) -> list[Loan]:
        """Return the loans of a job, the first to be asked back first."""
        loans = self._by_job.get(key)
        if loans is None:
            job = self._holders[key]
            lent = [worker for worker in self._extras[key] if worker.node and worker.name not in self._leaving]
            lent.sort(key=attrgetter("index"), reverse=True)
            requests = job.terms.constraints.requests
            goods = {gpus: Goods(gpus, requests) for gpus in {worker.gpus for worker in lent}}
            loans = [Loan(job, worker, goods[worker.gpus], place) for place, worker in enumerate(lent)]
            self._by_job[key], self._falling[key] = loans, [-worker.index for worker in lent]
        return loans

    def below(self, key: str, kept: int) -> Loan | None:
        """Return the next loan of a job whose loans were read, if it keeps `kept` extra workers; None: it has none."""
        loans = self._by_job[key]
        place = bisect_right(self._falling[key], -kept)
        return loans[place] if place < len(loans) else None

    def lines(self, order: Order) -> dict[str, Line]:
        """Return by type of GPU its loans in reverse order of lending rank, within a job from the highest index."""
        holders: dict[str, list[JobFacts]] = defaultdict(list)
        for job in self._holders.values():
            holders[job.gpu_type or ""].append(job)

        def in_order(jobs: Iterable[JobFacts]) -> list[Loan]:
            levels: dict[Rank, list[Loan]] = defaultdict(list)
            for job in order.last_first(jobs):
                loans = self.of(job.key)
                for level, loan in zip(order.levels(job, [loan.worker.index for loan in loans]), loans, strict=True):
                    levels[level].append(loan)
            return [loan for level in sorted(levels, reverse=True) for loan in levels[level]]

        return {gpu_type: Line(partial(in_order, jobs)) for gpu_type, jobs in holders.items()}

    def by_node(self, keeps: Callable[[JobFacts], int]) -> Mapping[str, Goods]:
        """Return by node what is lent there beyond what each job `keeps` (extra workers, the lowest indices)."""
        for key, job in self._holders.items():
            kept, known = keeps(job), self._counted.get(key)
            if known is not None and known[0] == kept:
                continue
            before, after = {} if known is None else known[1], self._held_beyond(key, kept)
            for node, goods in before.items():
                self._lent[node] -= goods
            for node, goods in after.items():
                self._lent[node] = self._lent.get(node, NOTHING) + goods
            self._counted[key] = kept, after
        return self._lent

    def _held_beyond(self, key: str, kept: int) -> dict[str, Goods]:
        """Return by node what those of a job's loans hold that can still be asked back: it keeps `kept` workers."""
        workers: dict[tuple[str, int], int] = defaultdict(int)
        for loan in self.of(key):
            worker = loan.worker
            if worker.index < kept and worker.node is not None:
                workers[worker.node, worker.gpus] += 1
        requests, held = self._holders[key].terms.constraints.requests, dict[str, Goods]()
        kinds = {(gpus, count) for (_, gpus), count in workers.items()}  # few: nodes are filled
        goods = {(gpus, count): Goods(gpus, requests) * count for gpus, count in kinds}
        for (node, gpus), count in workers.items():
            held[node] = held.get(node, NOTHING) + goods[gpus, count]
        return held
