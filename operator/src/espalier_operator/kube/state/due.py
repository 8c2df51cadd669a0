"""When a job must be observed and flushed: what is new of it, how urgent that is, and which figures can wait."""

from __future__ import annotations

import math
from enum import Flag, IntEnum, auto

from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.settings import FIGURES_A_SECOND


class FigurePace:
    """How often the figures of a running job are written to its status: the more jobs run, the less often."""

    def __init__(self, shortest: float) -> None:
        """Begin with `shortest`, the fewest seconds from one time to the next."""
        self._shortest = self.seconds = shortest

    def share(self, jobs: int) -> None:
        """Set `seconds` to what suits this number of running jobs."""
        self.seconds = max(self._shortest, jobs / FIGURES_A_SECOND)


class News(Flag):
    """What is newer than the job's facts."""

    NONE = 0
    PODS = auto()
    """Its pods, their nodes, or which of its pods count."""
    REPORT = auto()
    FACTS = auto()
    """The state, or the time: what follows from both."""


class Due(IntEnum):
    """How urgently a job is to be flushed: its status written, its objects brought up to it."""

    NOTHING = 0
    FIGURES = 1
    """At low priority: only figures have changed."""
    CHANGES = 2
    """Now: more than figures have changed, or a step is still to be taken."""
    REWRITE = 3
    """Now, and its status is written even if it has not changed, because another client has overwritten it."""


def expires_at(job: KubeJob, status: JobStatus) -> float | None:
    """Return when a job that is over is to be deleted, `ttlSecondsAfterFinished` after its end; None: never."""
    ttl = job.job.spec.ttl_seconds_after_finished
    return None if ttl is None or status.completion_time is None else status.completion_time.timestamp() + ttl


def together(since: float, seconds: float) -> float:
    """Return when what was last written at `since` is due: after `seconds` and a little, with what is due about then.

    Otherwise the operator would look at a thousand jobs at a thousand times. In larger steps their writes would come in
    bursts, and whoever waits for the API server would wait for a burst.
    """
    step = min(0.1, seconds / 8)
    return math.ceil((since + seconds) / step) * step if step else since


def solid(status: JobStatus) -> JobStatus:
    """Return `status` without what may be written later: figures, and that a promise was kept.

    Who reads that a promise stands finds it kept by the pods. Extra workers are bound a moment before they run, which
    is urgent: a write in between would delay the leader.
    """
    blank = JobStatus()
    return status.model_copy(
        update={
            "time_budget": blank.time_budget,
            "training": blank.training,
            "measurements": blank.measurements,
            "last_checkpoint_time": None,
            "scheduling": status.scheduling.model_copy(update={"counted_until": None, "promised_until": None}),
        }
    )
