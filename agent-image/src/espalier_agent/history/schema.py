"""The database of decisions and outcomes: its tables, their version, their rows, and how a file is opened.

Version 2 added the probability with which an action was taken, version 3 the results of trials and the fields of a
request that trees read. A file of an older version can be read unchanged; opening it for writing brings it up to date
first, in one transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from espalier_core.types.advice import AdviceRequest, OutcomeReport, PolicyVersion

if TYPE_CHECKING:
    from espalier_agent.policies.advice import PolicyDecision


APPLICATION_ID: Final = 0x45535041
"""Application id of our SQLite files: "ESPA"."""
VERSION: Final = 3
"""Raised if an older reader would misread a newer file, or the reverse."""
OLDEST: Final = 1
"""The oldest version that can still be read and brought up to date."""
PAGE_BYTES: Final = 4096

TABLES: Final = (
    "CREATE TABLE architectures (digest TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE decisions (
        decision_id TEXT PRIMARY KEY, time TEXT NOT NULL, job TEXT NOT NULL,
        architecture TEXT NOT NULL REFERENCES architectures (digest),
        time_left_seconds REAL NOT NULL, time_budget_seconds REAL NOT NULL,
        allocation TEXT NOT NULL, progress TEXT NOT NULL,
        actions TEXT NOT NULL, probabilities TEXT NOT NULL, action TEXT NOT NULL, greedy INTEGER NOT NULL,
        policy_name TEXT NOT NULL, policy_version TEXT NOT NULL,
        behaviour_probability REAL NOT NULL DEFAULT 1.0,
        places TEXT NOT NULL DEFAULT '{}', batch_size INTEGER)""",
    """CREATE TABLE outcomes (
        decision_id TEXT PRIMARY KEY, time TEXT NOT NULL, job TEXT NOT NULL,
        final_accuracy REAL NOT NULL, time_budget_seconds REAL NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE shadows (
        decision_id TEXT NOT NULL, policy_name TEXT NOT NULL, policy_version TEXT NOT NULL, time TEXT NOT NULL,
        action TEXT NOT NULL, probabilities TEXT NOT NULL, agreed INTEGER NOT NULL,
        PRIMARY KEY (decision_id, policy_name, policy_version)) WITHOUT ROWID""",
    """CREATE TABLE trials (
        decision_id TEXT PRIMARY KEY, time TEXT NOT NULL, job TEXT NOT NULL,
        action TEXT NOT NULL, arms TEXT NOT NULL) WITHOUT ROWID""",
)

_TO_2: Final = (
    "ALTER TABLE decisions ADD COLUMN behaviour_probability REAL NOT NULL DEFAULT 1.0",
    # A greedy action was certain. Any other was drawn by the policy's probabilities.
    """UPDATE decisions SET behaviour_probability = (
        SELECT chance.value FROM json_each(decisions.actions) AS option
        JOIN json_each(decisions.probabilities) AS chance ON chance.key = option.key
        WHERE option.value = decisions.action) WHERE greedy = 0""",
)
_TO_3: Final = (
    "ALTER TABLE decisions ADD COLUMN places TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE decisions ADD COLUMN batch_size INTEGER",
    TABLES[-1],
)
UPDATES: Final = {1: (*_TO_2, *_TO_3), 2: _TO_3}
"""Statements that bring a file of each version up to date."""
Row = tuple[str | float | int | None, ...]
Statement = tuple[str, Row]

_ARCHITECTURE = "INSERT OR IGNORE INTO architectures VALUES (?, ?)"
_DECISION = "INSERT OR IGNORE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_OUTCOME = (
    "INSERT INTO outcomes SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decision_id = ?1 AND job != ?3) "
    "ON CONFLICT (decision_id) DO UPDATE SET time = excluded.time, "
    "job = excluded.job, final_accuracy = excluded.final_accuracy, time_budget_seconds = excluded.time_budget_seconds "
    "WHERE job = excluded.job"
)
_TRIAL = (
    "INSERT INTO trials SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decision_id = ?1 AND job != ?3) "
    "ON CONFLICT (decision_id) DO UPDATE SET time = excluded.time, action = excluded.action, arms = excluded.arms "
    "WHERE job = excluded.job"
)
_SHADOW = "INSERT OR IGNORE INTO shadows VALUES (?, ?, ?, ?, ?, ?, ?)"


class StoreError(ValueError):
    """A database cannot be used. The message names the file, the fault and the remedy."""


class DamagedError(StoreError):
    """The file is not a database, or its contents contradict each other."""


