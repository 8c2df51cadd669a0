"""The audit log: every plan with actions as a line of JSON, and its snapshot.

`espalier plan --snapshot FILE` repeats the decision. A line has `at` (epoch seconds), `snapshot` (the name of its file
in the same folder), `actions`, and `fallback` (the reason for which `fair` decided in place of the policy, else null).
Plans are written in a thread while the operator continues. A plan that is not written, because the disk is full or too
slow, is reported in the operator's log.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections import deque
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from espalier_operator.model import Snapshot
from espalier_operator.model.actions import DECISIONS, EARLIER, Plan

logger = logging.getLogger(__name__)

_ENDING: Final = ".json.gz"
_WAITING: Final = 32
"""Maximum number of plans that wait to be written, with their snapshots in memory."""
_LINES_PART: Final = 8
"""Divisor of the limit for the current lines, and likewise for the earlier ones."""


class AuditLog:
    """Writes to one folder up to a limit of bytes; the oldest snapshots are removed first."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Create `folder`. Raises `OSError` where it cannot be written to."""
        self._folder, self._limit = folder, limit_bytes
        self._plans: asyncio.Queue[tuple[Snapshot, Plan]] = asyncio.Queue(_WAITING)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DECISIONS).open("a").close()
        self._snapshots: deque[tuple[Path, int]] | None = None
        """Snapshots in the folder with their sizes, oldest first; None before the first plan is written."""
        self._bytes = 0

    def add(self, snapshot: Snapshot, plan: Plan) -> None:
        """Queue a plan for writing if it has actions."""
        if not plan.actions:
            return
        try:
            self._plans.put_nowait((snapshot, plan))
        except asyncio.QueueFull:
            logger.error("the audit log lacks the plan of %s: writing takes too long", _name(snapshot))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            snapshot, plan = await self._plans.get()
            try:
                await asyncio.to_thread(self._write, snapshot, plan)
            except OSError as error:
                logger.error("the audit log lacks the plan of %s: %s", _name(snapshot), error)
            finally:
                self._plans.task_done()

    async def written(self) -> None:
        """Wait until all queued plans are written."""
        await self._plans.join()

    def _write(self, snapshot: Snapshot, plan: Plan) -> None:
        if self._snapshots is None:
            # A folder may have a hundred thousand files, so it is listed once; and not before this operator leads, as
            # until then the leader writes to the same folder.
            self._snapshots = deque((file, file.stat().st_size) for file in sorted(self._folder.glob(f"*{_ENDING}")))
            self._bytes = sum(size for _, size in self._snapshots)
        file = self._folder / f"{_name(snapshot)}{_ENDING}"
        packed = gzip.compress(snapshot.to_json().encode(), compresslevel=1, mtime=0)
        file.write_bytes(packed)
        self._snapshots.append((file, len(packed)))
        self._bytes += len(packed)
        actions = [{"action": type(action).__name__, **asdict(action)} for action in plan.actions]
        entry = {"at": snapshot.taken_at, "snapshot": file.name, "fallback": plan.fallback or None, "actions": actions}
        line = f"{json.dumps(entry)}\n"
        lines = self._folder / DECISIONS
        if lines.exists() and lines.stat().st_size + len(line) > self._limit / _LINES_PART:
            lines.replace(self._folder / EARLIER)
        with lines.open("a", encoding="utf-8") as log:
            log.write(line)
        self._remove_oldest(self._snapshots)

    def _remove_oldest(self, snapshots: deque[tuple[Path, int]]) -> None:
        most = self._limit * (1 - 2 / _LINES_PART)
        while self._bytes > most and len(snapshots) > 1:
            file, size = snapshots[0]
            file.unlink(missing_ok=True)
            snapshots.popleft()
            self._bytes -= size


def _name(snapshot: Snapshot) -> str:
    """Return the snapshot's time in microseconds, so that names sort by time."""
    return f"{datetime.fromtimestamp(snapshot.taken_at, UTC):%Y%m%dT%H%M%S.%fZ}"
