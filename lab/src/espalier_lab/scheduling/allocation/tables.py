"""Look-up tables of the cluster in time slots, by type of job, servers and workers."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.source import AllocationSettings
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS, Floats
from espalier_lab.scheduling.learned.speeds import gains

OPTIONS: Final = len(WORKERS_AND_SERVERS)


class Tables:
    """Tables by type, servers and workers."""

    def __init__(self, source: AllocationSettings) -> None:
        self.demand = source.demand
        self.rates = np.where(np.isinf(source.slots), 0.0, 1 / source.slots)
        self.best = source.best_slots
        self.parts = self.rates * self.best[:, None, None]
        self.costs = (source.demand / source.node).max(-1)
        """(types, options): share of a node."""
        servers, workers = np.indices(source.slots.shape[1:])[..., None]
        taken = servers * source.demand[:, 1, None, None] + workers * source.demand[:, 0, None, None]
        shares = (taken / source.node).max(-1)
        """(types, servers + 1, workers + 1): the same."""
        found = gains(source.slots, WORKERS_AND_SERVERS)
        # For a job that does not train, any finite number of saved seconds works.
        saved, ahead = (np.nan_to_num(each, posinf=1e6, neginf=-1e6) for each in (found.saved, found.saved_ahead))
        single = np.stack([shares, source.slots], axis=-1)
        self._shape = source.slots.shape
        self._all = np.concatenate([single, found.gain, found.gain_ahead, saved, ahead], axis=-1)
        self._all = self._all.reshape(-1, self._all.shape[-1])

    def at(
        self, kinds: NDArray[np.int64], servers: NDArray[np.int64], workers: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
        """Return shares of a node, slots, and by option gains and seconds saved, at once and ahead (`Gains`).

        One look-up for all of them: in a single episode, a look-up costs more than the use of its result.
        """
        _, most_servers, most_workers = self._shape
        rows = self._all.take((kinds * most_servers + servers) * most_workers + workers, axis=0)
        gain, gain_ahead, saved, ahead = (
            rows[..., 2 + OPTIONS * place : 2 + OPTIONS * (place + 1)] for place in range(4)
        )
        return rows[..., 0], rows[..., 1], gain, gain_ahead, saved, ahead


@lru_cache(maxsize=8)
def tables_of(source: AllocationSettings) -> Tables:
    """Return the tables of a source, which are the same for each episode."""
    return Tables(source)
