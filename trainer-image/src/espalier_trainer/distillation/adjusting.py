"""A smaller network is put in order by a few batches: its batch norms, and what reads from layers that are gone."""

from __future__ import annotations

from typing import Final

from espalier_trainer.data.batches import EpochOrder
from espalier_trainer.data.source import Data
from espalier_trainer.distillation.filling import readers
from espalier_trainer.distillation.folding import fold, recalibrate
from espalier_trainer.training.network import Network

_BATCHES: Final = 8
"""Number of training batches to estimate statistics and fit neighbours."""


def adjust(smaller: Network, large: Network, data: Data, order: EpochOrder, *, folding: bool) -> None:
    """Adjust `smaller` in place; `large` is the network that it was made of. `folding`: fit the readers, too."""
    batches = [data.train.batch(order.chosen(cursor), None)[0] for cursor in range(min(_BATCHES, len(order)))]
    recalibrate(smaller.module, batches)
    if folding and large.architecture is not None and smaller.architecture is not None:
        fold(smaller.module, large.module, readers(large.architecture, smaller.architecture), batches)
        recalibrate(smaller.module, batches)
