"""The extra workers that can be reclaimed, in the order in which that is done."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Capacity, Supply, Swap
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_pools import NodePool
from espalier_operator.model import JobFacts, Worker
from espalier_operator.model.actions import NoticeReclaim
from espalier_operator.policies.order import LendingOrder
from espalier_operator.reclaim.extra_workers import (
    ExtraWorker,
    ExtraWorkers,
    ReclaimOrder,
    ReclaimRequest,
    ReclaimRequests,
)

MayTake = Callable[[JobFacts, int], bool]
"""Takes a holder, and how many extra workers would be left to it. The search ends where it returns False."""


@dataclass(frozen=True, slots=True)
class UndoMark:
    """A point to which `ReclaimQueue.undo` can return."""

    asked: int
    """How often workers had been asked for."""
    first: Mapping[str, int]
    """By type of GPU: where the search begins."""


class ReclaimQueue:
    """Reclaims as few extra workers as needed, in reverse order of lending rank, within a job from the highest index.

    A job with a pending reclaim gets no second notice: its remaining workers can be reclaimed once that has ended.
    """

    def __init__(
        self,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
        order: LendingOrder,
        now: float,
    ) -> None:
        """Take the running jobs and their live or promised extra workers; those named in `leaving` are excluded."""
        self._futile: set[tuple[NodePool, int]] = set()
        """(Site, GPUs of a worker) for which a wish found nothing that it may take; nor will one that comes later."""
        self.surplus = 0
        """How often a reclaim gave more back than was needed."""
        self._asks = ReclaimRequests(now)
        self._loans = ExtraWorkers(jobs, extras, leaving)
        self._lines = self._loans.lines(order)

    def mark(self) -> UndoMark:
        """Return the reclaims chosen so far, for `undo`."""
        return UndoMark(self._asks.mark(), {gpu_type: line.first for gpu_type, line in self._lines.items()})

    def undo(self, mark: UndoMark) -> None:
        """Drop the reclaims chosen since `mark`."""
        self._asks.undo(mark.asked)
        self._futile.clear()
        for gpu_type, line in self._lines.items():
            line.first = mark.first[gpu_type]
            line.beyond.clear()

    def is_asked(self, job: str) -> bool:
        """Return whether `job` must give back workers in this tick."""
        return job in self._asks.made

    def is_vain(self, site: NodePool, gpus: int) -> bool:
        """Return whether a wish for `gpus` of one node of `site` has found none, nor will one that comes later."""
        return (site, gpus) in self._futile

    def loans(self) -> Mapping[str, ResourceVector]:
        """Return by node what can still be reclaimed."""
        return self._loans.by_node(self._asks.kept)

    def cover(
        self,
        capacity: Capacity,
        site: NodePool,
        gpus: int,
        may_take: MayTake | None = None,
        spared: Callable[[JobFacts], bool] | None = None,
    ) -> Supply:
        """Reclaim as little as frees `gpus` on one node of `site`, and reserve them; nothing if they cannot be had.

        To be called where no node of `site` has them without that: only the nodes of reclaimed workers are looked at.
        The reclaimed GPUs may instead go to a worker for which GPUs that are free now were reserved; then `gpus` are
        handed out at once. `may_take(holder, extra workers left to it)` ends the search when it returns False;
        `spared` skips a holder. Calls with `may_take` come in the policy's order of lending: what was in vain is not
        tried again before the reclaims of others change something.
        """
        if may_take is not None and (site, gpus) in self._futile:
            return Supply.NEVER
        supply, _ = self._cover(capacity, site, gpus, 1, may_take, spared)
        if supply is Supply.NEVER and may_take is not None:
            self._futile.add((site, gpus))
        return supply

    def cover_some(self, capacity: Capacity, site: NodePool, gpus: int, workers: int) -> tuple[Supply, int]:
        """Do so for each of as many of `workers` as take all that is given back for them.

        Return when the last of them has its GPUs, and for how many that was done, one that leaves something included.
        What it leaves may be enough for the next. NEVER: there are not enough for all.
        """
        return self._cover(capacity, site, gpus, workers, None, None)

    def _swap(self, swap: Swap, line: ReclaimOrder, gpus: int, workers: int) -> int:
        """Serve as many of `workers` as the loans at the head of the line can, one each, as `_cover` would.

        Thousands of loans go back in a plan, nearly all of them like this. `swap` is that of the capacity.
        """
        made, is_out, below = self._asks.made, self._asks.is_out, self._loans.below
        for served in range(workers):
            loan = line.at(line.first)
            if loan is None:
                return served
            taken = made.get(loan.job.key)
            if taken is not None and loan.worker.index >= taken.extra:  # the job has given this one: it gives another
                loan = below(loan.job.key, taken.extra)
            if loan is None or not self._swap_one(swap, loan, taken, gpus):
                return served
            line.first += 1
            if line.first < line.read:
                line.pass_over(is_out)
        return workers

    def _swap_one(self, swap: Swap, loan: ExtraWorker, taken: ReclaimRequest | None, gpus: int) -> bool:
        """Ask for a loan where a worker of `gpus` takes its GPUs; return whether that is so.

        `taken` is what its job is asked for already.
        """
        worker = loan.worker
        swapped = swap(worker.node or "", loan.goods.requests) if worker.gpus == gpus else None
        if swapped is None:
            return False
        if not swapped:
            self.surplus += 1
            self._futile.clear()
        if taken is None:
            self._futile.clear()
            self._asks.ask(loan, Reason.NEEDED_BY_OTHER_JOB, None)
        else:
            self._asks.ask_more(taken, loan)
        return True

    def _cover(
        self,
        capacity: Capacity,
        site: NodePool,
        gpus: int,
        workers: int,
        may_take: MayTake | None,
        spared: Callable[[JobFacts], bool] | None,
    ) -> tuple[Supply, int]:
        line, supply = self._lines.get(site.gpu_type), Supply.NOW
        if line is None:
            return Supply.NEVER, 0
        turns = partial(in_turn, line, self._loans, self._asks.made, may_take)
        search, tried, found, begin = turns(), list[ExtraWorker](), dict[str, ResourceVector](), line.first
        """By node: what those tried hold of it."""
        takes_all, served, swap = may_take is None and spared is None, 0, capacity.swapping(site, gpus)
        while served < workers:
            if takes_all and not tried:
                swapped = self._swap(swap, line, gpus, workers - served)
                if swapped:
                    search, begin, supply = turns(), line.first, Supply.LATER
                    served += swapped
                    continue
            for loan in search:
                node = loan.worker.node
                if node is None or not capacity.is_in(site, node):
                    continue
                if spared is not None and spared(loan.job):
                    continue
                alone = node not in found and not (tried and tried[-1].job is loan.job)
                is_swapped = alone and self._swap_one(swap, loan, self._asks.made.get(loan.job.key), gpus)
                if is_swapped:
                    break
                tried.append(loan)
                goods = found[node] = loan.goods if node not in found else found[node] + loan.goods
                if capacity.fits_with(node, site, gpus, goods):
                    break
            else:
                return Supply.NEVER, served
            served += 1
            if is_swapped:
                line.pass_over(self._asks.is_out)
                supply = Supply.LATER
                if line.first != begin:
                    search, tried, found, begin = turns(), [], {}, line.first
                continue
            asked, all_known = self._ask_for([loan] if alone else tried, node)
            is_even = _is_even(capacity, asked, site, gpus)
            if not (is_even and all_known):
                self._futile.clear()
            line.pass_over(self._asks.is_out)
            if not is_even:
                self.surplus += 1
                for each in asked:
                    capacity.expect(each.worker.node, each.worker.gpus, each.goods.requests)
                return min(supply, capacity.hold_at(site, node, gpus)), served
            supply = min(supply, capacity.exchange(site, node, gpus, loan.goods.requests))
            if line.first != begin:  # others are next in the order of reclaim
                search, tried, found, begin = turns(), [], {}, line.first
            else:  # the search would fail for the same loans as before up to this one: no node has more than it had
                tried.pop()
                del found[node]
        return supply, workers

    def leave_node(self, capacity: Capacity, node: str, gpus: int, by: float | None) -> None:
        """Reclaim lent workers on `node` until `gpus` of it are given back: these GPUs depart at `by`.

        First those that are known to use GPUs that have failed.
        """
        there = [loan for line in self._lines.values() for loan in line if loan.worker.node == node] if gpus > 0 else []
        for loan in sorted(there, key=lambda loan: not loan.worker.broken):
            if gpus <= 0:
                return
            if not self._asks.is_out(loan):
                gpus -= sum(other.worker.gpus for other in self._above(loan) if other.worker.node == node)
                for other in self._above(loan):
                    capacity.expect(other.worker.node, other.worker.gpus, other.goods.requests)
                self._asks.ask(loan, Reason.GPU_LOST, by)

    def lent_in_namespace(self, key: str, lacks: Mapping[str, int]) -> list[ExtraWorker] | None:
        """Return as few loans in the namespace of the job `key` as request what it `lacks`, by resource.

        None where there are not enough.
        """
        prefix, missing = f"{key.partition('/')[0]}/", dict(lacks)
        found: list[ExtraWorker] = []
        for line in self._lines.values():
            for loan in line:
                if not any(amount > 0 for amount in missing.values()):
                    break
                if not loan.job.key.startswith(prefix) or loan.job.reclaim is not None or self._asks.is_out(loan):
                    continue
                demand = {**dict(loan.goods.requests), loan.job.terms.gpu_resource: loan.goods.gpus}
                if any(demand.get(name) for name, amount in missing.items() if amount > 0):
                    found.append(loan)
                    missing = {name: amount - demand.get(name, 0) for name, amount in missing.items()}
        return None if any(amount > 0 for amount in missing.values()) else found

    def ask_back(self, capacity: Capacity, loans: Iterable[ExtraWorker]) -> None:
        """Reclaim these loans, whoever gets their GPUs."""
        for loan in loans:
            capacity.expect(loan.worker.node, loan.worker.gpus, loan.goods.requests)
            self._asks.ask(loan, Reason.NEEDED_BY_OTHER_JOB, None)

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that must give back workers."""
        return self._asks.notices()

    def _above(self, loan: ExtraWorker) -> list[ExtraWorker]:
        above = (other for other in self._loans.of(loan.job.key) if other.worker.index >= loan.worker.index)
        return [other for other in above if not self._asks.is_out(other)]

    def _ask_for(self, tried: list[ExtraWorker], node: str) -> tuple[list[ExtraWorker], bool]:
        """Of `tried`, reclaim those on `node` and those that must leave before them.

        Return those, and whether all their holders were asked for something before.
        """
        if len(tried) == 1:
            known = tried[0].job.key in self._asks.made
            self._asks.ask(tried[0], Reason.NEEDED_BY_OTHER_JOB, None)
            return tried, known
        lowest: dict[str, int] = {}
        asked, all_known = [], True
        for loan in tried:
            if loan.worker.node == node:
                lowest[loan.job.key] = loan.worker.index
        for loan in tried:
            if loan.worker.index >= lowest.get(loan.job.key, loan.job.extra):
                all_known = all_known and loan.job.key in self._asks.made
                asked.append(loan)
                self._asks.ask(loan, Reason.NEEDED_BY_OTHER_JOB, None)
        return asked, all_known


