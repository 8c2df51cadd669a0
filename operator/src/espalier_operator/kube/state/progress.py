"""The progress of a program on a cluster: where it is to be read, and what was read so far. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from espalier_core.types.program import ProgressSpec
from espalier_core.types.status import JobStatus
from espalier_operator.job.status import utc
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.programs import NOTHING


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
        if values:
            self.reading, self.read_at = self.reading.then(values, source.spec.steps), utc(now)

    def is_unread(self, source: ProgressSource | None) -> bool:
        """Return whether what was written last at `source` is still to be read."""
        return source is not None and source.ended and source.pod != self._read_to_end
