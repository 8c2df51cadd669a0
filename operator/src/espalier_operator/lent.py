"""The extra workers that can be asked back, in the order in which they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from espalier_api.reasons import Reason
from espalier_operator.actions import NoticeReclaim
from espalier_operator.facts import JobFacts, Worker
from espalier_operator.policies import Policy
from espalier_operator.room import Room, Supply


@dataclass(frozen=True, slots=True)
class _Loan:
    job: JobFacts
    worker: Worker


@dataclass(slots=True)
class _Taken:
    job: JobFacts
    extra: int
    deadline: float
    reason: Reason


class Lent:
    """Whom to ask: the worst lending rank first, within a job the highest index, for nothing that is not needed.

    A job that is already giving back is not given a second notice: what it keeps is counted on, and asked for when
    the standing reclaim is over.
    """

    def __init__(
        self,
        jobs: Iterable[JobFacts],
        extras: Mapping[str | None, Sequence[Worker]],
        leaving: Container[str],
        policy: Policy,
        now: float,
    ) -> None:
        """Take the running jobs and their live or promised extra workers; those named in `leaving` go already."""
        self._now = now
        self._taken: dict[str, _Taken] = {}
        self._loans: dict[str, list[_Loan]] = defaultdict(list)
        self._first: dict[str, int] = defaultdict(int)
        holders = [job for job in jobs if job.extra]
        holders.sort(key=lambda job: policy.lending_rank(job, job.extra, now), reverse=True)
        for job in holders:
            lent = [worker for worker in extras[job.key] if worker.node and worker.name not in leaving]
            lent.sort(key=lambda worker: -worker.index)
            self._loans[job.gpu_type or ""] += [_Loan(job, worker) for worker in lent]

    def mark(self) -> dict[str, tuple[int, float]]:
        """Return what is asked so far, for `undo`."""
        return {key: (taken.extra, taken.deadline) for key, taken in self._taken.items()}

    def undo(self, mark: dict[str, tuple[int, float]]) -> None:
        """Ask again for no more than was asked at `mark`."""
        for key in list(self._taken):
            if key not in mark:
                del self._taken[key]
            else:
                self._taken[key].extra, self._taken[key].deadline = mark[key]
        self._first.clear()

    def is_asked(self, job: str) -> bool:
        """Return whether `job` is asked to give something back in this tick."""
        return job in self._taken

    def cover(
        self,
        room: Room,
        gpu_type: str,
        gpus: int,
        may_take: Callable[[JobFacts], bool] = lambda holder: True,
        spared: Callable[[JobFacts], bool] = lambda holder: False,
    ) -> Supply:
        """Ask for as little as makes `gpus` on one node free, and keep them there; nothing where that is too few.

        What is asked for may serve somebody who was promised what is free now: then `gpus` are handed out at once.
        `may_take` ends the search at the first holder that may not be asked, `spared` skips one.
        """
        loans, mark = self._loans[gpu_type], room.mark()
        tried: list[_Loan] = []
        for loan in loans[self._first[gpu_type] :]:
            if not may_take(loan.job):
                break
            if self._is_out(loan) or spared(loan.job):
                continue
            room.expect(loan.worker.node, gpus=loan.worker.gpus)
            tried.append(loan)
            taken = room.take(gpu_type, gpus)
            node = taken or room.set_aside(gpu_type, gpus)
            if node is not None:
                self._keep_only(room, tried, node)
                while self._first[gpu_type] < len(loans) and self._is_out(loans[self._first[gpu_type]]):
                    self._first[gpu_type] += 1
                return Supply.LATER if taken is None else Supply.NOW
        room.undo(mark)
        return Supply.NEVER

    def leave_node(self, room: Room, node: str, gpus: int, by: float | None) -> None:
        """Ask for lent workers on `node` until `gpus` of it are given back: its GPUs go at `by`."""
        for loans in list(self._loans.values()):
            for loan in loans:
                if gpus <= 0:
                    return
                if loan.worker.node == node and not self._is_out(loan):
                    gpus -= sum(other.worker.gpus for other in self._above(loan) if other.worker.node == node)
                    for other in self._above(loan):
                        room.expect(other.worker.node, other.worker.gpus)
                    self._ask(loan, Reason.GPU_LOST, by)

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that is asked."""
        return [
            NoticeReclaim(job=taken.job.key, extra=taken.extra, deadline=taken.deadline, reason=taken.reason)
            for taken in self._taken.values()
            if taken.job.reclaim is None
        ]

    def _is_out(self, loan: _Loan) -> bool:
        taken = self._taken.get(loan.job.key)
        return taken is not None and loan.worker.index >= taken.extra

    def _above(self, loan: _Loan) -> list[_Loan]:
        return [
            other
            for other in self._loans[loan.job.gpu_type or ""]
            if other.job is loan.job and other.worker.index >= loan.worker.index and not self._is_out(other)
        ]

    def _keep_only(self, room: Room, tried: Sequence[_Loan], node: str) -> None:
        """Of `tried`, ask for those on `node` and what must leave before them; count on the others no more."""
        lowest: dict[str, int] = {}
        for loan in tried:
            if loan.worker.node == node:
                lowest[loan.job.key] = loan.worker.index
        for loan in tried:
            if loan.worker.index >= lowest.get(loan.job.key, loan.job.extra):
                self._ask(loan, Reason.NEEDED_BY_OTHER_JOB, None)
            else:
                room.expect(loan.worker.node, gpus=-loan.worker.gpus)

    def _ask(self, loan: _Loan, reason: Reason, by: float | None) -> None:
        deadline = self._now + loan.job.terms.notice_seconds
        if by is not None:
            deadline = min(deadline, max(by, self._now))
        taken = self._taken.setdefault(loan.job.key, _Taken(loan.job, loan.job.extra, deadline, reason))
        taken.extra = min(taken.extra, loan.worker.index)
        taken.deadline = min(taken.deadline, deadline)
