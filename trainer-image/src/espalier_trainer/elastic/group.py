"""One generation's process group: the few collectives that elastic training needs, by gloo (CPU) or nccl (CUDA)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore

if TYPE_CHECKING:
    from espalier_trainer.elastic.buckets import Buckets

FORM_SECONDS = 5.0
"""A planned member may be dead already: the group forms without those that have not come by then."""
COLLECTIVE_SECONDS = 20.0
"""A peer that does not answer for this long (frozen, cut off) counts as gone; one that dies is noticed at once."""
PIECE_BYTES = 1 << 24
"""Large tensors are sent in pieces of this size, so that the timeout does not limit their size."""


class GroupBrokenError(Exception):
    """A member is gone, or cannot be reached: this generation is over."""


class Sending:
    """An exchange that has begun; nobody may touch its tensor until `wait` returns."""

    def __init__(self, work: Any, seconds: float | None = None) -> None:
        """`seconds` is how long to wait; None: as long as for any collective."""
        self._work, self._seconds = work, seconds

    def wait(self) -> None:
        """Wait until it is done. Raises `GroupBrokenError`."""
        with _broken():
            if self._seconds is None:
                self._work.wait()
            else:
                self._work.wait(timedelta(seconds=self._seconds))


class Group:
    """A formed group. Every method raises `GroupBrokenError` if a member is gone; the group is then unusable."""

    def __init__(
        self, store: Any, generation: int, rank: int, world: int, device: torch.device, address: str, port: int
    ) -> None:
        """Connect all members: `address` and `port` are those of the store, which determine the network interface."""
        self.rank, self.world, self.device = rank, world, device
        self.buckets: Buckets | None = None
        """The memory for exchanging gradients; it is kept from step to step."""
        self.exchanged: float | None = None
        """Seconds that the last exchange of gradients took from when this member was ready; None: not measured."""
        prefixed = PrefixStore(f"generation/{generation}", store)
        with _broken():
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timedelta(seconds=COLLECTIVE_SECONDS)
                self._group: Any = dist.ProcessGroupNCCL(prefixed, rank, world, options)
            else:
                gloo: Any = dist.ProcessGroupGloo
                given = gloo._Options()
                given._devices = [gloo.create_device(hostname=_own_address(address, port))]
                given._timeout = timedelta(seconds=FORM_SECONDS)
                self._group = gloo(prefixed, rank, world, given)
                # The first collective is part of forming: a member that died meanwhile is found here.
            self._group.barrier().wait()
            if device.type != "cuda":
                self._group.set_timeout(timedelta(seconds=COLLECTIVE_SECONDS))

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over all members, in place; all get the same bits."""
        self.sending(tensor).wait()

    def sending(self, tensor: Tensor) -> Sending:
        """Begin to sum `tensor` over all members, in place."""
        with _broken():
            return Sending(self._group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor` with that of the member `source`."""
        for piece in _pieces(tensor):
            self.broadcasting(piece, source).wait()

    def broadcasting(self, tensor: Tensor, source: int) -> Sending:
        """Begin to overwrite `tensor`, a piece at most, with that of the member `source`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        with _broken():
            return Sending(self._group.broadcast([tensor], options))

    def sending_to(self, tensor: Tensor, member: int) -> Sending:
        """Begin to send `tensor`, a piece at most, to one member, which receives one of its size."""
        with _broken():
            return Sending(self._group.send([tensor], member, 0), COLLECTIVE_SECONDS)

    def receiving_from(self, tensor: Tensor, member: int) -> Sending:
        """Begin to overwrite `tensor` with what the member sends."""
        with _broken():
            return Sending(self._group.recv([tensor], member, 0), COLLECTIVE_SECONDS)

    def barrier(self) -> None:
        """Wait until all members are here."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def close(self) -> None:
        """Close the connections; the other members notice it."""
        group, self._group = self._group, None
        self.buckets = None
        if group is not None and self.device.type == "cuda":
            group.abort()
        del group


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the parts, views of it, in which a contiguous tensor is sent."""
    return torch.split(tensor.view(-1), max(1, PIECE_BYTES // tensor.element_size()))


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, AttributeError) as error:  # AttributeError: closed already
        raise GroupBrokenError(str(error).splitlines()[0]) from error


def _own_address(address: str, port: int) -> str:
    """Return the address of the interface that leads to the store."""
    import socket

    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:  # UDP: connecting sends nothing
        probe.connect(place)
        return str(probe.getsockname()[0])
