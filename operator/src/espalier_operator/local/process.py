"""Child processes that end with the scheduler, the agent as one of them, and notification of ends and file changes.

A child leads a session of its own, so that a Ctrl-C at the terminal reaches only the scheduler, and its whole group
can be ended. On Linux the kernel sends it SIGTERM when the scheduler dies, even by SIGKILL: it checkpoints and ends. A
pid file (with the process's start time, as pids are reused) lets the next run end processes that are still left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from espalier_core.files.documents import write_text_atomically
from espalier_operator.clock import Backoff
from espalier_operator.local.files import AGENT_LOG

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_IN_MODIFY, _IN_MOVED_TO = 0x2, 0x80
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
AGENT_PID_FILE = "agent.pid"
AGENT_RESTARTS: Final = 5


@contextlib.contextmanager
def told_of(folders: Iterable[Path], names: Iterable[str], news: Callable[[], None]) -> Iterator[bool]:
    """Call `news` in the running loop when a child ends, or a file of one of `names` in `folders` is written.

    Yield whether both are reported, which needs Linux and the main thread.
    """
    loop, marks = asyncio.get_running_loop(), [name.encode() + b"\0" for name in names]
    with contextlib.ExitStack() as stack:
        try:
            loop.add_signal_handler(signal.SIGCHLD, news)
            stack.callback(loop.remove_signal_handler, signal.SIGCHLD)
            queue = -1 if _LIBC is None else _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (RuntimeError, ValueError):
            queue = -1
        if queue < 0:
            yield False
            return
        stack.callback(os.close, queue)
        watched = [_LIBC.inotify_add_watch(queue, bytes(folder), _IN_MODIFY | _IN_MOVED_TO) for folder in folders]

        def read() -> None:
            events = os.read(queue, 64 * 1024)
            if any(mark in events for mark in marks):
                news()

        loop.add_reader(queue, read)
        stack.callback(loop.remove_reader, queue)
        yield min(watched) >= 0


class Process:
    """A running or ended child."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, pid_file: Path) -> None:
        """Start `argv` with its output appended to `log`; raises `OSError` if it cannot be started."""
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        self._pid_file = pid_file
        self._kill_at: float | None = None
        mark = json.dumps({"pid": self._child.pid, "started": _start_time(self._child.pid)})
        try:
            write_text_atomically(pid_file, mark + "\n")
        except OSError:
            self.kill()  # without a pid file, no later run could end it
            self._child.wait()
            raise

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal) once the process has ended, and end the rest of its group."""
        if self._child.returncode is None:
            if not self._has_exited():
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    _signal_group(self.pid, signal.SIGKILL)
                return None
            # The leader is not reaped yet, so its id cannot belong to another group.
            _signal_group(self.pid, signal.SIGKILL)
            self._child.wait()
            self._pid_file.unlink(missing_ok=True)
        return self._child.returncode

    def terminate(self, grace_wall_seconds: float) -> None:
        """Send SIGTERM to the leader; `poll` sends SIGKILL to its group after the grace period.

        A second call can only shorten that period.
        """
        if self._child.returncode is not None:
            return
        kill_at = time.monotonic() + grace_wall_seconds
        if self._kill_at is None:
            self._kill_at = kill_at
            os.kill(self.pid, signal.SIGTERM)
        self._kill_at = min(self._kill_at, kill_at)

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        if self._child.returncode is None:
            self._kill_at = time.monotonic()
            _signal_group(self.pid, signal.SIGKILL)

    def _has_exited(self) -> bool:
        if sys.platform == "linux":
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._child.poll() is not None


async def end_orphan(pid_file: Path, grace_wall_seconds: float) -> bool:
    """End the process left by an earlier run, if it still runs; return whether there was one."""
    orphan = _read_pid_file(pid_file)
    if orphan is None or not _runs(*orphan):
        return False
    pid, _ = orphan
    _signal_group(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_wall_seconds
    while _runs(*orphan):
        if time.monotonic() >= deadline:
            _signal_group(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
    return True


def _read_pid_file(path: Path) -> tuple[int, str] | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return int(body["pid"]), str(body["started"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # a damaged file names no process, and the next start overwrites it


def _die_with(parent: int) -> Callable[[], None] | None:
    if _LIBC is None:
        return None

    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the scheduler died before prctl took effect
            os._exit(128 + signal.SIGTERM)

    return in_child


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is gone; macOS returns EPERM where only zombies are left in it


def _runs(pid: int, started: str) -> bool:
    return _start_time(pid) == started


def _start_time(pid: int) -> str | None:
    """Return a value that distinguishes this process from a later one with the same id; None if none runs."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


class Agent:
    """Starts the agent, and restarts it a few times when it ends, always at the same address.

    The port is chosen here, so that trainers can get the address before the agent has imported anything, and so
    that the address outlives a restart. Until it answers, and if it never does, a job's fallback decides.
    """

    def __init__(self, command: Sequence[str], directory: Path, restart_wall_seconds: float) -> None:
        """Choose the address; `keep_running` starts the agent."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._argv = [*command, "--port", str(port), "--url-file", str((directory / "agent.url").resolve())]
        self._directory = directory
        self._process: Process | None = None
        self._backoff = Backoff(first=restart_wall_seconds, longest=math.inf)

    def keep_running(self) -> None:
        """Start the agent if it does not run and another start is allowed."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            self._backoff.failed(time.monotonic())
            logger.warning("the agent ended with exit code %d; see %s", code, self._directory / AGENT_LOG)
        if self._backoff.failures > AGENT_RESTARTS or self._backoff.holds(time.monotonic()):
            return
        try:
            self._process = Process(
                self._argv, os.environ, self._directory / AGENT_LOG, self._directory / AGENT_PID_FILE
            )
        except OSError as error:
            self._backoff.failures = AGENT_RESTARTS + 1
            logger.warning("cannot start the agent: %s", error)

    def end(self, grace_wall_seconds: float) -> None:
        """Begin to end the agent."""
        if self._process is not None:
            self._process.terminate(grace_wall_seconds)

    def has_ended(self) -> bool:
        """Return whether no process of the agent is left."""
        return self._process is None or self._process.poll() is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
