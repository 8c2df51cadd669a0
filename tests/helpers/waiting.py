"""Waits for what other threads and processes do. An event is awaited; the limit only ends a test that has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds for what takes a few on a machine that does nothing else. pytest ends a test after 300 s."""


def until(holds: Callable[[], Any], report: Callable[[], str] | str = "", seconds: float = PATIENCE) -> Any:
    """Return the first true value of `holds`; fails with `report` when there is none in time."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"not true after {seconds:g} s: {report if isinstance(report, str) else report()}")
        time.sleep(0.02)
    return found
