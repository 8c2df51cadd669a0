"""A real agent in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forked import Forked
from waiting import PATIENCE, until


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Serve the policy in `served` of a folder, or the default one, and keep what comes in `kept`; give the URL."""
    log, url = folder / "log-agent", folder / "url"
    places = ["--port", "0", "--outcomes-db", str(folder / "kept" / "outcomes.db"), "--url-file", str(url)]
    if (folder / "served").exists():
        places += ["--policy", str(folder / "served")]
    process = Forked("espalier_agent", "serve", *places, *options, env=os.environ, out=log, cwd=folder)
    try:
        until(lambda: url.exists() and url.read_text().endswith("\n"), log.read_text)
        yield url.read_text().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
