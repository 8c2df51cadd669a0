"""Sums a small tensor over all members: each sends it to each other one.

gloo's ring needs 2 (members - 1) messages one after the other, each handed from thread to thread, and a small step
waits for each of them. Here all messages travel at the same time, and the thread that computes sends and receives them
itself. On two cores, two members sum 1,280 bytes in .6 to .9 ms instead of 1.4, four members in 2.0 instead of 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from espalier_trainer.elastic.broken import Sending

if TYPE_CHECKING:
    from espalier_trainer.elastic.group import Group

MESH_BYTES: Final = 1 << 22
"""What a member receives at most: of larger tensors a ring moves less."""
_TAG: Final = 1
"""States are sent by another one."""


class MeshSum(Sending):
    """A sum that has begun."""

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
