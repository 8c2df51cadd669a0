"""The files between scheduler and leader: the allocation written, the report and the events read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from espalier_core.files.documents import DocumentError, read_document, write_document
from espalier_core.types.allocation import AllocationDocument
from espalier_core.types.events import EVENT, AnyEvent
from espalier_core.types.report import Report

_Stamp = tuple[int, int, int]
TAIL_BYTES: Final = 32 * 1024
"""What is read of a log for the cause of an end: longer than a traceback."""


class AllocationFile:
    """Writes the allocation file; if the disk is full, it is written later."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before `write`."""
        self._path = path
        self._unwritten: AllocationDocument | None = None

    def write(self, document: AllocationDocument) -> str | None:
        """Write `document`; return the error if it is a new one. `retry` then tries again."""
        news = self._unwritten is None
        try:
            write_document(self._path, document)
        except OSError as error:
            self._unwritten = document
            return f"{error}; it is tried again" if news else None
        self._unwritten = None
        return None

    def retry(self) -> None:
        """Write the document that could not be written before."""
        if self._unwritten is not None:
            self.write(self._unwritten)


class ReportFile:
    """Reads a report file; an unreadable file is skipped, with one message per state of the file."""

    def __init__(self, path: Path, job_names: tuple[str, ...]) -> None:
        """Watch `path` for reports of the job that has one of these names."""
        self._path, self._names = path, job_names
        self._stamp: _Stamp | None = None
        self._complaint = ""

    @property
    def complaint(self) -> str:
        """The problem of the file as last read; empty if it is valid."""
        return self._complaint

    def poll(self) -> Report | None:
        """Return the report if the file has changed since the last call and is valid."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            report = read_document(self._path, Report)
        except FileNotFoundError:
            return None
        except (DocumentError, OSError) as error:
            self._complaint = str(error)
            return None
        if report.job not in self._names:
            self._complaint = f"{self._path}: is a report of job {report.job!r}, not of {self._names[0]!r}"
            return None
        self._complaint = ""
        return report


class EventTail:
    """Follows a file of JSON lines; an incomplete last line is read once it is complete."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Start at byte `offset`."""
        self._path, self._offset = path, offset
        self.damaged_lines = 0
        """Number of lines that are not events; they are skipped."""

    def poll(self) -> list[tuple[str, AnyEvent]]:
        """Return the new lines with the events they hold."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for raw in whole.splitlines():
            try:
                line = raw.decode("utf-8")
                events.append((line, EVENT.validate_json(line)))
            except (UnicodeDecodeError, ValidationError):
                self.damaged_lines += 1
        return events


def offset_after(path: Path, known: set[str]) -> int:
    """Return the byte offset in `path` after the last of its lines that is in `known`."""
    if not path.exists():
        return 0
    offset = end = 0
    for raw in path.read_bytes().splitlines(keepends=True):
        end += len(raw)
        if raw.decode("utf-8", errors="replace").rstrip("\r\n") in known:
            offset = end
    return offset


def size(path: Path) -> int:
    """Return the size of a file in bytes, 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def tail(path: Path, begin: int) -> str:
    """Return the end of what a log has had since byte `begin`, at most `TAIL_BYTES`; '' where it cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(begin, end - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
