"""The store of decisions and outcomes: a SQLite file that one thread of the service writes.

Callers never wait and never see a fault of the disk; only an outcome report waits for its commit. Records that cannot
be stored are counted, and logged once per minute. Several services may share a file on one machine; between machines
each has its own, and `espalier_agent.history.reading` reads them together.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar

from espalier_agent.history.schema import (
    DamagedError,
    OutcomeRecord,
    Statement,
    StoredRecord,
    StoreError,
    check_contents,
    check_file,
    open_to_write,
)
from espalier_core.types.advice import OutcomeReport

logger = logging.getLogger(__name__)


MAX_WAITING: Final = 2000
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the requests that wait to be stored, in bytes. As objects they take about ten times that."""
ID_BYTES: Final = 64
"""Weight in bytes of each id of a report, in addition to its characters."""
ARM_BYTES: Final = 400
"""Weight in bytes of each arm of a trial."""
MAX_DATABASE_BYTES: Final = 1024 * 1024 * 1024
BATCH: Final = 200
LOCK_SECONDS: Final = 5.0
"""Seconds that a commit waits for another writer."""
SAY_SECONDS: Final = 60.0
"""Seconds between two log lines about a fault."""
ItemT = TypeVar("ItemT")


class NotStoredError(RuntimeError):
    """A report was not committed. The message gives the reason."""


class OutcomeStore:
    """Accepts records from any thread and commits them in another, in order."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_DATABASE_BYTES,
        stored: Callable[[str, int], None] = lambda kind, amount: None,
        lost: Callable[[str, int], None] = lambda error, amount: None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """`stored` receives records by kind, `lost` by error.

        Raise `StoreError` if the file is of another version or another program.
        """
        check_file(path)
        self.path = path
        self._max_bytes = max_bytes
        self._lock_seconds = lock_seconds
        self._stored = stored
        self._lost = lost
        self._backlog: Backlog[tuple[StoredRecord, Future[int] | None]] = Backlog(MAX_WAITING, MAX_WAITING_BYTES)
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._said = -SAY_SECONDS
        self._unsaid = 0
        self._thread = threading.Thread(target=self._write, name="outcome-store", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Write the waiting records, for at most this many seconds; new records are refused."""
        self._backlog.close()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("%s: %d records were not stored before the end", self.path, len(self._backlog))

    def keep(self, record: StoredRecord, weight: int) -> None:
        """Store a record later, or count it as lost; `weight` is its approximate size in bytes."""
        if not self._backlog.put((record, None), weight):
            self._lose("QueueFull", 1, "the queue of records to store is full")

    def report(self, report: OutcomeReport) -> Future[int]:
        """Store a report; the result is the number of its decisions once they are committed, or `NotStoredError`."""
        committed: Future[int] = Future()
        record = OutcomeRecord(datetime.now(UTC), report)
        weight = sum(ID_BYTES + len(decision_id) for decision_id in report.decision_ids)
        weight += sum(ARM_BYTES * len(one.arms) for one in report.trials)
        if not self._backlog.put((record, committed), weight):
            self._lose("QueueFull", 1, "the queue of records to store is full")
            committed.set_exception(NotStoredError("the queue of records to store is full"))
        return committed

    def _write(self) -> None:
        while batch := self._backlog.take(BATCH):
            self._commit(batch)
        self._disconnect()

    def _commit(self, batch: list[tuple[StoredRecord, Future[int] | None]]) -> None:
        # From here on, a report whose sender no longer waits is stored like the others.
        asked = {
            id(record): committed
            for record, committed in batch
            if committed is not None and committed.set_running_or_notify_cancel()
        }
        sound: list[tuple[StoredRecord, list[Statement]]] = []
        for record, _ in batch:
            try:
                sound.append((record, record.statements()))
            except ValueError as error:
                reason = f"a {record.kind} cannot be written as JSON ({error})"
                self._lose("Invalid", 1, reason)
                if id(record) in asked:
                    asked.pop(id(record)).set_exception(NotStoredError(reason))
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            for _, statements in sound:
                for statement, row in statements:
                    connection.execute(statement, row)
            connection.execute("COMMIT")
        except Exception as error:  # Any error: without this thread nothing would be stored any more.
            self._disconnect()
            kind, reason = _describe(error)
            if kind == "Damaged":
                reason += self._set_aside()
            self._lose(kind, len(sound), reason)
            for committed in asked.values():
                committed.set_exception(NotStoredError(reason))
            return
        for record, _ in sound:
            self._stored(record.kind, 1)
            if isinstance(record, OutcomeRecord) and id(record) in asked:
                asked[id(record)].set_result(len(set(record.report.decision_ids)))

    def _connected(self) -> sqlite3.Connection:
        """Return a connection to the file now at the path: a file that was moved away is not written to any more."""
        if self._connection is not None and _inode(self.path) == self._inode:
            return self._connection
        self._disconnect()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = open_to_write(self.path, self._max_bytes, self._lock_seconds)
        if (inode := _inode(self.path)) != self._inode:
            try:
                check_contents(connection, self.path)
            except (DamagedError, sqlite3.Error):
                connection.close()
                raise
        self._connection, self._inode = connection, inode
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            # Data that cannot be written back now stays in its log file, for the next process that opens it.
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _set_aside(self) -> str:
        """Rename a damaged database, so that a new one is begun; return a description for people.

        This is done under a lock, and only if it is still damaged: another service may have begun a new one already.
        """
        name = f"{self.path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                if not _is_damaged(self.path, self._lock_seconds):
                    return "; another service has set it aside"
                for suffix in ("-wal", "-shm", ""):
                    source = self.path.with_name(self.path.name + suffix)
                    if source.exists():
                        source.rename(self.path.with_name(name + suffix))
            finally:
                os.close(folder)
        except OSError as error:
            return f"; it cannot be set aside either ({error.strerror})"
        logger.error("%s: is damaged; renamed it to %s and started a new one", self.path, name)
        return f"; it is {name} now, and a new one is begun"

    def _lose(self, kind: str, amount: int, reason: str) -> None:
        self._lost(kind, amount)
        self._unsaid += amount
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            logger.error("%d records not stored in %s: %s. Advice continues", self._unsaid, self.path, reason)
            self._said, self._unsaid = now, 0


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_damaged(path: Path, patience: float) -> bool:
    if not path.exists():
        return False
    try:
        connection = open_to_write(path, MAX_DATABASE_BYTES, patience)
        try:
            check_contents(connection, path)
        finally:
            connection.close()
    except (sqlite3.Error, StoreError) as error:
        return _describe(error)[0] == "Damaged"
    return False


