"""Which gangs have found too few GPUs in a plan: nor do others like them, or larger ones."""

from __future__ import annotations

from collections import defaultdict

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.node_pools import Site
from espalier_operator.model.constraints import Amounts

Attempt = tuple[tuple[Site, ...], int, int, tuple[int, ...]]
"""Where a gang was to start, its workers' GPUs, its workers, and what it must not touch."""

_Place = tuple[tuple[tuple[int, ...], ...], int, tuple[int, ...]]
"""The groups of nodes of each site, the GPUs of a worker, and what it must not touch."""


class Vain:
    """The attempts that were in vain. A start takes GPUs from those after it, and a reclaim brings no more than was
    counted, so they stay so; except where jobs yield, or a reservation is given up (`hope`).
    """

    def __init__(self) -> None:
        """Nothing was."""
        self._reasons: dict[Attempt, Reason] = {}
        self._smallest: dict[_Place, list[tuple[Amounts, int]]] = defaultdict(list)
        """What each worker requested, and how many workers there were."""

    def reason(self, attempt: Attempt) -> Reason | None:
        """Return why this attempt, or one for an equal gang, was in vain; None: it was not made."""
        return self._reasons.get(attempt)

    def is_hopeless(self, attempt: Attempt) -> bool:
        """Return whether a gang that requests no more was in vain."""
        (site, *_), _, workers, _ = attempt
        requests = dict(site.requests)
        return any(
            workers >= fewest and all(requests.get(name, 0) >= amount for name, amount in least)
            for least, fewest in self._smallest.get(_place(attempt), ())
        )

    def add(self, attempt: Attempt, reason: Reason) -> None:
        """Take note that an attempt was in vain."""
        (site, *_), _, workers, _ = attempt
        self._reasons[attempt] = reason
        if not self.is_hopeless(attempt):
            self._smallest[_place(attempt)].append((site.requests, workers))

    def hope(self) -> None:
        """Take note that there may be more GPUs for others than were counted."""
        self._smallest.clear()


def _place(attempt: Attempt) -> _Place:
    sites, gpus, _, untouchable = attempt
    return tuple(site.groups for site in sites), gpus, untouchable
