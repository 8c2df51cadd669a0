"""What a person sees of a run while it goes on: a live table on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from espalier_api.events import (
    AdaptationFinished,
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    CheckpointSaved,
    EpochFinished,
    GPUsChanged,
    JobChanged,
    TrainerFinished,
    TrainerStarted,
    Warned,
)
from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import Adaptation

PLAIN_PROGRESS_EVERY = 0.1
"""Share of the time budget between two plain progress lines."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What is shown of one job."""

    name: str
    budget_seconds: float
    used_seconds: float = 0.0
    phase: str = "Pending"
    epoch: int = 0
    accuracy: float | None = None
    depth: int = 0
    parameters: int = 0
    gpus: int = 0
    decision: str = ""

    @property
    def used_share(self) -> float:
        """Used part of the budget, 0 to 1."""
        return min(1.0, self.used_seconds / self.budget_seconds)


def updated(view: JobView, event: AnyEvent) -> JobView:
    """Return the view after an event of its job."""
    view = replace(view, used_seconds=max(view.used_seconds, event.used_seconds))
    match event:
        case TrainerStarted():
            return replace(view, phase="Running", depth=event.depth, parameters=event.parameters, epoch=event.epoch)
        case EpochFinished():
            return replace(
                view,
                epoch=event.epoch,
                accuracy=event.validation_accuracy,
                depth=event.depth,
                parameters=event.parameters,
            )
        case AdaptationFinished():
            adaptation = event.adaptation
            return replace(
                view,
                decision=f"{adaptation.action} ({adaptation.result})",
                depth=adaptation.depth_after,
                parameters=adaptation.parameters_after,
            )
        case AllocationChanged():
            return replace(view, gpus=event.allocation.gpus)
        case JobChanged():
            return replace(view, phase=event.phase)
        case TrainerFinished():
            return replace(view, accuracy=event.test_accuracy or view.accuracy, phase=event.phase)
    return view


def line_for(event: AnyEvent) -> str | None:
    """Return what a plain log says of an event; None for what would only be noise."""
    match event:
        case TrainerStarted():
            how = f"resumed at epoch {event.epoch}, step {event.step}" if event.resumed else "training starts"
            return f"{how} on {event.device}: depth {event.depth}, {event.parameters:,} parameters"
        case AllocationChanged():
            allocation = event.allocation
            return (
                f"allocation {allocation.generation}: {allocation.gpus} GPUs, "
                f"{allocation.direction}{_why(allocation.reason)}"
            )
        case AllocationAcknowledged():
            return f"allocation {event.generation} acknowledged after {event.seconds:.2f} s"
        case AdaptationFinished():
            return _adaptation(event.adaptation)
        case GPUsChanged():
            return f"GPUs: {event.change:+d}, now {event.total}"
        case JobChanged():
            why = _why(event.reason)
            return f"{event.phase}{why}{'' if event.message in why else f' ({event.message})'}"
        case Warned():
            return f"warning: {event.reason}: {event.message}"
        case TrainerFinished(test_accuracy=float(accuracy)):
            return f"accuracy on the test split: {accuracy:.4f}"
        case EpochFinished() | CheckpointSaved() | TrainerFinished():
            return None
    return None


def _why(reason: str) -> str:
    if not reason:
        return ""
    try:
        return f", {reason}: {SENTENCES[Reason(reason)]}"
    except ValueError:  # a reason of a newer trainer
        return f", {reason}"


def _adaptation(adaptation: Adaptation) -> str:
    who = adaptation.policy or str(adaptation.source)
    text = f"{who} says {adaptation.action}: {adaptation.result}"
    if adaptation.depth_after != adaptation.depth_before:
        text += (
            f", depth {adaptation.depth_before} -> {adaptation.depth_after}, parameters "
            f"{adaptation.parameters_before:,} -> {adaptation.parameters_after:,}, "
            f"in {adaptation.seconds * 1000:.0f} ms"
        )
    return text + (f" ({adaptation.message})" if adaptation.message else "")


class Display(Protocol):
    """Shows the events of a run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, job: str, event: AnyEvent) -> None:
        """Take in an event of `job` (its key)."""

    def tick(self, used_seconds: dict[str, float]) -> None:
        """Take in the budget seconds that each job has used by now."""


class _Views:
    def __init__(self, jobs: Iterable[JobView]) -> None:
        self.views = {view.name: view for view in jobs}

    def take(self, job: str, event: AnyEvent) -> JobView:
        self.views[job] = updated(self.views[job], event)
        return self.views[job]


class PlainDisplay(_Views):
    """One line an event that matters, and one a tenth of the budget."""

    def __init__(self, jobs: Iterable[JobView], console: Console) -> None:
        super().__init__(jobs)
        self._console = console
        self._announced: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, job: str, event: AnyEvent) -> None:
        """Print the event's line, if it has one."""
        view = self.take(job, event)
        if line := line_for(event):
            self._print(view, line)
        elif isinstance(event, EpochFinished):
            next_at = self._announced.get(job, 0.0)
            if view.used_share >= next_at:
                self._announced[job] = view.used_share + PLAIN_PROGRESS_EVERY
                self._print(view, f"epoch {view.epoch}, accuracy {event.validation_accuracy:.3f}, depth {view.depth}")

    def tick(self, used_seconds: dict[str, float]) -> None:
        """Nothing: lines are printed at events."""

    def _print(self, view: JobView, line: str) -> None:
        left = max(0.0, view.budget_seconds - view.used_seconds)
        self._console.print(f"{view.name}  {left:7.1f} s left  {line}", highlight=False, soft_wrap=True)


class LiveDisplay(_Views):
    """A table that is redrawn in place, under the lines of the events."""

    def __init__(self, jobs: Iterable[JobView], console: Console) -> None:
        super().__init__(jobs)
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=8, transient=False)
        self._lines = console

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, job: str, event: AnyEvent) -> None:
        """Print the event's line above the table, if it has one."""
        view = self.take(job, event)
        if line := line_for(event):
            moment = Text(f"{view.used_seconds:7.1f} s  {view.name}  ", style="dim")
            self._lines.print(moment + Text(line, style="not dim"), highlight=False)

    def tick(self, used_seconds: dict[str, float]) -> None:
        """Move the budget bars."""
        for job, used in used_seconds.items():
            self.views[job] = replace(self.views[job], used_seconds=max(used, self.views[job].used_seconds))

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("job", "phase", "time budget", "left", "epoch", "accuracy", "depth", "GPUs", "last decision"):
            table.add_column(name, no_wrap=True)
        for view in self.views.values():
            table.add_row(
                view.name,
                view.phase,
                ProgressBar(total=1.0, completed=view.used_share, width=24),
                f"{max(0.0, view.budget_seconds - view.used_seconds):.0f} s",
                str(view.epoch),
                "" if view.accuracy is None else f"{view.accuracy:.3f}",
                str(view.depth or ""),
                str(view.gpus),
                Text(view.decision, style="green"),
            )
        return Group(Text(""), table)


def display_for(jobs: Iterable[JobView], console: Console) -> Display:
    """Return the live display on a terminal, the plain one elsewhere."""
    return LiveDisplay(jobs, console) if console.is_terminal else PlainDisplay(jobs, console)
