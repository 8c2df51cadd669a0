"""What a job says of its progress: the report of its leader that counts, and what was read of a program. No I/O."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSource:
    """The leader of a program, and what is to be read there."""

    job: str
    """UID of the job."""
    pod: str
    """UID of its leader's pod."""
    namespace: str
    name: str
    """Name of the pod."""
    container: str
    address: str
    """Of the pod; empty if it is not to be asked for metrics."""
    ended: bool
    """The container has ended: what is read now is the last."""
    spec: ProgressSpec


def source_of(job: KubeJob, leader: Pod | None) -> ProgressSource | None:
    """Return where the progress of `job` is to be read; None if there is nothing to read."""
    program = job.job.spec.program
    if program is None or program.progress is None or leader is None or leader.started_at is None:
        return None
    spec, ended = program.progress, leader.done
    if spec.metrics is not None and (ended or not leader.address):
        return None  # nobody serves them any more, or the node would be asked
    return ProgressSource(
        job=job.uid,
        pod=leader.uid,
        namespace=leader.namespace,
        name=leader.name,
        container=leader.container,
        address=leader.address,
        ended=ended,
        spec=spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """The leader of a program, which may post its progress."""

    job: JobIdentity
    pod: str
    """UID of its leader's pod."""


class ProgramProgress:
    """What was read of one job."""

    def __init__(self, written: JobStatus | None) -> None:
        """Begin with what an earlier operator has read, by the status that it wrote."""
        self.reading = NOTHING
        self.read_at: datetime | None = None
        self.is_forbidden = False
        """The operator has no right to read it, as of the last attempt."""
        self._done = None if written is None else written.training.done_percentage
        self._read_to_end = ""
        """UID of the last pod whose last lines were read."""

    @property
    def done(self) -> float | None:
        """The part of its work that is done, 0 to 1, as far as that is known."""
        if self.reading.fraction is not None or self._done is None:
            return self.reading.fraction
        return self._done / 100

    def take(self, source: ProgressSource, values: Mapping[str, float] | None, now: float) -> None:
        """Take in what was read at `source` at `now`; None: that is forbidden."""
        self.is_forbidden = values is None
        if source.ended:
            self._read_to_end = source.pod
        self.read(values or {}, source.spec.steps, now)

    def read(self, values: Mapping[str, float], steps: int | None, now: float) -> None:
        """Take in `values` that were read or posted at `now`; `steps` are those in all by the job."""
        if values:
            self.reading, self.read_at = self.reading.then(values, steps), utc(now)

    def is_unread(self, source: ProgressSource | None) -> bool:
        """Return whether what was written last at `source` is still to be read."""
        return source is not None and source.ended and source.pod != self._read_to_end
