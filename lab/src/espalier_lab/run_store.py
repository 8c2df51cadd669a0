"""Finished runs of a study on disk, so that a stopped study continues: in one file, or one file per run.

`RunFile` appends the runs to a file of JSON lines, which one process writes. In `RunFolder` each run has a separate
file, for runs of several processes. A run is written completely or not at all.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, json_lines, read_document, write_document

RecordT = TypeVar("RecordT", bound=Record)
KeyT = TypeVar("KeyT", bound=Hashable)


class RunStoreError(ValueError):
    """Stored runs cannot be used. The message has the reason and the remedy."""


class InUseError(RunStoreError):
    """Another process works in the folder."""


def check_same(there: Record, here: Record, refused: str) -> None:
    """Raise `RunStoreError`, beginning with `refused` and naming the difference, if two records differ."""
    theirs, ours = there.model_dump(), here.model_dump()
    found = "; ".join(f"{name}: {theirs[name]} there, {ours[name]} here" for name in ours if ours[name] != theirs[name])
    if found:
        raise RunStoreError(f"{refused} ({found})")


class RunFile(Generic[KeyT, RecordT]):
    """Runs by their keys, in a file of JSON lines, or only in memory if there is no file."""

    def __init__(
        self, path: Path | None, kind: type[RecordT], key: Callable[[RecordT], KeyT], head: Record | None = None
    ) -> None:
        """Read the file, or begin it. `head` is its first line, with the common properties of all runs.

        An incomplete last line is dropped. Raise `RunStoreError` if the head differs.
        """
        self._path, self._key = path, key
        self._runs: dict[KeyT, RecordT] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        lines = json_lines(whole)
        if head is not None and lines:
            there = type(head).model_validate_json(lines.pop(0))
            check_same(there, head, f"{path}: holds other runs; name another file")
        elif head is not None:
            whole = f"{head.model_dump_json()}\n"
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for line in lines:
            run = kind.model_validate_json(line)
            self._runs[key(run)] = run

    def __iter__(self) -> Iterator[RecordT]:
        return iter(self._runs.values())

    def __contains__(self, key: KeyT) -> bool:
        return key in self._runs

    def __getitem__(self, key: KeyT) -> RecordT:
        return self._runs[key]

    def missing(self, wanted: Iterable[KeyT]) -> list[KeyT]:
        """Return the keys in `wanted` that are not done yet."""
        return [key for key in wanted if key not in self._runs]

    def add(self, run: RecordT) -> None:
        """Add one run; it is on the disk when this returns."""
        self._runs[self._key(run)] = run
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{run.model_dump_json()}\n")
                file.flush()
                os.fsync(file.fileno())


def head_of(path: Path | None, kind: type[RecordT]) -> RecordT | None:
    """Return the head of a `RunFile`; None if there is no file."""
    if path is None or not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        return kind.model_validate_json(file.readline())


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with one file per run."""

    path: Path

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Lock the folder against other processes; raise `InUseError` if one works in it. `what` names the activity."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InUseError(f"{self.path}: another {what} works in it; wait, or name another") from error
            yield
        finally:
            os.close(handle)

    def read(self, name: str, kind: type[RecordT]) -> RecordT | None:
        """Return a record; None if there is none. Raise `DocumentError` if it is damaged."""
        try:
            return read_document(self.path / name, kind)
        except FileNotFoundError:
            return None

    def whole(self, name: str, kind: type[RecordT]) -> RecordT | None:
        """Return a record; None if there is none, or it is damaged."""
        try:
            return self.read(name, kind)
        except DocumentError:
            return None

    def write(self, name: str, record: Record) -> None:
        """Write a record."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, record)
