"""Divides the examples of a step among the members. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from espalier_api.job import ElasticBatch


@dataclass(frozen=True, slots=True)
class Share:
    """Rows `first` to `last` (not included) of batch `batch` of the epoch; may be empty."""

    batch: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.last - self.first


LEAST_ROWS = 2
"""A batch norm over one example has no variance."""


def shares(policy: ElasticBatch, world: int, cursor: int, batches: int, rows: int) -> tuple[Share, ...]:
    """Return the members' shares of the step that begins at batch `cursor` of an epoch of `batches` batches.

    `keepGlobal`: batch `cursor`, of `rows` examples, is cut into `world` parts whose sizes differ by one at most.
    `scaleLinear`: each member takes a batch, the k-th `cursor` + k; near the epoch's end some take none. Each example
    of the batches consumed is in exactly one share.
    """
    if policy is ElasticBatch.SCALE_LINEAR:
        taken = consumed(policy, world, cursor, batches)
        return tuple(Share(cursor + member, 0, rows if member < taken else 0) for member in range(world))
    parts = max(1, min(world, rows // LEAST_ROWS))
    cuts = [rows * part // parts for part in range(parts + 1)]
    idle = [Share(cursor, 0, 0)] * (world - parts)
    return (*(Share(cursor, *cut) for cut in pairwise(cuts)), *idle)


def consumed(policy: ElasticBatch, world: int, cursor: int, batches: int) -> int:
    """Return how many batches of the epoch the step takes; the learning rate is multiplied by it.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1: the linear scaling rule.
    """
    return min(world, batches - cursor) if policy is ElasticBatch.SCALE_LINEAR else 1
