"""Search for extra workers to reclaim, in reclaim order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Capacity, Supply, Swap
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model import JobFacts, Worker
from espalier_operator.model.actions import NoticeReclaim
from espalier_operator.policies.decisions import LendingOrder
from espalier_operator.reclaim.extra_workers import (
    ExtraWorker,
    ExtraWorkers,
    ReclaimOrder,
    ReclaimRequest,
    ReclaimRequests,
)

MayTake = Callable[[JobFacts, int], bool]
"""Function of a holder and its remaining extra workers. The search ends where it returns False."""


class ReclaimQueue:
    """Reclaims as few extra workers as needed, in reverse order of lending rank, within a job from the highest index.

    A job with a pending reclaim gets no second notice: its remaining workers can be reclaimed once the first has ended.
    """

    def __init__(
        self,
        capacity: Capacity,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
        order: LendingOrder,
        now: float,
    ) -> None:
        """Take the running jobs and their live or promised extra workers; workers named in `leaving` are excluded.

        Reclaimed resources are counted in `capacity`, and requests are written to its transaction.
        """
        self._capacity, self._log = capacity, capacity.transaction.log
        self._number = capacity.transaction.undone_by(ReclaimOrder.rewind)
        self._futile: set[tuple[NodePool, int]] = set()
        """(Node pool, GPUs) of failed requests with `may_take`: a later one fails too."""
        self.surplus = 0
        """Number of reclaims that gave back more than was needed."""
        self._extra_workers, self._order = ExtraWorkers(jobs, extras, leaving), order
        self._now, self._reclaim_requests = now, ReclaimRequests(now, capacity.transaction)

    @cached_property
    def _lines(self) -> Mapping[str, ReclaimOrder]:
        """Reclaim order by type of GPU; made on first use, as more extra workers are known then."""
        return self._extra_workers.lines(self._order, self._now)

    def is_asked(self, job: str) -> bool:
        """Return whether this plan requests workers of `job`."""
        return job in self._reclaim_requests.made

    def is_vain(self, node_pool: NodePool, gpus: int) -> bool:
        """Return whether a request for `gpus` of one node of `node_pool` has failed, so that later ones fail too."""
        return (node_pool, gpus) in self._futile

    def extra_workers(self) -> Mapping[str, ResourceVector]:
        """Return the resources by node that can still be reclaimed."""
        return self._extra_workers.by_node(self._reclaim_requests.kept)

    def cover(
        self,
        node_pool: NodePool,
        gpus: int,
        may_take: MayTake | None = None,
        spared: Callable[[JobFacts], bool] | None = None,
    ) -> Supply:
        """Reclaim the least that frees `gpus` on one node of `node_pool`, and reserve them; nothing if that is
        impossible.

        Call it where no node of `node_pool` has them otherwise: only the nodes of reclaimed workers are examined. The
        reclaimed GPUs may instead go to a worker for which free GPUs were reserved; then `gpus` are handed out at once.
        `may_take(holder, extra workers left to it)` ends the search when it returns False; `spared` skips a holder.
        Calls with `may_take` come in the policy's order of lending: a failed request is not repeated before other
        reclaims change something.
        """
        if may_take is not None and (node_pool, gpus) in self._futile:
            return Supply.NEVER
        supply, _ = self._cover(node_pool, gpus, 1, may_take, spared)
        if supply is Supply.NEVER and may_take is not None:
            self._futile.add((node_pool, gpus))
        return supply

    def cover_some(self, node_pool: NodePool, gpus: int, workers: int) -> tuple[Supply, int]:
        """Do the same for successive `workers`, until a reclaim leaves something over.

        Return when the last of them has its GPUs, and the number served, including the one with a remainder, which may
        be enough for the next. NEVER: there are not enough for all.
        """
        return self._cover(node_pool, gpus, workers, None, None)

    def _swap(self, swap: Swap, line: ReclaimOrder, gpus: int, workers: int) -> int:
        """Serve as many of `workers` as possible from the head of the order, one extra worker each, like `_cover`.

        A plan may reclaim thousands of extra workers, nearly all of them here. `swap` is `Capacity.swapping`'s.
        """
        made, is_out, below = self._reclaim_requests.made, self._reclaim_requests.is_out, self._extra_workers.below
        for served in range(workers):
            extra_worker = line.at(line.first)
            if extra_worker is None:
                return served
            taken = made.get(extra_worker.job.key)
            if (
                taken is not None and extra_worker.worker.index >= taken.extra
            ):  # this one is requested already: take the job's next
                extra_worker = below(extra_worker.job.key, taken.extra)
            if extra_worker is None or not self._swap_one(swap, extra_worker, taken, gpus):
                return served
            line.first += 1
            if line.first < line.read:
                line.pass_over(is_out)
        return workers

    def _swap_one(self, swap: Swap, extra_worker: ExtraWorker, taken: ReclaimRequest | None, gpus: int) -> bool:
        """Request an extra worker if a worker of `gpus` takes exactly its GPUs; return whether it was requested.

        `taken` is the earlier request to its job.
        """
        worker = extra_worker.worker
        swapped = swap(worker.node or "", extra_worker.resources.requests) if worker.gpus == gpus else None
        if swapped is None:
            return False
        if not swapped:
            self.surplus += 1
            self._futile.clear()
        if taken is None:
            self._futile.clear()
            self._reclaim_requests.ask(extra_worker, Reason.NEEDED_BY_OTHER_JOB, None)
        else:
            self._reclaim_requests.ask_more(taken, extra_worker)
        return True

    def _cover(
        self,
        node_pool: NodePool,
        gpus: int,
        workers: int,
        may_take: MayTake | None,
        spared: Callable[[JobFacts], bool] | None,
    ) -> tuple[Supply, int]:
        """Implement `cover_some`; undoing it rewinds the reclaim order."""
        line = self._lines.get(node_pool.gpu_type)
        if line is None:
            return Supply.NEVER, 0
        first, mark = line.first, len(self._log)
        found = self._cover_from(line, node_pool, gpus, workers, may_take, spared)
        if len(self._log) > mark:
            self._log.append((self._number, line, first))
        return found

    def _cover_from(
        self,
        line: ReclaimOrder,
        node_pool: NodePool,
        gpus: int,
        workers: int,
        may_take: MayTake | None,
        spared: Callable[[JobFacts], bool] | None,
    ) -> tuple[Supply, int]:
        capacity, supply = self._capacity, Supply.NOW
        reclaim_candidates = partial(in_turn, line, self._extra_workers, self._reclaim_requests.made, may_take)
        search, tried, found, begin = reclaim_candidates(), list[ExtraWorker](), dict[str, ResourceVector](), line.first
        """`found`: resources held by `tried`, by node."""
        takes_all, served, swap = may_take is None and spared is None, 0, capacity.swapping(node_pool, gpus)
        while served < workers:
            if takes_all and not tried:
                swapped = self._swap(swap, line, gpus, workers - served)
                if swapped:
                    search, begin, supply = reclaim_candidates(), line.first, Supply.LATER
                    served += swapped
                    continue
            for extra_worker in search:
                node = extra_worker.worker.node
                if node is None or not capacity.is_in(node_pool, node):
                    continue
                if spared is not None and spared(extra_worker.job):
                    continue
                alone = node not in found and not (tried and tried[-1].job is extra_worker.job)
                is_swapped = alone and self._swap_one(
                    swap, extra_worker, self._reclaim_requests.made.get(extra_worker.job.key), gpus
                )
                if is_swapped:
                    break
                tried.append(extra_worker)
                resources = found[node] = (
                    extra_worker.resources if node not in found else found[node] + extra_worker.resources
                )
                if capacity.fits_with(node, node_pool, gpus, resources):
                    break
            else:
                return Supply.NEVER, served
            served += 1
            if is_swapped:
                line.pass_over(self._reclaim_requests.is_out)
                supply = Supply.LATER
                if line.first != begin:
                    search, tried, found, begin = reclaim_candidates(), [], {}, line.first
                continue
            asked, all_known = self._ask_for([extra_worker] if alone else tried, node)
            is_even = _is_even(capacity, asked, node_pool, gpus)
            if not (is_even and all_known):
                self._futile.clear()
            line.pass_over(self._reclaim_requests.is_out)
            if not is_even:
                self.surplus += 1
                for each in asked:
                    capacity.expect(each.worker.node, each.worker.gpus, each.resources.requests)
                return min(supply, capacity.hold_at(node_pool, node, gpus)), served
            supply = min(supply, capacity.exchange(node_pool, node, gpus, extra_worker.resources.requests))
            if line.first != begin:  # others are next in the reclaim order
                search, tried, found, begin = reclaim_candidates(), [], {}, line.first
            else:  # the search would fail for the same ones as before up to this one: no node has more than it had
                tried.pop()
                del found[node]
        return supply, workers

    def leave_node(self, node: str, gpus: int, by: float | None) -> None:
        """Reclaim extra workers on `node` until `gpus` of it, which depart at `by`, are given back.

        Workers known to use failed GPUs come first.
        """
        there = (
            [extra_worker for line in self._lines.values() for extra_worker in line if extra_worker.worker.node == node]
            if gpus > 0
            else []
        )
        for extra_worker in sorted(there, key=lambda extra_worker: not extra_worker.worker.broken):
            if gpus <= 0:
                return
            if not self._reclaim_requests.is_out(extra_worker):
                gpus -= sum(other.worker.gpus for other in self._above(extra_worker) if other.worker.node == node)
                self._leave(extra_worker, Reason.GPU_LOST, by)

    def leave(self, names: Collection[str]) -> None:
        """Reclaim the extra workers of these `names`, which are asked to leave."""
        for line in self._lines.values() if names else ():
            for extra_worker in line:
                if extra_worker.worker.name in names and not self._reclaim_requests.is_out(extra_worker):
                    self._leave(extra_worker, Reason.EVICTION_REQUESTED, None)

    def _leave(self, extra_worker: ExtraWorker, reason: Reason, by: float | None) -> None:
        for other in self._above(extra_worker):
            self._capacity.expect(other.worker.node, other.worker.gpus, other.resources.requests)
        self._reclaim_requests.ask(extra_worker, reason, by)

    def lent_in_namespace(self, key: str, lacks: Mapping[str, int]) -> list[ExtraWorker] | None:
        """Return extra workers in the namespace of the job `key` that together request the amounts that it `lacks`.

        None where there are not enough.
        """
        prefix, missing = f"{key.partition('/')[0]}/", dict(lacks)
        found: list[ExtraWorker] = []
        for line in self._lines.values():
            for extra_worker in line:
                if not any(amount > 0 for amount in missing.values()):
                    break
                if (
                    not extra_worker.job.key.startswith(prefix)
                    or extra_worker.job.reclaim is not None
                    or self._reclaim_requests.is_out(extra_worker)
                ):
                    continue
                demand = {
                    **dict(extra_worker.resources.requests),
                    extra_worker.job.terms.gpu_resource: extra_worker.resources.gpus,
                }
                if any(demand.get(name) for name, amount in missing.items() if amount > 0):
                    found.append(extra_worker)
                    missing = {name: amount - demand.get(name, 0) for name, amount in missing.items()}
        return None if any(amount > 0 for amount in missing.values()) else found

    def ask_back(self, extra_workers: Iterable[ExtraWorker]) -> None:
        """Reclaim these extra workers, without reserving their GPUs."""
        for extra_worker in extra_workers:
            self._capacity.expect(extra_worker.worker.node, extra_worker.worker.gpus, extra_worker.resources.requests)
            self._reclaim_requests.ask(extra_worker, Reason.NEEDED_BY_OTHER_JOB, None)

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that must give back workers."""
        return self._reclaim_requests.notices()

    def _above(self, extra_worker: ExtraWorker) -> list[ExtraWorker]:
        above = (
            other
            for other in self._extra_workers.of(extra_worker.job.key)
            if other.worker.index >= extra_worker.worker.index
        )
        return [other for other in above if not self._reclaim_requests.is_out(other)]

    def _ask_for(self, tried: list[ExtraWorker], node: str) -> tuple[list[ExtraWorker], bool]:
        """Reclaim the extra workers of `tried` on `node`, and those that must leave before them.

        Return these, and whether all their holders had requests before.
        """
        if len(tried) == 1:
            known = tried[0].job.key in self._reclaim_requests.made
            self._reclaim_requests.ask(tried[0], Reason.NEEDED_BY_OTHER_JOB, None)
            return tried, known
        lowest: dict[str, int] = {}
        asked, all_known = [], True
        for extra_worker in tried:
            if extra_worker.worker.node == node:
                lowest[extra_worker.job.key] = extra_worker.worker.index
        for extra_worker in tried:
            if extra_worker.worker.index >= lowest.get(extra_worker.job.key, extra_worker.job.extra):
                all_known = all_known and extra_worker.job.key in self._reclaim_requests.made
                asked.append(extra_worker)
                self._reclaim_requests.ask(extra_worker, Reason.NEEDED_BY_OTHER_JOB, None)
        return asked, all_known


