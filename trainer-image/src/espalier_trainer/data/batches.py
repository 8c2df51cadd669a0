"""The order of the examples: a permutation for each (seed, epoch), and a cursor that can be checkpointed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from espalier_trainer.data.source import Source


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The batches of one epoch; batch i is the same on every worker, before and after a restart.

    An incomplete last batch is left out (other examples each epoch): a batch norm over a handful of examples is
    noise. A split smaller than a batch is one batch.
    """

    indices: Tensor
    """The permutation, int64."""
    batch_size: int
    seed: int
    epoch: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return max(1, len(self.indices) // self.batch_size)

    @property
    def rows(self) -> int:
        """Number of examples in a batch."""
        return min(self.batch_size, len(self.indices))

    def chosen(self, cursor: int, rows: slice = slice(None), batches: int = 1) -> Tensor:
        """Return the examples of `batches` batches from `cursor` on, or of `rows` of them."""
        return self.indices[cursor * self.batch_size : (cursor + batches) * self.batch_size][rows]

    def batch(self, source: Source, cursor: int, rows: slice = slice(None), batches: int = 1) -> tuple[Tensor, Tensor]:
        """Return `batches` batches of `source` from `cursor` on, or `rows` of them, augmented with random numbers of
        batch `cursor` alone.
        """
        chance = np.random.default_rng((self.seed, self.epoch, cursor, 1))
        return source.batch(self.chosen(cursor, rows, batches), chance)


def epoch_order(examples: int, batch_size: int, seed: int, epoch: int, device: torch.device) -> EpochOrder:
    """Return the order of `examples` examples in `epoch`, its indices on `device`."""
    permutation = np.random.default_rng((seed, epoch)).permutation(examples)
    return EpochOrder(torch.from_numpy(permutation).to(device), batch_size, seed, epoch)
