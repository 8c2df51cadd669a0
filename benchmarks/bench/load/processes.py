"""Processes that a benchmark starts and ends, each by its own id: on which cores, and what Linux counts of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.command import BenchError

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_END_SECONDS: Final = 10.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class ProcessError(BenchError):
    """A process of the benchmark ended too early; the message says what it last wrote."""


class Process:
    """One process, its output in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        cores: frozenset[int] = frozenset(),
    ) -> None:
        """Start it in a new session (a Ctrl-C reaches only the benchmark); it ends when this process dies.

        It runs on `cores` only; without any, on those of this process.
        """
        self.name, self.log = name, log
        parent = os.getpid()

        def prepare() -> None:
            end_with_parent(signal.SIGTERM, parent)
            move(0, cores)

        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=prepare,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `ProcessError` where it has ended."""
        if self._process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-12:]
            output = "\n".join(lines)
            raise ProcessError(f"{self.name} ended with exit code {self._process.returncode}; it wrote last:\n{output}")

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self, field: str) -> float:
        """Return a figure of its memory: `VmRSS` (now) or `VmHWM` (the most there was)."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) / 1024
        raise ProcessError(f"/proc says nothing of {field} of {self.name}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to the processes that it has started."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it: SIGTERM, and SIGKILL for one that does not."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """Let this process get a signal when the one that started it, `parent`, ends; end it where that is gone already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def running(
    name: str, command: Sequence[str], directory: Path, cores: frozenset[int] = frozenset()
) -> Iterator[Process]:
    """Run a process, on `cores` only if there are any; its log is `directory/name.log`."""
    process = Process(name, command, directory / f"{name}.log", cores=cores)
    try:
        yield process
    finally:
        process.end()


def kwok_command(kwok: Path, kubeconfig: Path) -> list[str]:
    """Return how kwok is started.

    Without node leases: kubelets write them for the node controller, the operator never sees them, and with thousands
    of nodes on one machine they would take the CPU from what is measured.
    """
    stages = Path(__file__).with_name("kwok.yaml")
    options = ["--manage-all-nodes=false", "--manage-nodes-with-label-selector=type=kwok"]
    options += ["--node-lease-duration-seconds=0", "-v=WARN"]
    return [str(kwok), f"--config={stages}", f"--kubeconfig={kubeconfig}", *options]


def binder_command(kubeconfig: Path) -> list[str]:
    """Return how the binder is started."""
    return [sys.executable, str(Path(__file__).with_name("binder.py")), str(kubeconfig)]


def operator_command(kubeconfig: Path, health: int, snapshot: int) -> list[str]:
    """Return how the operator is started: as its image does, with its health and snapshot on these ports."""
    options = [f"--kubeconfig={kubeconfig}", f"--http=127.0.0.1:{health}", f"--snapshot-http=127.0.0.1:{snapshot}"]
    return [sys.executable, "-m", "espalier_operator", *options, "--trainer-image=trainer:load"]


def move(pid: int, cores: frozenset[int]) -> None:
    """Let a process (0: this one) and what it starts from now on run on `cores` only; nothing happens without any."""
    if cores:
        os.sched_setaffinity(pid, cores)


@contextmanager
def also_on(cores: frozenset[int]) -> Iterator[None]:
    """Let what is started meanwhile run on `cores` too, in addition to those of this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before | cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def shared_out() -> tuple[frozenset[int], frozenset[int]]:
    """Return the operator's core, and the others of this process; `ValueError` where there is only one."""
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        raise ValueError("--apart needs two cores: one for the operator, one for all else")
    return frozenset((last,)), frozenset(others)
