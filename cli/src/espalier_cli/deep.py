"""`espalier validate --deep`: try a job's code and data in a separate process, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from espalier_core.types.job import AdaptiveTrainingJob

NOT_CHECKED: Final = (
    "not checked: later steps and batches, memory on other GPUs, growth itself, the agent, and a cluster's image and "
    "volumes"
)
OWN_COMMAND: Final = (
    "not checked: the job runs its own command, which was not started; try it alone with few examples, and the "
    "imports and the data with it"
)
_COMMAND: Final = (sys.executable, "-m", "espalier_trainer.launch.checking")


@dataclass
class Checked:
    """The result of a check."""

    found: list[str] = field(default_factory=list)
    problem: str = ""
    """The reason why the job cannot run; '' if all attempts succeeded."""


def check_deep(
    job: AdaptiveTrainingJob, time_limit: float, tell: Callable[[str], None], command: tuple[str, ...] = _COMMAND
) -> Checked:
    """Try the job for at most `time_limit` seconds of wall time; `tell` receives each finding at once.

    Output of the job's code goes to stderr.
    """
    if job.spec.has_own_command:
        tell(OWN_COMMAND)
        return Checked([OWN_COMMAND])
    checked = Checked()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job.to_json()), encoding="utf-8")
        # A separate session: it ends workers of a DataLoader with the process.
        child = subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(child)

        timer = threading.Timer(time_limit, end)
        timer.start()
        try:
            stage, ended = _follow(child.stdout, checked, tell)
            code = child.wait()
        finally:
            timer.cancel()
            _kill(child)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    if late.is_set() and not ended:
        checked.problem = f"not ready within {time_limit:g} s, while {stage}; --time-limit allows more"
    elif not ended:
        checked.problem = f"the check ended with exit code {code}, while {stage}"
    elif not checked.problem:
        tell(NOT_CHECKED)
    return checked


def _follow(lines: IO[str] | None, checked: Checked, tell: Callable[[str], None]) -> tuple[str, bool]:
    """Read the messages of the process; return its last stage, and whether it ended by itself."""
    stage = "importing torch"
    for line in lines or ():
        message = json.loads(line)
        if "stage" in message:
            stage = message["stage"]
        elif "found" in message:
            checked.found.append(message["found"])
            tell(message["found"])
        else:
            checked.problem = message.get("failed", "")
            return stage, True
    return stage, False


def _kill(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
