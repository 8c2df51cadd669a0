"""Due times of a job's observation, flush and plan: its pending changes, and their urgency. No I/O.

Most changes of a job affect no plan: its workers come up as planned, its leader learns of them, its figures grow. A
plan of a large cluster takes long, and a job that waits for GPUs also waits for the plan before its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Flag, IntEnum, auto
from typing import Any, Final

from espalier_core.types.status import JobStatus
from espalier_operator.clock import Backoff
from espalier_operator.job.state import Grant, JobState
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.settings import FIGURES_A_SECOND
from espalier_operator.model import JobFacts, Worker, WorkerState

SOON: Final = 0.0
"""Wall seconds within which a plan must be made at once."""
LATER: Final = 0.5
"""Wall seconds within which a plan must include that workers came up as planned."""
NEVER: Final = math.inf


class FigurePace:
    """Interval at which the figures of a running job are written to its status; it grows with the number of jobs."""

    def __init__(self, shortest: float) -> None:
        """Begin with `shortest`, the minimum interval in seconds."""
        self._shortest = self.seconds = shortest

    def share(self, jobs: int) -> None:
        """Set `seconds` for this number of running jobs."""
        self.seconds = max(self._shortest, jobs / FIGURES_A_SECOND)


class PendingChanges(Flag):
    """Changes that are newer than the job's facts."""

    NONE = 0
    PODS = auto()
    """Its pods, their nodes, or the choice of pods that count."""
    REPORT = auto()
    FACTS = auto()
    """The state or the time, which change the facts."""


class FlushPriority(IntEnum):
    """Urgency of a job's flush: writing its status and reconciling its objects."""

    NOTHING = 0
    FIGURES = 1
    """At low priority: only figures have changed."""
    CHANGES = 2
    """Now: more than figures have changed, or a step is pending."""
    REWRITE = 3
    """Now, and its status is written even if it has not changed, because another client has overwritten it."""


def expires_at(job: KubeJob, status: JobStatus) -> float | None:
    """Return when an ended job must be deleted, `ttlSecondsAfterFinished` after its end; None: never."""
    ttl = job.job.spec.ttl_seconds_after_finished
    return None if ttl is None or status.completion_time is None else status.completion_time.timestamp() + ttl


def together(since: float, seconds: float) -> float:
    """Return when a write at `since` is due again: after `seconds`, rounded up to coincide with other due times.

    Otherwise the operator would observe a thousand jobs at a thousand times. With larger steps their writes would come
    in bursts, which would delay other requests to the API server.
    """
    step = min(0.1, seconds / 8)
    return math.ceil((since + seconds) / step) * step if step else since


