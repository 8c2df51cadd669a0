"""Progress of a program on this machine, from its output, its metrics and its posts."""

from __future__ import annotations

import hmac
import http.client
import logging
import math
import os
import secrets
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

from espalier_core.files.documents import write_text_atomically
from espalier_core.types.environment import STATUS_TOKEN_FILE, STATUS_URL
from espalier_core.types.program import MetricsProgress, ProgressSpec
from espalier_operator.programs import (
    MAX_LINE_BYTES,
    MAX_PAGE_BYTES,
    MAX_POST_BYTES,
    NOTHING,
    LineReader,
    ProgramReading,
    lines_of,
    values_of_page,
    values_of_post,
)

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 64 * 1024
"""Maximum number of bytes of output read at a time; of more, only the newest are read."""
FETCH_EVERY: Final = 0.5
"""Wall seconds between two fetches of metrics."""
REPORT_EVERY: Final = 1.0
"""Wall seconds between two reported values."""
TOKEN_FILE: Final = "status-token"
"""File in the job's folder with the token for a program's posts."""
_TIMEOUT: Final = 2.0


class LogTail:
    """The new lines of a file that a program writes."""

    def __init__(self, path: Path) -> None:
        """Begin at the current end of the file."""
        self._path = path
        self._offset = self._size()
        self._begun = b""
        """The incomplete last line."""

    def poll(self, ended: bool) -> bytes:
        """Return new output up to the end of the last complete line; all of it once the program has `ended`."""
        size = self._size()
        if size > self._offset:
            skipped = max(0, size - self._offset - PIECE_BYTES)
            with self._path.open("rb") as file:
                file.seek(self._offset + skipped)
                data = file.read(PIECE_BYTES)
            self._offset += skipped + len(data)
            # After a gap, the data up to the next end of a line is the rest of a line.
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
    """Metrics of a program, fetched by a thread, as the program may answer slowly or not at all."""

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
    """Return the current values of a metrics endpoint; empty if it does not answer."""
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


class _Posts(ThreadingHTTPServer):
    """Server on the loopback for a program's posts, which carry the token of a file."""

    daemon_threads = True

    def __init__(self, token_file: Path) -> None:
        """Listen, and write the token. Raises `OSError`."""
        super().__init__(("127.0.0.1", 0), _Poster)
        self._token_file, self.token = token_file, secrets.token_urlsafe(32)
        write_text_atomically(token_file, self.token, private=True)
        self.variables = {
            STATUS_URL: f"http://127.0.0.1:{self.server_address[1]}/status",
            STATUS_TOKEN_FILE: str(token_file.resolve()),
        }
        self.posted: deque[dict[str, float]] = deque(maxlen=100)
        self._thread = Thread(target=self.serve_forever, name="posts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._token_file.unlink(missing_ok=True)

    def poll(self) -> dict[str, float]:
        found: dict[str, float] = {}
        while self.posted:
            found |= self.posted.popleft()
        return found


class _Poster(BaseHTTPRequestHandler):
    server: _Posts
    timeout = _TIMEOUT

    def do_POST(self) -> None:
        """Accept a post."""
        _, _, token = self.headers.get("Authorization", "").partition(" ")
        length = self.headers.get("Content-Length", "")
        status, said = 200, b"{}"
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            status, said = 401, b"wrong token; send the one in the file that %s names" % STATUS_TOKEN_FILE.encode()
        elif not length.isdecimal() or int(length) > MAX_POST_BYTES:
            status, said = 413, b"send at most %d bytes, with a Content-Length" % MAX_POST_BYTES
        else:
            try:
                self.server.posted.append(values_of_post(self.rfile.read(int(length))))
            except ValueError as error:
                status, said = 400, f"the post {error}".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing of each post."""


class LocalProgress:
    """Known progress of one program."""

    def __init__(self, spec: ProgressSpec | None, log: Path) -> None:
        """Read `log`, the program's output, or its metrics, by `spec`; without it, only posts."""
        self._spec, self._path = spec, log
        self._posts: _Posts | None = None
        self._lines = None if spec is None or spec.log is None else LineReader(spec.log)
        self._pages = None if spec is None or spec.metrics is None else _Pages(spec.metrics)
        self._tail: LogTail | None = None
        self.reading = NOTHING
        self._reported, self._reported_at = NOTHING, -math.inf

    def close(self) -> None:
        """Stop fetching metrics and accepting posts."""
        if self._pages is not None:
            self._pages.close()
        if self._posts is not None:
            self._posts.close()
            self._posts = None

    def begin(self) -> dict[str, str]:
        """Prepare for the start of the program, whose output counts from now on. Return its variables for posts."""
        self._tail = None if self._lines is None else LogTail(self._path)
        if self._posts is None:
            try:
                self._posts = _Posts(self._path.with_name(TOKEN_FILE))
            except OSError as error:
                logger.warning("cannot accept posts of programs: %s", error)
                return {}
        return self._posts.variables

    def poll(self, ended: bool) -> ProgramReading | None:
        """Read new progress, to the end of the output once the program has `ended`; return a reading to report, if due.

        Changed readings are reported every `REPORT_EVERY` seconds at most, and at the end.
        """
        self._read(ended)
        now = time.monotonic()
        if self.reading is self._reported or not (ended or now >= self._reported_at + REPORT_EVERY):
            return None
        self._reported, self._reported_at = self.reading, now
        return self.reading

    def _read(self, ended: bool) -> None:
        values = {} if self._posts is None else self._posts.poll()
        if self._lines is not None and self._tail is not None:
            values |= self._lines.values(lines_of(self._tail.poll(ended)))
        elif self._pages is not None and not ended:
            values |= self._pages.poll()
        if values:
            self.reading = self.reading.then(values, None if self._spec is None else self._spec.steps)
