"""The display of a run for people: a live table on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from espalier_core.types.event_lines import brief, line_for, progress_of
from espalier_core.types.events import (
    AdaptationFinished,
    AllocationChanged,
    AnyEvent,
    EpochFinished,
    JobChanged,
    ProgressRead,
    TrainerFinished,
    TrainerStarted,
)
from espalier_core.types.task import Score

_WITH_BARS = 110
"""Minimum terminal width, in columns, for bars; on a narrower one, figures matter more."""
PLAIN_PROGRESS_EVERY = 0.1
"""Share of the time budget between two plain progress lines."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """The displayed state of one job."""

    name: str
    budget_seconds: float
    used_seconds: float = 0.0
    phase: str = "Pending"
    epoch: int = 0
    score: Score | None = None
    depth: int = 0
    parameters: int = 0
    gpus: int = 0
    decision: str = ""
    progress: str = ""
    """Progress of a program."""

    @property
    def used_share(self) -> float:
        """Used part of the budget, 0 to 1."""
        return min(1.0, self.used_seconds / self.budget_seconds)


def updated(row: JobRow, event: AnyEvent) -> JobRow:
    """Return the row after an event of its job."""
    row = replace(row, used_seconds=max(row.used_seconds, event.used_seconds))
    match event:
        case TrainerStarted():
            return replace(row, phase="Running", depth=event.depth, parameters=event.parameters, epoch=event.epoch)
        case EpochFinished():
            return replace(
                row,
                epoch=event.epoch,
                score=event.score,
                depth=event.depth,
                parameters=event.parameters,
            )
        case AdaptationFinished():
            adaptation = event.adaptation
            return replace(
                row,
                decision=f"{adaptation.action} ({adaptation.outcome})",
                depth=adaptation.depth_after,
                parameters=adaptation.parameters_after,
            )
        case AllocationChanged():
            return replace(row, gpus=event.allocation.gpus)
        case JobChanged():
            return replace(row, phase=event.phase)
        case ProgressRead():
            return replace(row, epoch=event.epoch, progress=progress_of(event.step, event.done, event.metrics))
        case TrainerFinished():
            return replace(row, score=event.score or row.score, phase=event.phase)
    return row


def moment_of(row: JobRow) -> str:
    """Return a job's name and its clock: the budget that is left."""
    return f"{row.name}  {max(0.0, row.budget_seconds - row.used_seconds):7.1f} s left"


class Display:
    """Shows the events of a run."""

    def __init__(self, jobs: Iterable[JobRow], console: Console) -> None:
        self.rows = {row.name: row for row in jobs}
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: nothing is open."""

    def show(self, job: str, event: AnyEvent) -> None:
        """Apply an event of `job` (its key)."""
        self.rows[job] = updated(self.rows[job], event)
        if line := line_for(event):
            self.print(self.rows[job], line)

    def print(self, row: JobRow, line: str) -> None:
        """Print the line of an event of this job."""
        raise NotImplementedError

    def tick(self, used_seconds: dict[str, float]) -> None:
        """Update the budget seconds that each job has used."""


class PlainDisplay(Display):
    """Prints one line per important event, and one per tenth of the budget."""

    def __init__(self, jobs: Iterable[JobRow], console: Console) -> None:
        super().__init__(jobs, console)
        self._announced: dict[str, float] = {}

    def show(self, job: str, event: AnyEvent) -> None:
        """Print the event's line, if it has one, or the progress."""
        super().show(job, event)
        row = self.rows[job]
        if isinstance(event, EpochFinished) and row.used_share >= self._announced.get(job, 0.0):
            self._announced[job] = row.used_share + PLAIN_PROGRESS_EVERY
            self.print(row, f"epoch {row.epoch}, {brief(event.score)}, depth {row.depth}")
        elif isinstance(event, ProgressRead) and row.used_share >= self._announced.get(job, 0.0):
            self._announced[job] = row.used_share + PLAIN_PROGRESS_EVERY
            self.print(row, row.progress)

    def print(self, row: JobRow, line: str) -> None:
        """Print the line with the remaining budget."""
        # A message may contain brackets, which are not markup.
        self._console.print(f"{moment_of(row)}  {line}", highlight=False, markup=False, soft_wrap=True)


class LiveDisplay(Display):
    """A table that is redrawn in place, under the lines of the events."""

    def __init__(self, jobs: Iterable[JobRow], console: Console) -> None:
        super().__init__(jobs, console)
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        # Draw it before any line is printed: a line printed earlier would not replace the table.
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def print(self, row: JobRow, line: str) -> None:
        """Print the line above the table, with the remaining budget; a long line is wrapped under its beginning."""
        both = Table.grid(padding=(0, 2, 0, 0))
        both.add_row(Text(moment_of(row), style="dim"), Text(line))
        self._console.print(both, highlight=False)

    def tick(self, used_seconds: dict[str, float]) -> None:
        """Move the budget bars."""
        for job, used in used_seconds.items():
            self.rows[job] = replace(self.rows[job], used_seconds=max(used, self.rows[job].used_seconds))

    def _table(self) -> Group:
        return progress_table(self.rows.values(), self._console.width)


def progress_table(rows: Iterable[JobRow], width: int) -> Group:
    """Return a live table of jobs, with bars for their time budgets if `width` has room for them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows, bars = tuple(rows), width >= _WITH_BARS
    names = ["job", "phase", *(["time budget"] if bars else []), "left"]
    measures = {row.score.by.title for row in rows if row.score is not None}
    score = "score" if len(measures) > 1 else next(iter(measures), "accuracy")
    names += ["epoch", score, "depth", "GPUs", "last decision"]
    names += ["progress"] if any(row.progress for row in rows) else []
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            row.phase,
            *([ProgressBar(total=1.0, completed=row.used_share, width=24)] if bars else []),
            f"{max(0.0, row.budget_seconds - row.used_seconds):.0f} s",
            str(row.epoch),
            "" if row.score is None else f"{row.score.value:.3f}",
            str(row.depth or ""),
            str(row.gpus),
            Text(row.decision, style="green"),
            *([row.progress] if "progress" in names else []),
        )
    return Group(Text(""), table)


def display_for(jobs: Iterable[JobRow], console: Console) -> Display:
    """Return the live display on a terminal, the plain one elsewhere."""
    return LiveDisplay(jobs, console) if console.is_terminal else PlainDisplay(jobs, console)
