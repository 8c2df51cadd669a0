"""The database of decisions and outcomes: its tables, their version, and how a file is opened.

Version 2 added the probability with which an action was taken, version 3 what trials have shown, and what trees read
of a request. A file of an older version is read as it is, and whoever opens it to write brings it up to date first, in
one transaction.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

APPLICATION_ID: Final = 0x45535041
"""Application id of our SQLite files: "ESPA"."""
VERSION: Final = 3
"""Raised when an older reader would misread a newer file, or the reverse."""
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
    # What was greedy was certain. What was not was drawn by the policy's probabilities.
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
"""What brings a file of a version up to date."""


class StoreError(ValueError):
    """A database cannot be used. The message names the file, what is wrong and what to do."""


class DamagedError(StoreError):
    """The file is no database, or its contents contradict each other."""


def check_file(path: Path) -> None:
    """Refuse a file that another version or another program wrote, before it is written to.

    Only that: what is missing, locked, damaged or cannot be read may be mended while the service runs.
    """
    if not path.is_file():
        return
    try:
        with closing(open_to_read(path)) as connection:
            check_version(connection, path)
    except (DamagedError, sqlite3.Error):
        return


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a database that is there, and change nothing in it. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_to_write(path: Path, max_bytes: int, patience: float) -> sqlite3.Connection:
    """Open a database, with its tables made where it is new and brought up to date where it is old.

    Waits `patience` seconds for a lock.

    Write-ahead logging, so that readers and other writers are not in the way. `synchronous = FULL`: a commit is on
    the disk, power cut or not, when it returns; in this mode that is one fsync for each commit, and a commit takes
    all that waits. Raises `sqlite3.Error`, `DamagedError`, and `StoreError` for another's file.
    """
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        # Before anything is changed: another program's file stays as it is.
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
    """Check the whole database; raises `DamagedError` if it is inconsistent."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedError(f"{path}: is damaged ({found})")


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a file that can be used: `StoreError` for another version or another program's.

    Raises `sqlite3.Error`.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and tables:
        raise StoreError(f"{path}: is a database of another program; name another file")
    if application == APPLICATION_ID and not OLDEST <= version <= VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise StoreError(
            f"{path}: is of version {version}, of {age} Espalier (this one has {VERSION}); "
            "use that Espalier, or move the file away and a new one is begun"
        )
    return int(version)
