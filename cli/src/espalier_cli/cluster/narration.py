"""Lines about a running job: changes of its status and its Events, each once. Pure but for its memory."""

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
"""Seconds for which the clock continues a count of budget seconds: a running job's count is written more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened."""

    reason: str
    message: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.reason}: {self.message}"


class Narrator:
    """Turns statuses and Events into lines.

    The operator also reports a change of status as an Event, with the same text, and either may come first or not at
    all. So lines are counted by source, and a line is due when one source is ahead of the printed ones.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """`events` are old: no line is given for them."""
        self._times: dict[str, int] = {}
        """Number of times that each Event has happened, by UID."""
        self._by_events: Counter[tuple[str, str]] = Counter()
        for event in events:
            self._count(event)
        self._by_status, self._said = self._by_events.copy(), self._by_events.copy()
        self._next_progress = 0.0

    def of_event(self, event: Event) -> list[Line]:
        """Return the new lines of an Event."""
        self._count(event)
        return self._due(self._by_events, Line(reason=event.reason, message=event.message, warning=event.warning))

    def of_status(self, before: JobStatus | None, after: Job) -> list[Line]:
        """Return the new lines of a status; for the first status, the state of the job."""
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
        """Return the progress of training, once in a tenth of the budget."""
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
    """Return the row of a live table for a job."""
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
    """Return the result of an ended job in a sentence."""
    training, used = job.status.training, job.status.time_budget.used_seconds
    score = score_of(job)
    reached = "" if score is None else f"{score}, "
    model = f"depth {training.depth}, {training.parameters:,} parameters, " if training.depth else ""
    grown = _grown(job.status.adaptation_count)
    return f"{phase(job)}: {reached}{model}{grown}, {duration(used)} of {duration(job.budget_seconds)} used"


def _grown(times: int) -> str:
    return f"grown {count(times, 'time')}" if times else "not grown"