def _is_even(capacity: Capacity, asked: Sequence[ExtraWorker], site: NodePool, gpus: int) -> bool:
    """Return whether a worker of `gpus` takes all that `asked` give back: nothing is left that others could use."""
    if len(asked) != 1 or asked[0].worker.gpus != gpus:
        return False
    same = asked[0].job.terms.constraints.requests == site.requests
    return same or not capacity.can_run_short(asked[0].worker.node)


def in_turn(
    line: ReclaimOrder, loans: ExtraWorkers, made: Mapping[str, ReclaimRequest], may_take: MayTake | None
) -> Iterator[ExtraWorker]:
    """Yield candidates for reclaim.

    Where one loan is not enough, its holder's other loans follow directly: a worker of many GPUs thus takes from as
    few jobs as possible. What a job is asked for already, as `made` says, is left out.
    """
    seen, at = set[str](), line.first
    run = at  # where the loans begin, up to `at`, whose holders are asked for all: no search need read them again
    while True:
        beyond = line.beyond.get(at)
        if beyond is not None:
            at = line.beyond[run] = beyond
            continue
        first = line.at(at)
        if first is None:
            return
        at += 1
        key = first.job.key
        if may_take is not None and not may_take(first.job, first.worker.index):
            return
        if key in seen:
            run = at
            continue
        own, asked = loans.of(key), made.get(key)
        if asked is not None and own[-1].worker.index >= asked.extra:
            line.beyond[run] = at
            continue
        seen.add(key)
        run = at
        for place in range(first.place, len(own)):
            loan = own[place]
            if may_take is not None and place > first.place and not may_take(loan.job, loan.worker.index):
                break
            asked = made.get(key)
            if asked is None or loan.worker.index < asked.extra:
                yield loan
