"""Files of a local run: their paths, the exchange between scheduler and leaders, and the history of a job.

The files of a job are in its folder, all others in the run's. Allocations are written, reports are read; a job's
history has the events of its leader and of the scheduler in one file, in the order in which they were read.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict

from pydantic import ValidationError

from espalier_core.files.documents import CHECKPOINT_FOLDER as CHECKPOINT_FOLDER
from espalier_core.files.documents import HISTORY_FILE as HISTORY_FILE
from espalier_core.files.documents import JOB_FILE as JOB_FILE
from espalier_core.files.documents import REPORT_FILE as REPORT_FILE
from espalier_core.files.documents import RESULT_FILE as RESULT_FILE
from espalier_core.files.documents import TRAINER_LOG as TRAINER_LOG
from espalier_core.files.documents import DocumentError, append_line, read_document, write_document
from espalier_core.types import environment
from espalier_core.types.allocation import Allocation, AllocationDocument
from espalier_core.types.events import EVENT, AnyEvent, JobChanged, Warned
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.measurements import Measurements, merged
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_core.types.status import JobPhase

logger = logging.getLogger(__name__)

ALLOCATION_FILE: Final = "allocation.json"
EVENTS_FILE: Final = "events.jsonl"
STATE_FILE: Final = "state.json"
RENDEZVOUS_FILE: Final = "rendezvous"
"""The leader's address, for workers that train with it."""
AGENT_LOG: Final = "agent.log"
PICTURE_FILE: Final = "training.png"

FILES: Final = (
    JOB_FILE,
    ALLOCATION_FILE,
    REPORT_FILE,
    EVENTS_FILE,
    HISTORY_FILE,
    TRAINER_LOG,
    STATE_FILE,
    AGENT_LOG,
    RESULT_FILE,
    PICTURE_FILE,
    RENDEZVOUS_FILE,
)
"""The files of a run in addition to its checkpoints."""
WRITTEN: Final = (*FILES, CHECKPOINT_FOLDER)
"""Files that a run creates or overwrites, apart from files named after a process."""
_Stamp = tuple[int, int, int]
TAIL_BYTES: Final = 32 * 1024
"""Bytes of a log that are read for the cause of an end: more than a traceback."""


def command_of(job: AdaptiveTrainingJob) -> tuple[str, ...]:
    """Return the command of the template's first container; empty if it has none."""
    if job.spec.template is None:
        return ()
    container = job.spec.template.spec.containers[0]
    return (*container.command, *container.args) if container.command else ()


def program_variables(job: AdaptiveTrainingJob) -> dict[str, str]:
    """Return the additional environment variables for the command of the job's template; none without a template.

    They include the template's variables with literal values. Programs in the environment of Espalier are found first:
    `python` is its Python. Workers of a program without the library get the addresses of each other.
    """
    if job.spec.template is None:
        return {}
    given = job.spec.template.spec.containers[0].env or ()
    literal = {str(each.get("name")): str(each["value"]) for each in given if "value" in each}
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = {"PATH": os.pathsep.join(folders), **literal}
    if job.spec.program is not None:
        found |= {environment.WORKERS: str(job.spec.min_replicas), environment.LEADER: "127.0.0.1"}
    return found


def contract_variables(directory: Path, agent_url: str | None) -> dict[str, str]:
    """Return the environment variables for the paths of a worker's contract files."""
    files = {
        environment.JOB_FILE: JOB_FILE,
        environment.ALLOCATION_FILE: ALLOCATION_FILE,
        environment.REPORT_FILE: REPORT_FILE,
        environment.EVENTS_FILE: EVENTS_FILE,
        environment.CHECKPOINT_DIR: CHECKPOINT_FOLDER,
        environment.RENDEZVOUS: RENDEZVOUS_FILE,
    }
    variables = {name: str((directory / file).resolve()) for name, file in files.items()}
    if agent_url is not None:
        variables[environment.AGENT_URL] = agent_url
    return variables


class AllocationFile:
    """Writes the allocation file; if the disk is full, it is written later."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before `write`."""
        self._path = path
        self._unwritten: AllocationDocument | None = None

    def write(self, document: AllocationDocument) -> str | None:
        """Write `document`; return the error unless the last write failed too. `retry` then tries again."""
        news = self._unwritten is None
        try:
            write_document(self._path, document)
        except OSError as error:
            self._unwritten = document
            return f"{error}; retrying" if news else None
        self._unwritten = None
        return None

    def retry(self) -> None:
        """Write the document of a failed write again."""
        if self._unwritten is not None:
            self.write(self._unwritten)