def solid(status: JobStatus) -> JobStatus:
    """Return `status` without the parts that may be written later: figures, and the end of a kept promise.

    A reader of a standing promise finds it kept by the pods. Extra workers are bound a moment before they run, which is
    urgent: a write in between would delay the leader.
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


class WorkItem:
    """Pending work of the operator for one job. Times are epoch seconds."""

    def __init__(
        self, found: JobStatus | None, answered: Mapping[str, Any] | None, now: float, pace: FigurePace
    ) -> None:
        """Begin with the found status, which the API server sent as `answered`; everything counts as changed."""
        self._pace = pace
        self.written = found
        """The status as last written, or found."""
        self.sent = found
        """The status as last sent. It may be written though no answer came, so its times are kept."""
        self.written_at = now
        self.answered = answered
        """The written status as the API server returned it."""
        self.news = PendingChanges.PODS | PendingChanges.REPORT | PendingChanges.FACTS
        self.due = FlushPriority.CHANGES
        self._due_later: dict[FlushPriority, float] = {}
        """Next due times without any event, by priority."""
        self._next_due = math.inf
        """The first of these times."""
        self.writing, self.doing, self.making = Backoff(longest=10.0), Backoff(), Backoff()
        """Back-off of its status, of its annotation and deletions, and of new pods, which may be refused for long."""
        self.asking = Backoff(longest=10.0)
        """Back-off of its Workload, as Kueue may be away."""

    @property
    def due_at(self) -> float | None:
        """Time at which it must be observed or flushed without any event; None: never."""
        return None if self._next_due == math.inf else self._next_due

    def mark_dirty(self, news: PendingChanges, due: FlushPriority = FlushPriority.NOTHING) -> None:
        """Record which facts have changed, and how urgently the job must be flushed."""
        self.news |= news
        self.due = max(self.due, due)

    def take_due(self) -> FlushPriority:
        """Return the urgency of the flush that begins now, and reset it."""
        due, self.due = self.due, FlushPriority.NOTHING
        return due

    def wants_look(self, now: float) -> bool:
        """Return whether it has changes, or is due."""
        return self.news is not PendingChanges.NONE or now >= self._next_due

    def come_due(self, now: float) -> None:
        """Apply the due times up to now."""
        if now >= self._next_due:
            for due in [due for due, time in self._due_later.items() if now >= time]:
                del self._due_later[due]
                self.mark_dirty(PendingChanges.FACTS, due)
            self._next_due = min(self._due_later.values(), default=math.inf)

    def plan_due(self, status: JobStatus, now: float, times: Iterable[float], *, changes: bool) -> None:
        """Set the next due time: the first of `times` after `now`, and that of its figures if they still change.

        `status` is the current one.
        """
        times = (self.writing.until, self.doing.until, self.making.until, self.asking.until, *times)
        later = {FlushPriority.CHANGES: min((time for time in times if time > now), default=None)}
        if changes or status != self.written:
            since = now if status == self.written else self.written_at
            later[FlushPriority.FIGURES] = together(since, self._pace.seconds)
        self._due_later = {due: time for due, time in later.items() if time is not None}
        self._next_due = min(self._due_later.values(), default=math.inf)

    def must_write(self, status: JobStatus, due: FlushPriority, now: float) -> bool:
        """Return whether `status` must be written now; a change of figures alone can wait."""
        if self.written is None or due is FlushPriority.REWRITE or solid(status) != solid(self.written):
            return True
        return now >= self.written_at + self._pace.seconds and status != self.written

    def wrote(self, status: JobStatus, answered: Mapping[str, Any] | None, now: float) -> None:
        """Record the written status, and the API server's answer."""
        self.written = self.sent = status
        self.written_at, self.answered = now, answered


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The parts of one job that plans depend on."""

    state: JobState
    facts: JobFacts | None
    workers: tuple[Worker, ...]


def plan_due_in(before: PlanInputs, after: PlanInputs) -> float:
    """Return the wall seconds within which a job's change to `after` needs a plan."""
    if before.facts is None or after.facts is None:
        return SOON if before.facts is not after.facts else NEVER
    if _of_state(before.state) != _of_state(after.state) or _observed(before.facts) != _observed(after.facts):
        return SOON
    if before.state.reclaim is not None and before.facts.acknowledged_generation != after.facts.acknowledged_generation:
        return SOON  # the workers may go
    if not _only_come(before.workers, after.workers):
        return SOON
    same = before.workers == after.workers and before.state.essence == after.state.essence
    return NEVER if same and _measured(before.facts) == _measured(after.facts) else LATER


def _of_state(state: JobState) -> JobState:
    """Return `state` without the parts that change while workers come up as planned."""
    return replace(
        state.essence, grant=Grant(), incarnations=(), promised_until=None, unplaced=0, hold_until=None, unpinned=False
    )


def _observed(facts: JobFacts) -> tuple[object, ...]:
    """Return the observed facts of a job beyond its compared state, without figures."""
    return (
        facts.terms,
        facts.leader_running,
        facts.has_reported,
        facts.training,
        facts.evaluating,
        facts.trouble,
        facts.refused_since,
        facts.blames,
        facts.external,
    )


def _measured(facts: JobFacts) -> tuple[object, ...]:
    """Return the measurements by which policies decide."""
    return facts.speeds, facts.done, facts.noise_scale, facts.bids


def _only_come(before: tuple[Worker, ...], after: tuple[Worker, ...]) -> bool:
    """Return whether workers were only added, bound to nodes, or began to run."""
    now = {worker.name: worker for worker in after}
    for worker in before:
        found = now.get(worker.name)
        if found is None or (worker.node is not None and found.node != worker.node):
            return False
    was = {worker.name: worker for worker in before}
    return all(worker.state is not WorkerState.TERMINATING or was.get(worker.name) == worker for worker in after)
