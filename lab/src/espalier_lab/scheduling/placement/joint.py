"""Joint placement of several gangs that start at the same time, which could obstruct each other if placed in turn.

Each gang is first placed where it costs the fewest seconds beside those before it. Then gangs are removed and placed
again, one at a time, and gangs of the same size exchange places, as long as that lowers the sum (local search). So the
sum is never larger than for placement in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.placement.candidates import Nodes, candidates
from espalier_lab.scheduling.placement.costs import Gang, PlacementCosts
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Performance

MOST_TRIED: Final = 300
"""Maximum number of cost evaluations of gangs; a larger burst is only placed one after the other."""
_WORTH: Final = 1e-9
"""Minimum relative saving of a change; less is rounding."""


def one_by_one(costs: PlacementCosts, gangs: Sequence[Gang]) -> list[Nodes | None]:
    """Place each gang where it costs the fewest seconds beside those before it; None: there was no room."""
    return [_place(costs, gang) for gang in gangs]


def together(
    performance: Performance,
    occupancy: Occupancy,
    steps_left: Mapping[str, float],
    gangs: Sequence[Gang],
    opening: float = 0.0,
) -> list[Nodes | None]:
    """Return the cheapest joint placement that was found, in seconds; None: there was no room.

    `steps_left`: the remaining steps of each job on the nodes, whose names differ from the gangs'. `opening` is the
    cost of opening nodes (see `PlacementCosts`).
    """
    costs = PlacementCosts(performance, occupancy, steps_left, opening)
    found = one_by_one(costs, gangs)
    search = _JointSearch(costs, {gang: nodes for gang, nodes in zip(gangs, found, strict=True) if nodes is not None})
    search.run()
    return [search.places.get(gang) for gang in gangs]


class _JointSearch:
    """Changes placements as long as the sum of costs falls."""

    def __init__(self, costs: PlacementCosts, places: dict[Gang, Nodes]) -> None:
        self.places = places
        self._costs, self._tried = costs, len(places)
        sizes = {(gang.gpus, gang.unit) for gang in places}
        self._alike = [[gang for gang in places if (gang.gpus, gang.unit) == size] for size in sorted(sizes)]

    def run(self) -> None:
        """Move and exchange until nothing improves, or the limit is reached."""
        if len(self.places) > 1:
            self._move_all()
            while self._exchange_all():
                self._move_all()

    def _move_all(self) -> None:
        """Place gangs again, one after the other, until no move helps."""
        gangs, rests, at = list(self.places), 0, 0
        while rests < len(gangs) and self._tried < MOST_TRIED:
            gang = gangs[at % len(gangs)]
            home = self._costs.remove(gang.name).nodes
            self.places[gang] = _place(self._costs, gang, home) or home
            rests = rests + 1 if self.places[gang] == home else 0
            at, self._tried = at + 1, self._tried + 1

    def _exchange_all(self) -> bool:
        """Exchange the places of gangs of the same size; return whether some changed."""
        done = [self._exchange(gangs) for gangs in self._alike if len(gangs) > 1]
        return any(done)

    def _exchange(self, gangs: Sequence[Gang]) -> bool:
        """Exchange places by each one's cost without the others of its size; keep a result that is better with them."""
        if self._tried + 3 * len(gangs) > MOST_TRIED:
            return False
        self._tried += 3 * len(gangs)
        before = [self._costs.remove(gang.name).nodes for gang in gangs]
        order = exchanged(np.array([self._costs.added(gang, before) for gang in gangs]))
        after = [before[index] for index in order]
        old = self._put(gangs, before)
        if after == before:
            return False
        for gang in gangs:
            self._costs.remove(gang.name)
        if self._put(gangs, after) < old - _WORTH * abs(old):
            self.places.update(zip(gangs, after, strict=True))
            return True
        for gang in gangs:
            self._costs.remove(gang.name)
        self._put(gangs, before)
        return False

    def _put(self, gangs: Sequence[Gang], places: Sequence[Nodes]) -> float:
        """Put gangs on their places; return their total cost in seconds."""
        total = 0.0
        for gang, nodes in zip(gangs, places, strict=True):
            total += float(self._costs.added(gang, [nodes])[0])
            self._costs.add(gang.name, PlacedJob(gang.kind, nodes), gang.steps)
        return total


def exchanged(costs: NDArray[np.float64]) -> list[int]:
    """Return the place of each gang after pairwise exchanges that lower the sum, the best first; initially i has i.

    `costs`, (gangs, places), has the cost of each gang on each place.
    """
    order = np.arange(len(costs))
    while True:
        here = costs[:, order]  # (gangs, others): a gang on the place of another
        own = np.diagonal(here)
        gain = own[:, None] + own[None, :] - here - here.T
        one, two = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[one, two] <= _WORTH * abs(own.sum()):
            return [int(place) for place in order]
        order[[one, two]] = order[[two, one]]


def _place(costs: PlacementCosts, gang: Gang, home: Nodes | None = None) -> Nodes | None:
    """Put a gang where it costs the fewest seconds; it stays at `home` if nothing is better."""
    choices = [
        nodes
        for nodes in candidates(costs.occupancy, gang.gpus)
        if gang.unit == 1 or all(gpus % gang.unit == 0 for _, gpus in nodes)
    ]
    if home is not None:
        choices.insert(0, home)
    if not choices:
        return None
    seconds = costs.added(gang, choices)
    best = int(np.argmin(seconds))
    if home is not None and seconds[0] - seconds[best] <= _WORTH * abs(seconds[0]):
        best = 0
    costs.add(gang.name, PlacedJob(gang.kind, choices[best]), gang.steps)
    return choices[best]