def _describe(error: Exception) -> tuple[str, str]:
    """Return the kind of a fault, for the metric, and its description, for people."""
    if isinstance(error, DamagedError):
        return "Damaged", str(error)
    if isinstance(error, sqlite3.Error):
        # The low byte is the kind, the rest has details.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = {
            sqlite3.SQLITE_CORRUPT: "Damaged",
            sqlite3.SQLITE_NOTADB: "Damaged",
            sqlite3.SQLITE_FULL: "Full",
            sqlite3.SQLITE_BUSY: "Locked",
            sqlite3.SQLITE_LOCKED: "Locked",
        }.get(code, "Unwritable")
        return kind, str(error)
    if isinstance(error, OSError):
        return "Unwritable", error.strerror or str(error)
    return "Unwritable", str(error)


class Backlog(Generic[ItemT]):
    """A queue with limits on the number of its items and on their weight in bytes."""

    def __init__(self, items: int, weight: int) -> None:
        self.items = items
        self.weight = weight
        self._waiting: deque[tuple[ItemT, int]] = deque()
        self._weight = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: ItemT, weight: int = 0) -> bool:
        """Put an item; False if there is no room or the backlog is closed. Never waits for room."""
        with self._changed:
            if self._closed or len(self._waiting) >= self.items or self._weight + weight > self.weight:
                return False
            self._waiting.append((item, weight))
            self._weight += weight
            self._changed.notify()
            return True

    def take(self, most: int) -> list[ItemT]:
        """Return up to `most` of the oldest items; wait until there are some. Empty if closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._weight -= sum(weight for _, weight in taken)
            return [item for item, _ in taken]

    def close(self) -> None:
        """Refuse new items; queued ones can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._waiting)
