"""One generation's process group: the few collectives that elastic training needs, and their failures.

gloo carries everything except sums on GPUs, which NCCL computes: commands and states are in main memory, and gloo
notices at once that a process has died, which NCCL does not. NCCL waits without limit for a process that has died on
the same machine, and PyTorch's watchdog then ends the waiting process. Here a member polls whether a sum is done, and
after a time limit aborts NCCL and goes on without.

Small tensors are summed by a mesh: each member sends its own to each other one. gloo's ring needs 2 (members - 1)
messages one after the other, each handed from thread to thread, and a small step waits for each of them. In the mesh
all messages travel at the same time, and the computing thread sends and receives them itself. On two cores, two
members sum 1,280 bytes in 0.6 to 0.9 ms instead of 1.4, four members in 2.0 instead of 5.4.

An exchange that ends with an error shows that a generation is over (`broken`).
"""

from __future__ import annotations

import hmac
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore

from espalier_core.causes import in_one_line
from espalier_trainer.elastic.rendezvous import LeaderAwayError, answered

if TYPE_CHECKING:
    from espalier_trainer.elastic.buckets import Buckets

logger = logging.getLogger(__name__)


class GroupBrokenError(Exception):
    """A member is gone, or cannot be reached: this generation is over."""


class Sending:
    """An exchange that has begun; its tensor must not be used until `wait` returns."""

    def __init__(self, work: Any, seconds: float | None = None) -> None:
        """Wait `seconds` at most; None for the time limit of collectives."""
        self._work, self._seconds = work, seconds

    def wait(self) -> None:
        """Wait until the exchange is done. Raises `GroupBrokenError`."""
        with broken():
            if self._seconds is None:
                self._work.wait()
            else:
                self._work.wait(timedelta(seconds=self._seconds))


@contextmanager
def broken() -> Iterator[None]:
    """Turn a process group's errors in the block into `GroupBrokenError`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, AttributeError) as error:  # AttributeError: closed already
        raise GroupBrokenError(in_one_line(str(error))) from error


MESH_BYTES: Final = 1 << 22
"""Maximum number of bytes that a member receives in a mesh: for larger tensors a ring moves fewer."""
_TAG: Final = 1
"""Tag of a mesh's messages; states are sent with another one."""


class MeshSum(Sending):
    """A sum over a mesh that has begun."""

    def __init__(self, group: Group, tensor: Tensor) -> None:
        """Begin to send `tensor` to all others, and to receive theirs. Raises `GroupBrokenError`."""
        self._rank, self._tensor = group.rank, tensor
        others = [each for each in range(group.world) if each != group.rank]
        self._received = {each: torch.empty_like(tensor) for each in others}
        arriving = [group.receiving_from(self._received[each], each, _TAG) for each in others]
        self._messages = arriving + [group.sending_to(tensor, each, _TAG) for each in others]

    def wait(self) -> None:
        """Wait for all others. Raises `GroupBrokenError`.

        The tensors are added in the order of the ranks, so that all members get the same bits.
        """
        for message in self._messages:
            message.wait()
        parts = [self._received.get(each, self._tensor) for each in range(len(self._received) + 1)]
        for part in parts[1:]:
            parts[0].add_(part)
        if self._rank:
            self._tensor.copy_(parts[0])


_NEVER: Final = timedelta(days=365)
_LOOKS: Final = (1e-5, 1e-3)
"""Seconds between two polls: the first interval, the longest."""