def check_file(path: Path) -> None:
    """Refuse a file of another version or another program, before it is written to.

    Nothing else is refused: a missing, locked, damaged or unreadable file may be mended while the service runs.
    """
    if not path.is_file():
        return
    try:
        with closing(open_to_read(path)) as connection:
            check_version(connection, path)
    except (DamagedError, sqlite3.Error):
        return


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing database read-only. Raise `sqlite3.Error`."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_to_write(path: Path, max_bytes: int, patience: float) -> sqlite3.Connection:
    """Open a database; create its tables if it is new, and bring them up to date if it is old.

    Wait `patience` seconds for a lock.

    Write-ahead logging keeps readers and other writers from blocking each other. `synchronous = FULL`: a commit is on
    the disk, even after a power cut, when it returns; in this mode that is one fsync per commit, and a commit takes
    everything that waits. Raise `sqlite3.Error`, `DamagedError`, and `StoreError` for another program's file.
    """
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        # Before any change: another program's file stays as it is.
        check_version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA max_page_count = {max(max_bytes // PAGE_BYTES, 1)}")
        connection.execute("BEGIN IMMEDIATE")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for table in TABLES:
                connection.execute(table)
        elif (version := check_version(connection, path)) < VERSION:
            for update in UPDATES[version]:
                connection.execute(update)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def check_contents(connection: sqlite3.Connection, path: Path) -> None:
    """Check the whole database; raise `DamagedError` if it is inconsistent."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedError(f"{path}: is damaged ({found})")


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a usable file; raise `sqlite3.Error`, or `StoreError` for another version or program."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and tables:
        raise StoreError(f"{path}: is a database of another program; name another file")
    if application == APPLICATION_ID and not OLDEST <= version <= VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise StoreError(
            f"{path}: has version {version}, of {age} Espalier (this one has {VERSION}); "
            "use that Espalier, or move the file away and a new one is begun"
        )
    return int(version)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A consultation and its answer."""

    decision_id: str
    time: datetime
    request: AdviceRequest
    decision: PolicyDecision
    policy: PolicyVersion

    kind = "decision"

    def statements(self) -> list[Statement]:
        """Return the statements that store it. An architecture is stored once, however often it is used."""
        request = self.request
        architecture = _json(request.architecture.to_json())
        digest = hashlib.sha256(architecture.encode()).hexdigest()
        row: Row = (
            self.decision_id,
            _moment(self.time),
            _text(request.job),
            digest,
            request.time_left_seconds,
            request.time_budget_seconds,
            _json(request.allocation.to_json()),
            _json(request.progress.to_json()),
            _json([action.to_json() for action in request.actions()]),
            _json([entry.probability for entry in self.decision.probabilities]),
            _json(self.decision.action.to_json()),
            int(self.decision.action == self.decision.preferred),
            _text(self.policy.name),
            _text(self.policy.version),
            self.decision.behaviour_probability,
            _json(dict(request.places)),
            request.batch_size,
        )
        return [(_ARCHITECTURE, (digest, architecture)), (_DECISION, row)]


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """A job's end, for each of its decisions.

    It is stored only for decisions that were made for the reporting job. A repeated report changes nothing; a later one
    replaces it: a job whose leader was restarted reports again.
    """

    time: datetime
    report: OutcomeReport

    kind = "outcome"

    def statements(self) -> list[Statement]:
        """Return the statements that store it."""
        report = self.report
        rest = (_moment(self.time), _text(report.job), report.final_accuracy, report.time_budget_seconds)
        ends = [(_OUTCOME, (_text(decision_id), *rest)) for decision_id in dict.fromkeys(report.decision_ids)]
        tried: list[Statement] = [
            (_TRIAL, (_text(one.decision_id), *rest[:2], _text(one.action), _json([arm.to_json() for arm in one.arms])))
            for one in report.trials
            if one.decision_id in report.decision_ids
        ]
        return [*ends, *tried]


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """The answer of another policy."""

    decision_id: str
    time: datetime
    decision: PolicyDecision
    policy: PolicyVersion
    agreed: bool

    kind = "shadow"

    def statements(self) -> list[Statement]:
        """Return the statements that store it."""
        row: Row = (
            self.decision_id,
            _text(self.policy.name),
            _text(self.policy.version),
            _moment(self.time),
            _json(self.decision.action.to_json()),
            _json([entry.probability for entry in self.decision.probabilities]),
            int(self.agreed),
        )
        return [(_SHADOW, row)]


StoredRecord = DecisionRecord | OutcomeRecord | ShadowRecord


def _json(value: object) -> str:
    # ASCII: names of layers may contain text that a database rejects, such as half a surrogate pair.
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds")
