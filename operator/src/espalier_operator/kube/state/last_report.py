"""The report of one job's leader that counts, and what was measured by all of them. No I/O."""

from __future__ import annotations

import logging

from espalier_core.types.measurements import Measurements, merged
from espalier_core.types.report import Report
from espalier_core.types.status import JobStatus
from espalier_operator.job.state import JobState
from espalier_operator.kube.reports import ReportObject, news_of

logger = logging.getLogger(__name__)


class LastReport:
    """The last good report of one job."""

    def __init__(self, key: str, written: JobStatus | None) -> None:
        """Begin with what was measured by the status that was written last; `key` is the job's, for the log."""
        self._key = key
        self.last: Report | None = None
        self.changed_at = 0.0
        """When it was written, by the API server."""
        self.measured = Measurements() if written is None else written.measurements
        self.problem = ""
        """Why the newest report is not read."""
        self._muted: Report | None = None

    @property
    def shown(self) -> Report | None:
        """The report for the status."""
        return None if self.last is self._muted else self.last

    def read(self, found: ReportObject | None, state: JobState) -> bool:
        """Read what was found; return whether more than figures has changed.

        One that cannot be read, or is not of the leader that counts, leaves the last good one.
        """
        before, before_problem = self.last, self.problem
        self.problem = "" if found is None else found.problem
        if self.problem and self.problem != before_problem:
            logger.warning("%s: its last good report is kept: %s", self._key, self.problem)
        if found is not None and found.report is not None:
            self.last = counted(state, before, found.report)
            if self.last is found.report:
                self.changed_at = found.changed_at
        if self.last is not None and self.last is not before:
            self.measured = merged(self.measured, self.last.measurements)
        return (self.problem != "" and self.problem != before_problem) or news_of(before) != news_of(self.last)

    def mute(self) -> bool:
        """Leave the report out of the status until the next one; return whether there was a report."""
        had, self._muted = self._muted is not self.last, self.last
        return had


def counted(state: JobState, known: Report | None, found: Report) -> Report | None:
    """Return which report counts: `found`, or the `known` one where `found` is not of the leader that was seen last.

    A leader on a lost node may continue for a while. Its reports count until its successor is seen: up to then, a
    successor would resume from its checkpoints.
    """
    leader, attempt = next(zip(state.incarnations, state.attempts, strict=True), ("", 0))
    if found.incarnation == leader:
        return found
    if known is not None and known.incarnation == leader:
        return known
    seen = attempt if leader else 0
    if known is not None and known.attempt is not None:
        seen = max(seen, known.attempt)
    return known if found.attempt is not None and found.attempt < seen else found
