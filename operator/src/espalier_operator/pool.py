"""GPUs from both sources: those that are free, and those that are lent and can be asked back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from espalier_operator.capacity import Capacity, Site, Supply
from espalier_operator.facts import JobFacts
from espalier_operator.reclaims import ReclaimQueue


class Pool:
    """Hands out, sets aside and asks back; a need of 0 GPUs is always met."""

    def __init__(self, capacity: Capacity, reclaims: ReclaimQueue) -> None:
        """Join the two."""
        self._capacity, self._reclaims = capacity, reclaims

    def take(self, site: Site, gpus: int) -> bool:
        """Hand out `gpus` of one node at once."""
        return gpus == 0 or self._capacity.take(site, gpus) is not None

    def take_gang(self, site: Site, gpus: int, workers: int) -> bool:
        """Hand out `gpus` for each of `workers` at once, or nothing."""
        return gpus == 0 or self._capacity.take_gang(site, gpus, workers)

    def has_gang(self, site: Site, gpus: int, workers: int) -> bool:
        """Return whether `take_gang` would hand out."""
        mark = self._capacity.mark()
        has = self.take_gang(site, gpus, workers)
        self._capacity.undo(mark)
        return has

    def obtain(self, sites: Sequence[Site], gpus: int) -> Supply:
        """Keep `gpus` of one node of the first possible site; where none are to come, ask for lent ones."""
        kept = (self._keep(site, gpus) for site in sites)
        covered = (self._reclaims.cover(self._capacity, site, gpus) for site in sites)
        return next(filter(None, chain(kept, covered)), Supply.NEVER)

    def await_gang(self, site: Site, gpus: int, workers: int) -> Supply:
        """Keep `gpus` for each of `workers`, asking for lent ones; or nothing at all where that is too few.

        The answer is that of the worker who is served last.
        """
        capacity_mark, reclaims_mark = self._capacity.mark(), self._reclaims.mark()
        supply = Supply.NOW
        for _ in range(workers):
            supply = min(supply, self.await_one(site, gpus))
            if supply is Supply.NEVER:
                self._capacity.undo(capacity_mark)
                self._reclaims.undo(reclaims_mark)
                break
        return supply

    def await_one(
        self,
        site: Site,
        gpus: int,
        may_take: Callable[[JobFacts, int], bool] = lambda holder, keeps: True,
        spared: Callable[[JobFacts], bool] = lambda holder: False,
    ) -> Supply:
        """Keep `gpus` of one node that are free or given back, or reclaim lent ones as `ReclaimQueue.cover` may."""
        return self._keep(site, gpus) or self._reclaims.cover(self._capacity, site, gpus, may_take, spared)

    def _keep(self, site: Site, gpus: int) -> Supply:
        """Keep `gpus` of one node that are free, or given back."""
        if self.take(site, gpus):
            return Supply.NOW
        return Supply.NEVER if self._capacity.set_aside(site, gpus) is None else Supply.LATER
