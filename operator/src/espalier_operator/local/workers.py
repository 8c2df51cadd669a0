"""Workers of the jobs of a local run: their GPUs of this machine, and their processes."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from espalier_core.causes import cause_in
from espalier_core.types import environment as names
from espalier_core.types.reasons import Reason
from espalier_operator.clock import Backoff
from espalier_operator.job.state import End, WorkerStart
from espalier_operator.local.files import TRAINER_LOG, size, tail
from espalier_operator.local.process import Process
from espalier_operator.local.settings import GpuChange, LocalRunError
from espalier_operator.model import WorkerRole

CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
"""The environment variable that lists the CUDA devices visible to a process; empty: none."""
LEADER_PID_FILE: Final = "trainer.pid"
Starter = Callable[..., Process]
"""Starts a process: `Process`, or a replacement in tests."""
PID_FILES: Final = "worker-*.pid"
_MAX_FAILURES: Final = 5
_CANNOT_START: Final = 127
"""The exit code of a shell whose command cannot be started."""


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """One worker of one job."""

    job: str
    role: WorkerRole
    index: int


class Gpus:
    """The GPUs present and their holders; a holder loses a device when it departs."""

    def __init__(self, count: int, devices: Sequence[str] = ()) -> None:
        """Start with `count` GPUs: the first of `devices`, or simulated ones named by number."""
        self._devices = list(devices)
        self._present: list[str] = []
        self._held: dict[Holder, tuple[str, ...]] = {}
        self._arrive(count)

    @property
    def total(self) -> int:
        """Number of GPUs present."""
        return len(self._present)

    @property
    def free(self) -> list[str]:
        """The GPUs without a holder."""
        held = {device for devices in self._held.values() for device in devices}
        return [device for device in self._present if device not in held]

    def change(self, count: int, precious: Sequence[str] = ()) -> list[Holder]:
        """Add `count` GPUs, or remove -`count`; return the workers that lose theirs.

        Free GPUs go first, then lent ones, then base ones; among jobs the last in `precious` loses first.
        """
        if count < 0:
            return self._depart(-count, precious)
        self._arrive(count)
        return []

    def _arrive(self, count: int) -> None:
        names = self._devices or [str(number) for number in range(len(self._present) + count)]
        absent = [name for name in names if name not in self._present]
        if len(absent) < count:
            raise LocalRunError(f"{count} more GPUs must arrive, and only {len(absent)} devices are left")
        self._present += absent[:count]

    def _depart(self, count: int, precious: Sequence[str]) -> list[Holder]:
        order = {job: place for place, job in enumerate(precious)}
        losers = []
        for _ in range(min(count, self.total)):
            free = self.free
            if free:
                self._present.remove(free[-1])
                continue
            loser = max(
                (holder for holder, devices in self._held.items() if devices),
                key=lambda holder: (
                    holder.role is WorkerRole.EXTRA,
                    order.get(holder.job, len(order)),
                    holder.index,
                ),
            )
            self._present.remove(self._held.pop(loser)[-1])
            losers.append(loser)
        return losers

    def hold(self, holder: Holder, count: int) -> bool:
        """Give `count` free GPUs to `holder` unless it has them already; False where too few are free."""
        if holder in self._held:
            return True
        free = self.free
        if len(free) < count:
            return False
        self._held[holder] = tuple(free[:count])
        return True

    def release(self, holder: Holder) -> None:
        """Take its GPUs from `holder`, if it has any."""
        self._held.pop(holder, None)

    def of(self, job: str, role: WorkerRole) -> dict[int, tuple[str, ...]]:
        """Return the devices of the job's workers of this role by their index, in order."""
        return {
            holder.index: self._held[holder]
            for holder in sorted(self._held)
            if holder.job == job and holder.role is role
        }

    def held(self, job: str) -> int:
        """Return the number of GPUs that the job's workers hold."""
        return sum(len(devices) for holder, devices in self._held.items() if holder.job == job)

    def renumber_extra(self, job: str) -> None:
        """Close gaps in the indices of the job's extra workers; their processes do not depend on the index."""
        for new, (old, devices) in enumerate(self.of(job, WorkerRole.EXTRA).items()):
            del self._held[Holder(job, WorkerRole.EXTRA, old)]
            self._held[Holder(job, WorkerRole.EXTRA, new)] = devices


_DEVICE_UUIDS: Final = ("GPU-", "MIG-")


