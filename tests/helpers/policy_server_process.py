"""A real policy server in a process of its own, without what its image does not have or it is not to import."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE, until

WITHOUT = ("torch", "kopf", "aiohttp", "kubernetes")
"""The agent's image has no kopf, and importing torch would take seconds and memory."""
_RUN = f"""
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {WITHOUT}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
from espalier_lab.scheduling.product.__main__ import main
main()
"""


@contextmanager
def serving(file: Path) -> Iterator[str]:
    """Serve a policy file and give the URL; the log is `log` beside the file."""
    log = file.with_name("log")
    line = re.compile(r"running on (http://127.0.0.1:\d+)")
    with log.open("w") as out:
        command = [sys.executable, "-c", _RUN, f"--file={file}", "--port=0"]
        process = subprocess.Popen(command, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        found: re.Match[str] = until(lambda: line.search(log.read_text()), log.read_text)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
