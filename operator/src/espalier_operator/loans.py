"""Lent extra workers, in the order in which they are reclaimed, and what they hold by node. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from espalier_operator.facts import JobFacts, Worker
from espalier_operator.goods import NOTHING, Goods
from espalier_operator.order import Order, Rank

_MERGED: Final = 64
"""How many loans of a line are merged."""


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
    """The loans on one type of GPU in the order of reclaim; most plans read few of them.

    So the first ones are merged from the jobs' loans one by one, and if more are read all are sorted, which is faster.
    """

    def __init__(self, merged: Iterator[Loan], in_order: Callable[[], list[Loan]]) -> None:
        """Both give the same loans in the same order."""
        self._rest, self._in_order = merged, in_order
        self._sorted: list[Loan] = []
        self._is_whole = False
        self.read = 0
        """How many were read, by any search."""
        self.first = 0
        """The place of the first that was not passed over for good."""
        self.beyond: dict[int, int] = {}
        """By place where there is nothing to be had any more: the next place where there may be."""

    def __iter__(self) -> Iterator[Loan]:
        """Yield from `first`."""
        place = self.first
        while (loan := self.at(place)) is not None:
            yield loan
            place += 1

    def at(self, place: int) -> Loan | None:
        """Return the loan at `place`, no further than the next that was not read; None if there is none."""
        return self._sorted[place] if place < self.read or self._read_one() else None

    def pass_over(self, is_out: Callable[[Loan], bool]) -> None:
        """Start the next search after the entries at the head that are out, as far as they were read."""
        while self.first < self.read and is_out(self._sorted[self.first]):
            self.first += 1

    def _read_one(self) -> bool:
        if not self._is_whole and self.read == _MERGED:
            self._sorted, self._is_whole = self._in_order(), True
        if self._is_whole:
            if self.read == len(self._sorted):
                return False
        elif (loan := next(self._rest, None)) is not None:
            self._sorted.append(loan)
        else:
            return False
        self.read += 1
        return True


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
            self._by_job[key] = loans
        return loans

    def lines(self, order: Order) -> dict[str, Line]:
        """Return by type of GPU its loans in reverse order of lending rank, within a job from the highest index."""
        holders: dict[str, list[str]] = defaultdict(list)
        for key, job in self._holders.items():
            holders[job.gpu_type or ""].append(key)

        @cache
        def ranked(key: str) -> list[tuple[Rank, Loan]]:
            loans = self.of(key)
            ranks = order.lending_ranks(self._holders[key], [loan.worker.index for loan in loans])
            return list(zip(ranks, loans, strict=True))

        def merged(keys: Iterable[str]) -> Iterator[Loan]:
            for _, loan in heapq.merge(*map(ranked, keys), key=itemgetter(0), reverse=True):
                yield loan

        def in_order(keys: Iterable[str]) -> list[Loan]:
            # A stable sort, as the merge is.
            pairs = sorted(chain.from_iterable(map(ranked, keys)), key=itemgetter(0), reverse=True)
            return [loan for _, loan in pairs]

        return {gpu_type: Line(merged(keys), partial(in_order, keys)) for gpu_type, keys in holders.items()}

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
