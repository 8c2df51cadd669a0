"""`python -m MODULE`, forked from a server that has imported torch and our parts: an interpreter would take seconds.

A real process with the environment, the folder and the output that it is given. What the interpreter itself does
before `main` (`python -m espalier_trainer` handles SIGTERM there) is tested where a program is started as such.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_PRELOADED: Final = [
    *(
        "torch",
        "torch._dynamo",
        "espalier_trainer.launch.main",
        "espalier_trainer.launch.session",
        "espalier_trainer.own",
    ),
    *("espalier_trainer.kube", "espalier_agent.commands.agent", "espalier_operator.kube.process.main"),
    *("espalier_cli.cluster.watch_command", "sklearn.datasets"),
]


def fork_server() -> Any:
    """Return the context of multiprocessing whose processes are forked from that server: one in a process of pytest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


class Forked:
    """A process that runs a module as a program; it answers as `subprocess.Popen` does."""

    def __init__(
        self, module: str, *arguments: str, env: Mapping[str, str], out: Path, log: Path | None = None, cwd: Path
    ) -> None:
        """Start it. Its stdout is appended to `out`, its stderr to `log` (None: there, too)."""
        given = (module, arguments, dict(env), str(out), str(log or out), str(cwd))
        for path in (out, log or out):
            path.touch()  # to be read at once
        self._process = fork_server().Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        found: int = self._process.pid
        return found

    @property
    def returncode(self) -> int | None:
        """The exit code, or -N for signal N; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float) -> int:
        """Return the exit code once it has ended; raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked program", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def _run(module: str, arguments: tuple[str, ...], env: dict[str, str], out: str, log: str, cwd: str) -> None:
    for number, path in ((1, out), (2, log)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    # Whole lines at once, also where PYTHONUNBUFFERED is set: what is logged may go there, too.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.modules["torch"].set_num_threads(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
