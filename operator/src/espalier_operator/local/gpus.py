"""Which GPU is whose on this machine, and when simulated ones come and go."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from espalier_operator.local.settings import GpuChange, LocalRunError
from espalier_operator.model import WorkerRole

CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
"""The environment variable that lists the CUDA devices that a process sees; empty: none."""


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
        """GPUs present."""
        return len(self._present)

    @property
    def free(self) -> list[str]:
        """The GPUs that nobody holds."""
        held = {device for devices in self._held.values() for device in devices}
        return [device for device in self._present if device not in held]

    def change(self, count: int, precious: Sequence[str] = ()) -> list[Holder]:
        """Add `count` GPUs, or remove that many where it is negative; return the workers that lose theirs.

        Free ones go first, then lent ones, then base ones; among jobs the last in `precious` loses first.
        """
        if count < 0:
            return self._depart(-count, precious)
        self._arrive(count)
        return []

    def _arrive(self, count: int) -> None:
        names = self._devices or [str(number) for number in range(len(self._present) + count)]
        absent = [name for name in names if name not in self._present]
        if len(absent) < count:
            raise LocalRunError(f"{count} more GPUs are to come and {len(absent)} devices are left")
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
        """Return how many GPUs the job's workers hold."""
        return sum(len(devices) for holder, devices in self._held.items() if holder.job == job)

    def renumber_extra(self, job: str) -> None:
        """Close gaps in the indices of the job's extra workers: in processes nothing depends on an index."""
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
    # CUDA ignores what follows a name that is none: -1, or an index beyond the last device.
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
        """Return the GPUs whose departure is announced, and the seconds until the first of them goes."""
        announced = [
            change
            for change in self._changes[self.done :]
            if change.change < 0 and change.at_seconds - change.notice_seconds <= self.seconds
        ]
        if not announced:
            return 0, None
        return -sum(change.change for change in announced), announced[0].at_seconds - self.seconds

    @property
    def has_arrivals_ahead(self) -> bool:
        """Whether more GPUs will appear."""
        return any(change.change > 0 for change in self._changes[self.done :])
