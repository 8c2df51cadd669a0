"""Files that a service reads again when they change. Unusable files are refused, and the service goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")
ErrorT = TypeVar("ErrorT", bound=Exception)
Signature = tuple[tuple[str, int, int, int, int], ...]


def signature_of(paths: Iterable[Path]) -> Signature:
    """Return a key of the files' metadata, links followed; it does not depend on their contents, which would have to be
    read each time.

    Unreadable files are left out: reading them reports the cause.
    """
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path.name, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


class ReloadedFiles(Generic[ValueT, ErrorT]):
    """Reads files again when they have changed: written again, renamed, or behind a link that was switched."""

    def __init__(
        self,
        files: Callable[[], Iterable[Path]],
        read: Callable[[], ValueT],
        error: type[ErrorT],
        *,
        again_seconds: float = 0.0,
        refused: Callable[[ErrorT], None] = lambda error: None,
    ) -> None:
        """`read` raises `error` if the files cannot be used. It is tried again after `again_seconds`, even if they are
        unchanged: their disk may have been unavailable. `refused` receives each reason once.
        """
        self._files, self._read, self._error = files, read, error
        self._again_seconds, self._refused = again_seconds, refused
        self._seen: Signature | None = None
        self._tried = 0.0
        self.problem: ErrorT | None = None
        """The reason why the current files cannot be used; None if they can."""

    def look(self) -> ValueT | None:
        """Return the files' value if they have changed; None if they have not, or cannot be used."""
        # Taken before they are read: a change meanwhile is noticed at the next look.
        signature, now = signature_of(self._files()), time.monotonic()
        known = signature == self._seen
        if known and (self.problem is None or now - self._tried < self._again_seconds):
            return None
        self._seen, self._tried = signature, now
        try:
            value = self._read()
        except self._error as error:
            before, self.problem = self.problem, error
            if not known or str(error) != str(before):
                self._refused(error)
            return None
        self.problem = None
        return value
