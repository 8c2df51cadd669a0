"""Progress of a job: the leader's report that counts, and values read from a program. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from espalier_core.types.advice import JobIdentity
from espalier_core.types.measurements import Measurements, merged
from espalier_core.types.program import ProgressSpec
from espalier_core.types.report import Report
from espalier_core.types.status import JobStatus
from espalier_operator.job.state import JobState
from espalier_operator.job.view import utc
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reports import ReportObject, news_of
from espalier_operator.programs import NOTHING

logger = logging.getLogger(__name__)


class LastReport:
    """The last good report of one job."""

    def __init__(self, key: str, written: JobStatus | None) -> None:
        """Begin with the measurements of the last written status; `key` names the job in the log."""
        self._key = key
        self.last: Report | None = None
        self.changed_at = 0.0
        """Time of its write, by the API server."""
        self.measured = Measurements() if written is None else written.measurements
        self.problem = ""
        """Reason for which the newest report is not read."""
        self._muted: Report | None = None

    @property
    def shown(self) -> Report | None:
        """The report for the status."""
        return None if self.last is self._muted else self.last

    def read(self, found: ReportObject | None, state: JobState) -> bool:
        """Read a found report; return whether more than figures has changed.

        If it cannot be read, or is by a leader that does not count, the last good one is kept.
        """
        before, before_problem = self.last, self.problem
        self.problem = "" if found is None else found.problem
        if self.problem and self.problem != before_problem:
            logger.warning("%s: keeping its last good report: %s", self._key, self.problem)
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
    """Return the report that counts: `found`, or the `known` one if `found` is not by the leader seen last.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSource:
    """The leader of a program, as a source of its progress."""

    job: str
    """UID of the job."""
    leader: Pod
    """If it is done, the next read is the last."""
    spec: ProgressSpec


def source_of(job: KubeJob, leader: Pod | None) -> ProgressSource | None:
    """Return the source of the progress of `job`; None if there is nothing to read."""
    program = job.job.spec.program
    if program is None or program.progress is None or leader is None or leader.started_at is None:
        return None
    if program.progress.metrics is not None and (leader.done or not leader.address):
        return None  # they are served no longer, or the address is the node's
    return ProgressSource(job=job.uid, leader=leader, spec=program.progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """The leader of a program, which may post its progress."""

    job: JobIdentity
    pod: str
    """UID of its leader's pod."""


class ProgramProgress:
    """Progress read from one program."""

    def __init__(self, written: JobStatus | None) -> None:
        """Begin with the progress in the status written by an earlier operator."""
        self.reading = NOTHING
        self.read_at: datetime | None = None
        self.is_forbidden = False
        """The operator had no right to read it at the last attempt."""
        self._done = None if written is None else written.training.done_percentage
        self._read_to_end = ""
        """UID of the newest pod whose last lines were read."""

    @property
    def done(self) -> float | None:
        """The part of its work that is done, 0 to 1; None if unknown."""
        if self.reading.fraction is not None or self._done is None:
            return self.reading.fraction
        return self._done / 100

    def take(self, source: ProgressSource, values: Mapping[str, float] | None, now: float) -> None:
        """Record values read at `source` at `now`; None: reading is forbidden."""
        self.is_forbidden = values is None
        if source.leader.done:
            self._read_to_end = source.leader.uid
        self.read(values or {}, source.spec.steps, now)

    def read(self, values: Mapping[str, float], steps: int | None, now: float) -> None:
        """Record `values` read or posted at `now`; `steps` is the total by the job's specification."""
        if values:
            self.reading, self.read_at = self.reading.then(values, steps), utc(now)

    def is_unread(self, source: ProgressSource | None) -> bool:
        """Return whether the last lines at `source` have not been read yet."""
        return source is not None and source.leader.done and source.leader.uid != self._read_to_end
