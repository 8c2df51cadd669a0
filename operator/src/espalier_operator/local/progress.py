"""The progress of a program on this machine: its output is followed, or its metrics are fetched."""

from __future__ import annotations

import http.client
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from espalier_core.types.program import MetricsProgress, ProgressSpec
from espalier_operator.programs import (
    MAX_LINE_BYTES,
    MAX_PAGE_BYTES,
    NOTHING,
    LineReader,
    ProgramReading,
    lines_of,
    values_of_page,
)

PIECE_BYTES: Final = 64 * 1024
"""Maximum number of bytes of the output that are read at a time; of more than that only the newest are read."""
FETCH_EVERY: Final = 0.5
"""Wall seconds between two fetches of metrics."""
REPORT_EVERY: Final = 1.0
"""Wall seconds between two values that are reported."""
_TIMEOUT: Final = 2.0


class LogTail:
    """The new lines of a file that a program writes."""

    def __init__(self, path: Path) -> None:
        """Begin at the end of the file as it is now."""
        self._path = path
        self._offset = self._size()
        self._begun = b""
        """The part of a line that is not complete yet."""

    def poll(self, ended: bool) -> bytes:
        """Return what is new, up to the end of the last complete line; all of it once the program has `ended`."""
        size = self._size()
        if size > self._offset:
            skipped = max(0, size - self._offset - PIECE_BYTES)
            with self._path.open("rb") as file:
                file.seek(self._offset + skipped)
                data = file.read(PIECE_BYTES)
            self._offset += skipped + len(data)
            # After a gap, what is there up to the next end of a line is the rest of a line.
            self._begun = b"" if skipped else self._begun
            data = data[data.find(b"\n") + 1 :] if skipped else self._begun + data
            self._begun = data
        if ended:
            whole, self._begun = self._begun, b""
            return whole
        end = max(self._begun.rfind(b"\n"), self._begun.rfind(b"\r")) + 1
        whole, rest = self._begun[:end], self._begun[end:]
        self._begun = rest if len(rest) <= MAX_LINE_BYTES else rest[: MAX_LINE_BYTES + 1]  # too long, and stays it
        return whole

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


class _Pages:
    """The metrics of a program, fetched by a thread: the program may answer slowly, or not at all."""

    def __init__(self, metrics: MetricsProgress) -> None:
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._fetch: Future[dict[str, float]] | None = None
        self._next = 0.0

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def poll(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._fetch is not None and self._fetch.done():
            found, self._fetch = self._fetch.result(), None
        if self._fetch is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + FETCH_EVERY
            self._fetch = self._executor.submit(fetch, self._metrics)
        return found


def fetch(metrics: MetricsProgress, host: str = "127.0.0.1") -> dict[str, float]:
    """Return the values that an endpoint serves now; none if it does not answer."""
    connection = http.client.HTTPConnection(host, metrics.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", metrics.path)
        answer = connection.getresponse()
        page, deadline = b"", time.monotonic() + _TIMEOUT  # of all; the connection's is for each part of it
        while len(page) < MAX_PAGE_BYTES and (part := answer.read1(MAX_PAGE_BYTES - len(page))):
            page += part
            if time.monotonic() > deadline:
                return {}
        return values_of_page(page, metrics) if answer.status == 200 else {}
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()


class LocalProgress:
    """What is known of the progress of one program."""

    def __init__(self, spec: ProgressSpec | None, log: Path) -> None:
        """Read `log`, the output of the program, or its metrics, as `spec` says; nothing without it."""
        self._spec, self._path = spec, log
        self._lines = None if spec is None or spec.log is None else LineReader(spec.log)
        self._pages = None if spec is None or spec.metrics is None else _Pages(spec.metrics)
        self._tail: LogTail | None = None
        self.reading = NOTHING
        self._reported, self._reported_at = NOTHING, -math.inf

    def close(self) -> None:
        """Fetch nothing any more."""
        if self._pages is not None:
            self._pages.close()

    def begin(self) -> None:
        """The program is about to be started: what it writes from now on counts."""
        self._tail = None if self._lines is None else LogTail(self._path)

    def poll(self, ended: bool) -> ProgramReading | None:
        """Read what is new, to the end of its output once it has `ended`; return what is to be reported.

        That is little: what has changed, rarely, and at its end.
        """
        self._read(ended)
        now = time.monotonic()
        if self.reading is self._reported or not (ended or now >= self._reported_at + REPORT_EVERY):
            return None
        self._reported, self._reported_at = self.reading, now
        return self.reading

    def _read(self, ended: bool) -> None:
        values: dict[str, float] = {}
        if self._lines is not None and self._tail is not None:
            values = self._lines.values(lines_of(self._tail.poll(ended)))
        elif self._pages is not None and not ended:
            values = self._pages.poll()
        if values:
            self.reading = self.reading.then(values, None if self._spec is None else self._spec.steps)
