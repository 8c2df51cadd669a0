"""A real policy server in a process of its own, without what its image does not have or it is not to import."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from waiting import PATIENCE, until


def required(name: str, found: set[str]) -> set[str]:
    """Add what a package needs, with what that needs, to those found."""
    for each in map(Requirement, metadata.requires(name) or ()):
        other = canonicalize_name(each.name)
        if other not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(other)
            required(other, found)
    return found


def missing(image: str) -> Iterator[str]:
    """Yield the modules that are installed here, but not in an image."""
    there = {f"espalier-{image}", "espalier-lab", "espalier-operator", *required(f"espalier-{image}", set())}
    for module, packages in metadata.packages_distributions().items():
        if there.isdisjoint(map(canonicalize_name, packages)):
            yield module


WITHOUT = ("torch", "aiohttp", "kubernetes", *missing("agent"))
"""What the agent's image does not have; importing the first three would take seconds and memory."""
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
