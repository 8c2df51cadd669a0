"""`espalier run` with real trainer and agent processes, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

JOB = """\
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {{name: {name}}}
spec:
  timeBudgetSeconds: {budget}
  minReplicas: 1
  maxReplicas: {most}
  gpuSecondsBudget: {gpu_seconds}
  priority: {priority}
  preemption: {{noticeSeconds: 1, cooldownSeconds: 0.2, minRuntimeSeconds: 0.2}}
  adaptation: {{mode: Auto, maxAdaptations: 2, decisionTimeoutSeconds: 2, fallback: {fallback}}}
  checkpoint: {{intervalSeconds: 0.5}}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "job", **change: object) -> Path:
        values = {"budget": 4, "most": 2, "gpu_seconds": 1000, "priority": 0, "fallback": "None"} | change
        path = tmp_path / f"{name}.yaml"
        path.write_text(JOB.format(name=name, **values))
        return path

    return write


class Espalier:
    """One `espalier` process and what it printed."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [str(Path(sys.executable).parent / "espalier"), *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def finish(self, timeout: float = 120) -> tuple[int, str, str]:
        """Wait for the end; returns exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def kill(self) -> None:
        """SIGKILL the command itself; what it started must look after itself."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def espalier() -> Iterator[Callable[..., Espalier]]:
    started: list[Espalier] = []

    def start(*arguments: str | Path) -> Espalier:
        started.append(Espalier(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            if stream is not None:
                stream.close()


def wait_for(condition: Callable[[], Any], seconds: float = 60, what: str = "it") -> Any:
    """Return the first true value of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"{what} did not happen within {seconds} s")


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return wait_for


def history(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the events of a run so far, of one type if asked."""
    path = folder / "history.jsonl"
    events = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # being written
        if kind is None or event["type"] == kind:
            events.append(event)
    return events


@pytest.fixture
def events_of() -> Callable[..., list[dict[str, Any]]]:
    return history


def processes_of(folder: Path) -> list[int]:
    """Return the ids of live processes whose environment or command names `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(folder).encode() in text and state != "Z":
            found.append(int(entry.name))
    return found


@pytest.fixture
def alive() -> Callable[[Path], list[int]]:
    return processes_of
