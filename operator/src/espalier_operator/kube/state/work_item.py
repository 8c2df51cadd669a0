"""One job of the work queue: what is new of it, what was written of it, and when it is to be flushed. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from espalier_core.types.status import JobStatus
from espalier_operator.clock import Backoff
from espalier_operator.kube.state.due import Due, FigurePace, News, solid, together


class WorkItem:
    """What the operator still has to do for one job. Times are epoch seconds."""

    def __init__(
        self, found: JobStatus | None, answered: Mapping[str, Any] | None, now: float, pace: FigurePace
    ) -> None:
        """Begin with the status that was found, which the API server sent as `answered`; all is news."""
        self._pace = pace
        self.written = found
        """The status as it was last written, or found."""
        self.sent = found
        """The status as it was last sent. It may be written though no answer came, so its times are kept."""
        self.written_at = now
        self.answered = answered
        """The same as the API server sent it back."""
        self.news = News.PODS | News.REPORT | News.FACTS
        self.due = Due.CHANGES
        self._due_later: dict[Due, float] = {}
        """When it is due next without any event."""
        self._next_due = math.inf
        """The first of these times."""
        self.writing, self.doing, self.making = Backoff(longest=10.0), Backoff(), Backoff()
        """Of its status; of what tells its leader and ends pods; of new pods, which may be refused for long."""

    @property
    def due_at(self) -> float | None:
        """When it must be observed or flushed without any event."""
        return None if self._next_due == math.inf else self._next_due

    def mark_dirty(self, news: News, due: Due = Due.NOTHING) -> None:
        """Record which facts have changed, and how urgently the job must be flushed."""
        self.news |= news
        self.due = max(self.due, due)

    def take_due(self) -> Due:
        """Return how urgently it is to be flushed, which is being done now."""
        due, self.due = self.due, Due.NOTHING
        return due

    def wants_look(self, now: float) -> bool:
        """Return whether it has news, or something is due."""
        return self.news is not News.NONE or now >= self._next_due

    def come_due(self, now: float) -> None:
        """Make due what was planned to be due by now."""
        if now >= self._next_due:
            for due in [due for due, time in self._due_later.items() if now >= time]:
                del self._due_later[due]
                self.mark_dirty(News.FACTS, due)
            self._next_due = min(self._due_later.values(), default=math.inf)

    def plan_due(self, status: JobStatus, now: float, times: Iterable[float], *, changes: bool) -> None:
        """Set when it is due next: at the first of `times` after `now`, and for its figures if they go on to change.

        `status` is the current one.
        """
        times = (self.writing.until, self.doing.until, self.making.until, *times)
        later = {Due.CHANGES: min((time for time in times if time > now), default=None)}
        if changes or status != self.written:
            since = now if status == self.written else self.written_at
            later[Due.FIGURES] = together(since, self._pace.seconds)
        self._due_later = {due: time for due, time in later.items() if time is not None}
        self._next_due = min(self._due_later.values(), default=math.inf)

    def must_write(self, status: JobStatus, due: Due, now: float) -> bool:
        """Return whether `status` must be written now; a change of figures alone can wait."""
        if self.written is None or due is Due.REWRITE or solid(status) != solid(self.written):
            return True
        return now >= self.written_at + self._pace.seconds and status != self.written

    def wrote(self, status: JobStatus, answered: Mapping[str, Any] | None, now: float) -> None:
        """Record the status that was written, and the API server's answer."""
        self.written = self.sent = status
        self.written_at, self.answered = now, answered