class DeviceSums:
    """NCCL's communicator of one generation."""

    def __init__(self, store: Any, rank: int, world: int, device: torch.device, seconds: float) -> None:
        """Connect all members, which have all arrived; every wait is limited to `seconds`.

        Raises `GroupBrokenError` if NCCL does not connect them.
        """
        self._device, self._seconds = device, seconds
        self._unfinished = 0
        # The watchdog reads these when a group is made. 0: it ends no process, and its threads do not query the store,
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
        """Begin to sum `tensor` over all members, in place. Raises `GroupBrokenError`, as does the result's `wait`."""
        with broken():
            work = self._group.allreduce([tensor])
        self._unfinished += 1
        return _DeviceSum(work, self._seconds, self._finished)

    def close(self) -> None:
        """Abort unfinished sums, so that the device does not wait for them.

        If none is unfinished, NCCL leaves in the background, which takes half a second.
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
        """Take the first sum, which connects the members: in a thread, as it has no time limit of its own."""
        tensor = torch.zeros(1, device=self._device)
        try:
            answered(lambda: self.sending(tensor).wait(), lambda: False, self._seconds)
        except LeaderAwayError as error:
            raise GroupBrokenError(f"NCCL has not connected the members within {self._seconds:g} s") from error


class _DeviceSum(Sending):
    """A sum computed by the device."""

    def __init__(self, work: Any, seconds: float, finished: Callable[[], None]) -> None:
        super().__init__(work)
        self._limit, self._finished = seconds, finished

    def wait(self) -> None:
        """Wait until the sum is done, and order the device's next operations after it."""
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


FORM_SECONDS = 5.0
"""Seconds to form a group: members that have not come by then may be dead, and it forms without them."""
COLLECTIVE_SECONDS = 20.0
"""Seconds without an answer after which a peer counts as gone (frozen, cut off); a dead one is noticed at once."""
PIECE_BYTES = 1 << 24
"""Size in bytes of the pieces of large tensors, so that the timeout does not limit their size."""
_TAG_BYTES: Final = 32
_SIZE: Final = struct.Struct(">Q")


