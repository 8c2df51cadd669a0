"""Where outcome reports are kept: one JSON line each, on disk before the report is acknowledged."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from espalier_api.advice import OutcomeReport


class OutcomeLog:
    """An append-only JSON-lines file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def append(self, report: OutcomeReport) -> None:
        """Write one line and fsync it; raises `OSError` where the disk refuses.

        A line that was cut off by a crash or a full disk is closed first, so that it costs itself and no other.
        """
        entry = {"time": datetime.now(UTC).isoformat(), **report.to_json()}
        line = (json.dumps(entry, separators=(",", ":")) + "\n").encode()
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                if not _ends_with_newline(file.fileno()):
                    line = b"\n" + line
                file.write(line)
                file.flush()
                os.fsync(file.fileno())


def _ends_with_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
