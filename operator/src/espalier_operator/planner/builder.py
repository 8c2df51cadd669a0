"""What a plan says so far: actions, refusals, and when to plan again."""

from __future__ import annotations

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import Action, Refusal


class Record:
    """The words of one plan."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.actions: list[Action] = []
        self.refusals: dict[str, Refusal] = {}
        self.touched: set[str] = set()
        """Jobs that already have an action in this tick: nothing is lent to them or reclaimed from them."""
        self.wake_at: float | None = None

    def act(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)
        self.touched.add(action.job)

    def refuse(self, job: JobFacts, reason: Reason, *, starts_by: float | None = None) -> None:
        """Say why the job gets nothing (more)."""
        self.refusals[job.key] = Refusal(job=job.key, reason=reason, starts_by=starts_by)

    def wake(self, time: float) -> None:
        """Plan again at `time` at the latest."""
        if time > self._now and (self.wake_at is None or time < self.wake_at):
            self.wake_at = time