def _is_even(capacity: Capacity, asked: Sequence[ExtraWorker], node_pool: NodePool, gpus: int) -> bool:
    """Return whether a worker of `gpus` takes all that `asked` give back, with nothing left for others."""
    if len(asked) != 1 or asked[0].worker.gpus != gpus:
        return False
    same = asked[0].job.terms.constraints.requests == node_pool.requests
    return same or not capacity.can_run_short(asked[0].worker.node)


def in_turn(
    line: ReclaimOrder, extra_workers: ExtraWorkers, made: Mapping[str, ReclaimRequest], may_take: MayTake | None
) -> Iterator[ExtraWorker]:
    """Yield candidates for reclaim.

    Where one extra worker is not enough, its holder's other extra workers follow directly: a worker of many GPUs thus
    takes from as few jobs as possible. Extra workers requested already in `made` are left out.
    """
    seen, at = set[str](), line.first
    run = at  # start of the entries, up to `at`, whose holders must give back all: no search need read them again
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
        own, asked = extra_workers.of(key), made.get(key)
        if asked is not None and own[-1].worker.index >= asked.extra:
            line.beyond[run] = at
            continue
        seen.add(key)
        run = at
        for place in range(first.place, len(own)):
            extra_worker = own[place]
            if (
                may_take is not None
                and place > first.place
                and not may_take(extra_worker.job, extra_worker.worker.index)
            ):
                break
            asked = made.get(key)
            if asked is None or extra_worker.worker.index < asked.extra:
                yield extra_worker