class ReportFile:
    """Reads a report file; an unreadable file is skipped, with one message per state of the file."""

    def __init__(self, path: Path, job_names: tuple[str, ...]) -> None:
        """Watch `path` for reports of the job with one of these names."""
        self._path, self._names = path, job_names
        self._stamp: _Stamp | None = None
        self._complaint = ""

    @property
    def complaint(self) -> str:
        """The fault of the file at the last reading; empty if it was valid."""
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
    """Return the end of a log after byte `begin`, at most `TAIL_BYTES`; '' where it cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(begin, end - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


class LeaderFiles:
    """The last written allocation and the last report."""

    def __init__(self, directory: Path, names: tuple[str, ...], warn: Callable[[str, str], None]) -> None:
        """Take the `names` of the job in reports, and `warn(reason, message)`; nothing is written or read yet."""
        self._allocations = AllocationFile(directory / ALLOCATION_FILE)
        self._reports = ReportFile(directory / REPORT_FILE, names)
        self._warn = warn
        self.allocation = Allocation()
        self._granted_at = 0.0
        self.acknowledged = 0
        """The generation that the leader has acknowledged."""
        self.report: Report | None = None
        self.reported_at = 0.0
        self.measurements = Measurements()
        """Measurements of the job's trainers, over all attempts."""
        self.is_fresh = False
        """Whether the leader started last wrote `report`."""
        self._earlier: str | None = None
        """The incarnation of the earlier leader that wrote the last report before this start."""
        self._complaint = ""

    def resume(self) -> None:
        """Read the last report of an earlier run's leader."""
        self.report = self._reports.poll()
        if self.report is not None:
            self.measurements = self.report.measurements

    def leader_starts(self) -> None:
        """Count the last report as that of an earlier leader."""
        self._earlier, self.is_fresh = None if self.report is None else self.report.incarnation, False

    def grant(self, allocation: Allocation) -> None:
        """Begin to wait for the acknowledgement of an allocation, which is written next."""
        self._granted_at, self.allocation = time.monotonic(), allocation

    def write(self, document: AllocationDocument) -> None:
        """Write the allocation, with a warning and a later retry if that fails."""
        trouble = self._allocations.write(document)
        if trouble is not None:
            self._warn("AllocationNotWritten", trouble)

    def retry(self) -> None:
        """Write the document of a failed write again."""
        self._allocations.retry()

    def read(self, now: float, *, runs: bool) -> float | None:
        """Read the leader's report, which `runs` or has just ended.

        Return the wall seconds until it acknowledged the allocation, if the report is the first to do so.
        """
        report = self._reports.poll()
        if self._reports.complaint != self._complaint:
            self._complaint = self._reports.complaint
            if self._complaint:
                self._warn("UnreadableReport", f"{self._complaint}; continuing without it")
        if report is None:
            return None
        self.report, self.reported_at = report, now
        self.measurements = merged(self.measurements, report.measurements)
        self.is_fresh = runs and report.incarnation != self._earlier
        generation = self.allocation.generation
        acknowledged = min(report.acknowledged_generation, generation)
        if not self.is_fresh or acknowledged <= self.acknowledged:
            return None
        self.acknowledged = acknowledged
        return time.monotonic() - self._granted_at if acknowledged == generation else None


class HistoryFile:
    """Appends to `history.jsonl` and forwards each event; a full disk causes one warning and stops nothing."""

    def __init__(self, directory: Path, on_event: Callable[[AnyEvent], None]) -> None:
        """Continue the history in `directory`; leader events that it already contains are not copied again."""
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
                logger.warning("cannot write %s; events are lost: %s", self._path, error)
            self._failing = True
        self._on_event(event)


class Stamp(TypedDict):
    """The common fields of the scheduler's events."""

    time: datetime
    used_seconds: float


class SchedulerJournal:
    """Writes the scheduler's events about one job."""

    def __init__(self, history: HistoryFile, used_seconds: Callable[[], float]) -> None:
        """Write into `history`; `used_seconds` returns the used part of the job's time budget."""
        self.history, self._used_seconds = history, used_seconds
        self.phase, self.reason, self.message = JobPhase.PENDING, Reason.NO_FREE_GPU, ""
        self._said: tuple[JobPhase, Reason, str] | None = None

    def stamp(self) -> Stamp:
        """Return the common fields of an event that happens now."""
        return {"time": datetime.now(UTC), "used_seconds": self._used_seconds()}

    def add(self, event: AnyEvent) -> None:
        """Add an event."""
        self.history.add(event)

    def warn(self, reason: str, message: str) -> None:
        """Record a warning that does not stop the job."""
        self.add(Warned(**self.stamp(), reason=reason, message=message))

    def stands(self, phase: JobPhase, reason: Reason, message: str = "") -> None:
        """Record the job's phase and reason, with an event if they changed."""
        self.phase, self.reason, self.message = phase, reason, message
        if self._said != (phase, reason, message):
            self._said = (phase, reason, message)
            self.add(JobChanged(**self.stamp(), phase=phase, reason=reason, message=message))
