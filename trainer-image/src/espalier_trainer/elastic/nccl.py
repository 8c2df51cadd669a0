"""Sums over the GPUs of all members, by NCCL.

NCCL waits without limit for a process that has died on the same machine, and PyTorch's watchdog then ends the process
that waits. Here a member looks whether a sum is done, and when its time is over it aborts NCCL and goes on without.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from espalier_trainer.elastic.broken import GroupBrokenError, Sending, broken
from espalier_trainer.elastic.rendezvous import LeaderAwayError, answered

_NEVER: Final = timedelta(days=365)
_LOOKS: Final = (1e-5, 1e-3)
"""Seconds between two looks: the first, the longest."""


class DeviceSums:
    """NCCL's communicator of one generation."""

    def __init__(self, store: Any, rank: int, world: int, device: torch.device, seconds: float) -> None:
        """Connect all members, which have all come; nobody waits longer than `seconds` for anything.

        Raises `GroupBrokenError` if NCCL does not connect them.
        """
        self._device, self._seconds = device, seconds
        self._unfinished = 0
        # The watchdog reads them when a group is made. 0: it ends no process, and its threads do not ask the store,
        # which is written in Python and may be gone.
        for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
            os.environ[f"TORCH_NCCL_{name}"] = "0"
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        with broken():
            self._group: Any = dist.ProcessGroupNCCL(store, rank, world, options)
        try:
            self._connect()
        except GroupBrokenError:
            self.close()
            raise

    def sending(self, tensor: Tensor) -> Sending:
        """Begin to sum `tensor` over all members, in place. Raises `GroupBrokenError`, as does what it returns."""
        with broken():
            work = self._group.allreduce([tensor])
        self._unfinished += 1
        return _Sum(work, self._seconds, self._finished)

    def close(self) -> None:
        """Abort what is not done, so that the device does not wait for it.

        Where everything is done nobody waits for NCCL, which takes half a second to leave.
        """
        group, self._group = self._group, None
        if group is None:
            return
        leave = threading.Thread(target=group.abort, name="nccl")
        leave.start()
        if self._unfinished:
            leave.join()

    def _finished(self) -> None:
        self._unfinished -= 1

    def _connect(self) -> None:
        """Take the first sum, which connects the members: in a thread, as that has no time limit."""
        tensor = torch.zeros(1, device=self._device)
        try:
            answered(lambda: self.sending(tensor).wait(), lambda: False, self._seconds)
        except LeaderAwayError as error:
            raise GroupBrokenError(f"NCCL has not connected the members within {self._seconds:g} s") from error


class _Sum(Sending):
    """A sum that the device computes."""

    def __init__(self, work: Any, seconds: float, finished: Callable[[], None]) -> None:
        super().__init__(work)
        self._limit, self._finished = seconds, finished

    def wait(self) -> None:
        """Wait until it is done, and let what the device computes next see it."""
        pause, longest = _LOOKS
        end = time.monotonic() + self._limit
        with broken():
            while not self._work.is_completed():
                if time.monotonic() > end:
                    raise GroupBrokenError(f"the GPUs' sum is not done after {self._limit:g} s: a member is gone")
                time.sleep(pause)
                pause = min(1.2 * pause, longest)
            self._work.wait()
        self._finished()
