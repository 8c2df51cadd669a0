"""Reports and events of the leader for the scheduler: in files and in the log.

A full disk or a vanished folder causes one warning on stderr until it works again, and never ends training.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from espalier_core.files.documents import DocumentError, append_line, read_document, write_document
from espalier_core.types.events import AnyEvent, EpochFinished
from espalier_core.types.report import Report

logger = logging.getLogger(__name__)

INTERVAL_WALL_SECONDS = 2.0
"""Maximum interval of reports while nothing happens (Espalier's design, "Report")."""


class EventRecorder(Protocol):
    """Destination of events."""

    def record(self, event: AnyEvent) -> None:
        """Add one event."""


class Reporter(EventRecorder, Protocol):
    """Destination of reports and events."""

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Send the report that `make` builds: at once when `urgent`, otherwise when one is due."""


@dataclass
class MemoryReporter:
    """Keeps the last report and all events: for tests, studies and scripts without a scheduler."""

    report: Report | None = None
    events: list[AnyEvent] = field(default_factory=list)

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Keep the report if it is urgent; in memory the others are not needed."""
        if urgent:
            self.report = make()

    def record(self, event: AnyEvent) -> None:
        """Keep the event."""
        self.events.append(event)


@dataclass
class FileReporter:
    """Writes the report atomically and appends events as JSON lines."""

    report_path: Path | None
    events_path: Path | None = None
    clock: Callable[[], float] = time.monotonic
    _due: float = field(init=False, default=0.0)
    _failing: set[Path] = field(init=False, default_factory=set)

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Write the report if it is urgent or due."""
        now = self.clock()
        if self.report_path is None or not (urgent or now >= self._due):
            return
        self._due = now + INTERVAL_WALL_SECONDS
        try:
            self.report_path.parent.mkdir(parents=True, exist_ok=True)
            write_document(self.report_path, make())
        except OSError as error:
            self._failed(self.report_path, error)
        else:
            self._failing.discard(self.report_path)

    def record(self, event: AnyEvent) -> None:
        """Append the event's line."""
        if self.events_path is None:
            return
        try:
            self.events_path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.events_path, f"{_line(event)}\n".encode())
        except OSError as error:
            self._failed(self.events_path, error)
        else:
            self._failing.discard(self.events_path)

    def _failed(self, path: Path, error: OSError) -> None:
        if path not in self._failing:
            self._failing.add(path)
            logger.warning("%s: cannot be written (%s); training continues without it", path, error)


@dataclass
class EventLog:
    """Logs events as JSON lines, for a container, whose log people read. Reports are dropped.

    Epochs may last milliseconds: at most one is logged every two seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _epoch_due: float = field(init=False, default=0.0)

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Do nothing."""

    def record(self, event: AnyEvent) -> None:
        """Log the event."""
        if isinstance(event, EpochFinished):
            now = self.clock()
            if now < self._epoch_due:
                return
            self._epoch_due = now + INTERVAL_WALL_SECONDS
        logger.info("event %s", _line(event))


def previous_used_seconds(path: Path | None, job: str) -> float:
    """Return the budget seconds that an earlier incarnation last reported; 0 where there is no usable report.

    A killed trainer has used more of its budget than its last checkpoint records.
    """
    if path is None:
        return 0.0
    try:
        report = read_document(path, Report)
    except (DocumentError, OSError):
        return 0.0
    return report.used_seconds if report.job == job else 0.0


def _line(event: AnyEvent) -> str:
    return event.model_dump_json(by_alias=True, exclude_none=True)
