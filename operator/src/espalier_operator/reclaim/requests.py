"""What the jobs that hold lent workers are asked to give back."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import NoticeReclaim
from espalier_operator.reclaim.extra_workers import Loan


@dataclass(slots=True)
class Ask:
    """What one job is asked for."""

    job: JobFacts
    extra: int
    """The extra workers that it keeps, those with the lowest indices."""
    deadline: float
    reason: Reason


_Before = tuple[str, int | None, float]
"""One entry of the journal, of which a plan may write tens of thousands: a job, what it was to keep and until when the
others before it was asked again; None: it had not been asked for anything."""


class Asks:
    """The asks of one plan, with a journal to undo what was only tried."""

    def __init__(self, now: float) -> None:
        """Ask for nothing."""
        self._now = now
        self.made: dict[str, Ask] = {}
        """By job."""
        self._journal: list[_Before] = []

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Ask for nothing that was asked for since `mark`."""
        while len(self._journal) > mark:
            job, extra, deadline = self._journal.pop()
            if extra is None:
                del self.made[job]
            else:
                self.made[job].extra, self.made[job].deadline = extra, deadline

    def kept(self, job: JobFacts) -> int:
        """Return how many extra workers a job keeps."""
        made = self.made.get(job.key)
        return job.extra if made is None else made.extra

    def is_out(self, loan: Loan) -> bool:
        """Return whether a loan is asked back."""
        made = self.made.get(loan.job.key)
        return made is not None and loan.worker.index >= made.extra

    def ask(self, loan: Loan, reason: Reason, by: float | None) -> None:
        """Ask for a loan and those of its job with higher indices, after the job's notice, or earlier: `by` a time."""
        job, index = loan.job, loan.worker.index
        deadline = self._now + job.terms.notice_seconds
        if by is not None:
            deadline = min(deadline, max(by, self._now))
        made = self.made.get(job.key)
        if made is None:
            self._journal.append((job.key, None, deadline))
            self.made[job.key] = Ask(job, min(job.extra, index), deadline, reason)
            return
        self._journal.append((job.key, made.extra, made.deadline))
        if index < made.extra:
            made.extra = index
        if deadline < made.deadline:
            made.deadline = deadline

    def ask_more(self, made: Ask, loan: Loan) -> None:
        """Do what `ask` does where the job is asked already, and keeps this loan; at the deadline that stands."""
        self._journal.append((made.job.key, made.extra, made.deadline))
        made.extra = loan.worker.index

    def notices(self) -> list[NoticeReclaim]:
        """Return the notice for each job that must give back workers and has none yet."""
        return [
            NoticeReclaim(job=made.job.key, extra=made.extra, deadline=made.deadline, reason=made.reason)
            for made in self.made.values()
            if made.job.reclaim is None
        ]
