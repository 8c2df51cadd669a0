"""The lines about a job while it runs: changes of its status and its Events, each once. Pure but for its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from espalier_cli.cluster.output import count, duration
from espalier_cli.display import PLAIN_PROGRESS_EVERY, JobRow
from espalier_core.k8s.jobs import Event, Job, phase, score_of, standing
from espalier_core.types.event_lines import brief
from espalier_core.types.status import ConditionStatus, ConditionType, JobStatus
from espalier_operator.kube.inspection import events

_TRUSTED_SECONDS = 15.0
"""For so long a count of budget seconds is carried on by the clock: a running job's is written more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened."""

    reason: str
    message: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.reason}: {self.message}"


class Narrator:
    """Turns what is seen into lines.

    The operator tells a change of status as an Event too, in the same words, and either may come first or not at all.
    So lines are counted by source, and a line is due when one source is ahead of what was printed.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """`events` are old: no line is given for them."""
        self._times: dict[str, int] = {}
        """How often each Event has happened, by UID."""
        self._by_events: Counter[tuple[str, str]] = Counter()
        for event in events:
            self._count(event)
        self._by_status, self._said = self._by_events.copy(), self._by_events.copy()
        self._next_progress = 0.0

    def of_event(self, event: Event) -> list[Line]:
        """Return the lines of an Event that are new."""
        self._count(event)
        return self._due(self._by_events, Line(reason=event.reason, message=event.message, warning=event.warning))

    def of_status(self, before: JobStatus | None, after: Job) -> list[Line]:
        """Return the lines of a status that are new; of the first one, where the job stands."""
        if before is None:
            why = standing(after)
            reason = phase(after) if why.reason is None else f"{phase(after)}, {why.reason}"
            return [Line(reason=reason, message=why.message)]
        lines = []
        for note in events(before, after.status):
            line = Line(reason=note.reason, message=" ".join(note.message.split()), warning=note.warning)
            self._by_status[line.reason, line.message] += 1
            lines += self._due(self._by_status, line)
        return lines

    def progress(self, row: JobRow) -> str | None:
        """Return how training goes, once in a tenth of the budget."""
        if row.score is None or row.used_share < self._next_progress:
            return None
        self._next_progress = row.used_share + PLAIN_PROGRESS_EVERY
        return f"epoch {row.epoch}, {brief(row.score)}, depth {row.depth}"

    def _count(self, event: Event) -> None:
        known = self._times.get(event.uid, 0)
        self._times[event.uid] = max(known, event.times)
        self._by_events[event.reason, event.message] += max(0, event.times - known)

    def _due(self, source: Counter[tuple[str, str]], line: Line) -> list[Line]:
        key = (line.reason, line.message)
        if source[key] <= self._said[key]:
            return []
        self._said[key] = source[key]
        return [line]


def row_of(job: Job, now: float) -> JobRow:
    """Return what a live table shows of a job."""
    status = job.status
    used = status.time_budget.used_seconds
    running = job.status.condition(ConditionType.RUNNING)
    counted = status.scheduling.counted_until
    if running is not None and running.status is ConditionStatus.TRUE and counted is not None:
        used += min(max(0.0, now - counted.timestamp()), _TRUSTED_SECONDS)
    decision = ""
    if status.adaptations:
        last = status.adaptations[-1]
        decision = f"{last.action} ({last.result}), {_grown(status.adaptation_count)}"
    return JobRow(
        name=job.name,
        budget_seconds=job.budget_seconds or 1.0,
        used_seconds=used,
        phase=phase(job),
        epoch=status.training.epoch,
        score=score_of(job),
        depth=status.training.depth,
        parameters=status.training.parameters,
        gpus=status.allocation.gpus,
        decision=decision,
    )


def verdict(job: Job) -> str:
    """Say what an ended job came to."""
    training, used = job.status.training, job.status.time_budget.used_seconds
    score = score_of(job)
    reached = "" if score is None else f"{score}, "
    model = f"depth {training.depth}, {training.parameters:,} parameters, " if training.depth else ""
    grown = _grown(job.status.adaptation_count)
    return f"{phase(job)}: {reached}{model}{grown}, {duration(used)} of {duration(job.budget_seconds)} used"


def _grown(times: int) -> str:
    return f"grown {count(times, 'time')}" if times else "not grown"