def cuda_devices() -> tuple[str, ...]:
    """Return the ids of the CUDA devices that this process may use; empty if there are none.

    Asks nvidia-smi (no torch, no driver library loaded); `CUDA_VISIBLE_DEVICES`, if set, overrides it.
    """
    visible = os.environ.get(CUDA_DEVICES)
    smi = shutil.which("nvidia-smi")
    if smi is None or visible == "":
        return ()
    try:
        answer = subprocess.run(
            [smi, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    present = tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())
    if visible is None:
        return present
    # CUDA ignores all names after an invalid one, such as -1 or an index beyond the last device.
    names = (name.strip() for name in visible.split(","))
    return tuple(itertools.takewhile(lambda name: name in present or name.startswith(_DEVICE_UUIDS), names))


class Timeline:
    """A clock that the run advances, and the changes on it."""

    def __init__(self, changes: Iterable[GpuChange], seconds: float = 0.0, done: int = 0) -> None:
        """Start at `seconds` with the first `done` changes already made."""
        self._changes = sorted(changes, key=lambda change: change.at_seconds)
        self.seconds = seconds
        self.done = done

    def advance(self, seconds: float) -> list[GpuChange]:
        """Advance the clock and return the changes that are due, in order."""
        self.seconds += seconds
        due = []
        while self.done < len(self._changes) and self._changes[self.done].at_seconds <= self.seconds:
            due.append(self._changes[self.done])
            self.done += 1
        return due

    @property
    def made(self) -> list[GpuChange]:
        """The changes made, in order."""
        return self._changes[: self.done]

    def departing(self) -> tuple[int, float | None]:
        """Return the number of GPUs whose departure is announced, and the seconds until the first departs."""
        announced = [
            change
            for change in self._changes[self.done :]
            if change.change < 0 and change.at_seconds - change.notice_seconds <= self.seconds
        ]
        if not announced:
            return 0, None
        return -sum(change.change for change in announced), announced[0].at_seconds - self.seconds

    @property
    def next_in(self) -> float:
        """Seconds until the next arrival, departure or announcement of GPUs; infinite for never."""
        moments = (
            moment
            for change in self._changes[self.done :]
            for moment in (change.at_seconds, change.at_seconds - change.notice_seconds)
        )
        return min((moment - self.seconds for moment in moments if moment > self.seconds), default=math.inf)

    @property
    def has_arrivals_ahead(self) -> bool:
        """Whether more GPUs will appear."""
        return any(change.change > 0 for change in self._changes[self.done :])


class LeaderProcess:
    """Starts leaders, one after the other, and records their ends."""

    def __init__(self, directory: Path, start: Starter = Process) -> None:
        """Nothing runs yet; log and pid file go to `directory`."""
        self._directory, self._start = directory, start
        self.process: Process | None = None
        self.incarnation: WorkerStart | None = None
        """The leader started last."""
        self._attempt = 0
        """Attempt of that leader."""
        self.exit_code: int | None = None
        self._log_began = 0
        """Bytes of the log that earlier leaders have written."""

    @property
    def id(self) -> str:
        """Id of the leader started last; '' where there is none."""
        return "" if self.incarnation is None else self.incarnation.id

    @property
    def is_lost(self) -> bool:
        """Whether the leader's GPUs are gone."""
        return self.incarnation is not None and self.incarnation.lost is not None

    def of(self, attempt: int) -> WorkerStart | None:
        """Return the leader of this attempt; None if it was not started."""
        return self.incarnation if attempt == self._attempt else None

    def start(self, command: Sequence[str], variables: Mapping[str, str], attempt: int, now: float) -> None:
        """Start a leader with these additional environment variables. Raises `OSError` where that is not possible."""
        log = self._directory / TRAINER_LOG
        self.exit_code, self._log_began = None, size(log)
        self.process = self._start(command, {**os.environ, **variables}, log, self._directory / LEADER_PID_FILE)
        self._attempt = attempt
        self.incarnation = WorkerStart(id=uuid.uuid4().hex, running=True, started_at=now)

    def poll(self) -> int | None:
        """Return the exit code of a process whose end is not recorded yet."""
        return None if self.process is None else self.process.poll()

    def ended(self, code: int, now: float) -> None:
        """Record the leader's end, unless it was killed as its GPUs are gone, which `lost` records."""
        if self.incarnation is None:
            return
        self.process, self.exit_code = None, code
        self.incarnation = replace(self.incarnation, running=False)
        if not (self.is_lost and code == -signal.SIGKILL):
            cause = "" if code == 0 else cause_in(tail(self._directory / TRAINER_LOG, self._log_began))
            end = End(code=code, at=now, external=False, message=cause)
            self.incarnation = replace(self.incarnation, end=end)

    def lose(self, reason: Reason) -> None:
        """Kill the leader, whose GPUs are gone."""
        if self.process is not None and self.incarnation is not None:
            self.incarnation = replace(self.incarnation, lost=reason)
            self.process.kill()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The specification of a worker process."""

    role: WorkerRole
    index: int
    devices: tuple[str, ...]
    real: bool = False
    """Whether the devices are CUDA's."""
    attempt: int = 0
    """Number of the attempt, for a base worker."""

    @property
    def key(self) -> Hashable:
        """Identity of the worker: its GPUs. Its index changes when an earlier worker goes."""
        return self.devices or (self.role, self.index)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with the worker's role, index and GPUs."""
        identity = {names.WORKER_ROLE: str(self.role), names.WORKER_INDEX: str(self.index)}
        return identity | ({CUDA_DEVICES: ",".join(self.devices)} if self.real else {})


class LocalWorkers:
    """Keeps a process running for each specified worker."""

    def __init__(
        self,
        directory: Path,
        warn: Callable[[str, str], None],
        stop_wall_seconds: float,
        start: Callable[..., Process] = Process,
    ) -> None:
        """Take the `directory` of logs and pid files; `warn(reason, message)` is called if a process ends by itself.

        `stop_wall_seconds` is the time between SIGTERM and SIGKILL.
        """
        self._directory, self._warn, self._stop_wall_seconds = directory, warn, stop_wall_seconds
        self._new = start
        self._running: dict[Hashable, tuple[WorkerSpec, Process]] = {}
        self._ending: list[Process] = []
        self._backoff: defaultdict[Hashable, Backoff] = defaultdict(Backoff)
        self._base: dict[int, tuple[int, WorkerStart]] = {}
        """Last started attempt of each base worker, and its outcome, by index."""

    @property
    def has_ended(self) -> bool:
        """Whether none of its processes runs."""
        return not self._running and not self._ending

    def incarnation(self, index: int, attempt: int) -> WorkerStart | None:
        """Return the outcome of this attempt of base worker `index`; None if it has not been started."""
        known = self._base.get(index)
        return known[1] if known is not None and known[0] == attempt else None

    def look(
        self,
        wanted: Sequence[WorkerSpec],
        command: Sequence[str],
        variables: Mapping[str, str],
        now: float,
        may_start_base: bool,
    ) -> None:
        """End processes of unwanted workers, record ends, and start missing processes.

        An extra worker is restarted here, after a pause. The job's rules judge the end of a base worker and decide when
        base workers `may_start_base`: each attempt is started once.
        """
        self._ending = [process for process in self._ending if process.poll() is None]
        specs = {spec.key: spec for spec in wanted}
        for key, (spec, process) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[key]
                self._ended(spec, code, f"ended with exit code {code}", now)
            elif key not in specs:
                process.terminate(self._stop_wall_seconds)
                self._ending.append(self._running.pop(key)[1])
                if spec.role is WorkerRole.BASE:
                    self._base.pop(spec.index, None)
        for key, spec in specs.items():
            if spec.role is WorkerRole.BASE:
                due = may_start_base and self.incarnation(spec.index, spec.attempt) is None
            else:
                backoff = self._backoff[key]
                due = backoff.failures <= _MAX_FAILURES and not backoff.holds(time.monotonic())
            if key not in self._running and due:
                self._start(spec, command, variables, now)

    def end(self, now: float) -> None:
        """End all processes."""
        self.look((), (), {}, now, may_start_base=False)

    def _start(self, spec: WorkerSpec, command: Sequence[str], variables: Mapping[str, str], now: float) -> None:
        if spec.role is WorkerRole.BASE:
            self._base[spec.index] = spec.attempt, WorkerStart(id=uuid.uuid4().hex, running=True, started_at=now)
        name = f"worker-{spec.role}-{spec.index}"
        try:
            process = self._new(
                command,
                {**os.environ, **variables, **spec.variables},
                self._directory / f"{name}.log",
                self._directory / f"{name}-{time.monotonic_ns()}.pid",
            )
        except OSError as error:
            self._ended(spec, _CANNOT_START, f"cannot be started: {error}", now)
        else:
            self._running[spec.key] = (spec, process)

    def _ended(self, spec: WorkerSpec, code: int, message: str, now: float) -> None:
        if spec.role is WorkerRole.BASE:
            attempt, incarnation = self._base[spec.index]
            end = End(code=code, at=now, external=False)
            self._base[spec.index] = attempt, replace(incarnation, running=False, end=end)
            return
        backoff = self._backoff[spec.key]
        pause = backoff.failed(time.monotonic())
        again = f"started again in {pause:g} s"
        if backoff.failures > _MAX_FAILURES:
            again = f"it has failed {backoff.failures} times and is not started again"
        self._warn("WorkerFailed", f"{spec.role} worker {spec.index} {message}; {again}")
