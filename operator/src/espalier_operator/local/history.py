"""The history of a job: its leader's events and the scheduler's in one file, in the order in which they were read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from espalier_core.files.documents import append_line
from espalier_core.types.events import AnyEvent
from espalier_operator.local.files import EventTail, offset_after
from espalier_operator.local.layout import EVENTS_FILE, HISTORY_FILE

logger = logging.getLogger(__name__)


class History:
    """Appends to `history.jsonl` and forwards each event; a full disk causes one warning and stops nothing."""

    def __init__(self, directory: Path, on_event: Callable[[AnyEvent], None]) -> None:
        """Continue the history in `directory`; events of the leader that it already contains are not copied again."""
        self._path = directory / HISTORY_FILE
        self._on_event = on_event
        self._failing = False
        known: set[str] = set()
        if self._path.exists():
            data = self._path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]  # the scheduler may have been killed while it wrote
            known = set(filter(None, whole.decode("utf-8", errors="replace").split("\n")))
        events = directory / EVENTS_FILE
        self._tail = EventTail(events, offset_after(events, known) if known else 0)

    def add(self, event: AnyEvent) -> None:
        """Add one of the scheduler's events."""
        self._append(event.model_dump_json(by_alias=True, exclude_none=True), event)

    def follow(self) -> int:
        """Copy the leader's new events; return the number of new lines that are not events."""
        before = self._tail.damaged_lines
        for line, event in self._tail.poll():
            self._append(line, event)
        return self._tail.damaged_lines - before

    def _append(self, line: str, event: AnyEvent) -> None:
        try:
            append_line(self._path, f"{line}\n".encode())
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.warning("%s cannot be written, events are lost: %s", self._path, error)
            self._failing = True
        self._on_event(event)
