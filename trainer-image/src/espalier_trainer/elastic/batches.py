"""Divides the examples of a step among the members. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from espalier_core.types.job import ElasticBatch


@dataclass(frozen=True, slots=True)
class Portion:
    """What all members take in a step. The leader decides on it."""

    batches: int = 1
    """Batches of the epoch, from its cursor on."""
    passes: int = 1
    """Parts in which each member computes its share, one after the other; gradients add up."""
    rate: float = 1.0
    """Factor of the learning rate of a step of one batch."""
    full: bool = True
    """Whether it is not less than usual because the epoch ends."""


ONE = Portion()


@dataclass(frozen=True, slots=True)
class Share:
    """Rows `first` to `last` (not included) from the beginning of batch `batch` of the epoch on; may be empty."""

    batch: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.last - self.first


LEAST_ROWS = 2
"""A batch norm over one example has no variance."""


def shares(policy: ElasticBatch, world: int, cursor: int, rows: int, batches: int = 1) -> tuple[Share, ...]:
    """Return the members' shares of the step that takes `batches` batches of `rows` examples from batch `cursor` on.

    `keepGlobal`: they are cut into `world` parts whose sizes differ by one at most. `scaleLinear`: each member takes
    one, the k-th `cursor` + k; near the epoch's end some take none. Each example is in exactly one share.
    """
    if policy is ElasticBatch.SCALE_LINEAR:
        return tuple(Share(cursor + member, 0, rows if member < batches else 0) for member in range(world))
    rows *= batches
    parts = max(1, min(world, rows // LEAST_ROWS))
    cuts = [rows * part // parts for part in range(parts + 1)]
    idle = [Share(cursor, 0, 0)] * (world - parts)
    return (*(Share(cursor, *cut) for cut in pairwise(cuts)), *idle)


def fixed_portion(policy: ElasticBatch, world: int, cursor: int, batches: int) -> Portion:
    """Return what a step at batch `cursor` of `batches` takes if the author of the job decides on the batch size.

    `scaleLinear`: a batch for each member, with the learning rate multiplied by their number (the linear scaling rule:
    Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1).
    """
    if policy is not ElasticBatch.SCALE_LINEAR:
        return ONE
    taken = min(world, batches - cursor)
    return Portion(batches=taken, rate=float(taken), full=taken == world)