class Group:
    """A formed group. Every method raises `GroupBrokenError` if a member is gone; the group is then unusable."""

    def __init__(
        self,
        store: Any,
        generation: int,
        rank: int,
        world: int,
        device: torch.device,
        address: str,
        port: int,
        key: bytes,
    ) -> None:
        """Connect all members; `address` and `port` of the store determine the network interface.

        `key` authenticates the messages of `broadcasting_document`; gloo and NCCL themselves do not authenticate peers.
        """
        self.rank, self.world, self.device = rank, world, device
        self._key, self._documents = key, 0
        self._store = store  # torch keeps no reference to the Python store
        self.buckets: Buckets | None = None
        """Buffers for exchanging gradients, kept from step to step."""
        self.exchanged: float | None = None
        """Seconds from this member being ready to the end of the last exchange of gradients; None if not measured."""
        prefixed = PrefixStore(f"generation/{generation}", store)
        self._device_sums: DeviceSums | None = None
        with broken():
            gloo: Any = dist.ProcessGroupGloo
            given = gloo._Options()
            given._devices = [gloo.create_device(hostname=_own_address(address, port))]
            given._timeout = timedelta(seconds=FORM_SECONDS)
            self._group: Any = gloo(prefixed, rank, world, given)
            # The first collective is part of forming: it detects a member that died meanwhile.
            self._group.barrier().wait()
            self._group.set_timeout(timedelta(seconds=COLLECTIVE_SECONDS))
        if device.type == "cuda":
            self._connect_devices(PrefixStore("nccl", prefixed))

    def _connect_devices(self, store: Any) -> None:
        """Let NCCL sum tensors on GPUs if it connects all members; otherwise gloo does, through main memory.

        NCCL refuses members that share a GPU (before 2.30), as in clusters with time-shared GPUs.
        """
        why = "another worker has the reason in its log"
        try:
            self._device_sums = DeviceSums(store, self.rank, self.world, self.device, COLLECTIVE_SECONDS)
        except GroupBrokenError as error:
            why = str(error)
        refused = torch.tensor([float(self._device_sums is None)])
        self.all_reduce(refused)
        if refused.item():
            self._leave_devices()
            logger.warning(
                "NCCL does not connect the workers, so gradients are summed through main memory, which is slower: %s",
                why,
            )

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over all members, in place; all get the same bits."""
        self.sending(tensor).wait()

    def sending(self, tensor: Tensor) -> Sending:
        """Begin to sum `tensor` over all members, in place; one on a GPU is summed there."""
        if self._device_sums is not None and tensor.is_cuda:
            return self._device_sums.sending(tensor)
        if not tensor.is_cuda and tensor.nbytes * (self.world - 1) <= MESH_BYTES:
            return MeshSum(self, tensor)
        with broken():
            return Sending(self._group.allreduce([tensor]))

    def sent(self) -> None:
        """Synchronise before waiting: all members call it once they have begun their sums on GPUs.

        It detects a member that died before, for which the others would otherwise wait until the timeout.
        """
        if self._device_sums is not None:
            self.barrier()

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor`, in main memory, with that of the member `source`."""
        for piece in _pieces(tensor):
            self.broadcasting(piece, source).wait()

    def broadcasting(self, tensor: Tensor, source: int) -> Sending:
        """Begin to overwrite `tensor`, a piece at most, with that of the member `source`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        with broken():
            return Sending(self._group.broadcast([tensor], options))

    def broadcasting_document(self, content: bytes, source: int = 0) -> Sending:
        """Begin to send the others a few bytes, which they receive by `receive_document`."""
        return self.broadcasting(_tensor(content + self._tag(content, source)), source)

    def receive_document(self, size: int, source: int = 0) -> bytes:
        """Wait for a document of `size` bytes. Raises `GroupBrokenError` where it is not the source's next document."""
        received = torch.empty(size + _TAG_BYTES, dtype=torch.uint8)
        self.broadcast(received, source)
        found = received.numpy().tobytes()
        content = found[:size]
        if not hmac.compare_digest(found[size:], self._tag(content, source)):
            raise GroupBrokenError(f"a document is not that of member {source}")
        return content

    def broadcast_document(self, content: bytes | None, source: int = 0) -> bytes:
        """Return the document, of any size, that the member `source` passes as `content` and the others as None."""
        if content is not None:
            self.broadcasting_document(_SIZE.pack(len(content)), source).wait()
            tagged = _tensor(content + self._tag(content, source))
            self.broadcast(tagged, source)
            return content
        (size,) = _SIZE.unpack(self.receive_document(_SIZE.size, source))
        return self.receive_document(size, source)

    def _tag(self, content: bytes, source: int) -> bytes:
        """Return the tag that proves the origin of the group's next document."""
        self._documents += 1
        return hmac.digest(self._key, struct.pack(">QI", self._documents, source) + content, "sha256")

    def sending_to(self, tensor: Tensor, member: int, tag: int = 0) -> Sending:
        """Begin to send `tensor`, one piece at most, to a member, which receives one of its size with this `tag`."""
        with broken():
            return Sending(self._group.send([tensor], member, tag), COLLECTIVE_SECONDS)

    def receiving_from(self, tensor: Tensor, member: int, tag: int = 0) -> Sending:
        """Begin to overwrite `tensor` with the tensor that the member sends with this `tag`."""
        with broken():
            return Sending(self._group.recv([tensor], member, tag), COLLECTIVE_SECONDS)

    def barrier(self) -> None:
        """Wait until all members have arrived here."""
        self.all_reduce(torch.zeros(1))

    def close(self) -> None:
        """Close the connections, which the other members notice."""
        self._group = self.buckets = None
        self._leave_devices()

    def _leave_devices(self) -> None:
        sums, self._device_sums = self._device_sums, None
        if sums is not None:
            sums.close()


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the pieces, as views, in which a contiguous tensor is sent."""
    return torch.split(tensor.view(-1), max(1, PIECE_BYTES // tensor.element_size()))


def _own_address(address: str, port: int) -> str:
    """Return the own address on the interface that leads to the store."""
    import socket

    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:  # UDP: connecting sends nothing
        probe.connect(place)
        return str(probe.getsockname()[0])
