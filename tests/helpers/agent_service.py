"""A real agent in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 120.0


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Serve the policy in `served` of a folder, or the default one, and keep what comes in `kept`; give the URL."""
    places = ["--port", "0", "--outcomes-db", folder / "kept" / "outcomes.db"]
    if (folder / "served").exists():
        places += ["--policy", folder / "served"]
    with (folder / "log-agent").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "espalier_agent", "serve", *map(str, places), *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            assert process.stdout is not None
            announced = process.stdout.readline().strip()
            assert announced, (folder / "log-agent").read_text()
            yield announced
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.communicate()
