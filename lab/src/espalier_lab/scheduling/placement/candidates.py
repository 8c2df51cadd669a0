"""The candidate placements of a gang of workers: few, different, and none that is plainly worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from typing import Final

from espalier_lab.scheduling.placement.occupancy import Occupancy

MOST: Final = 32
"""Maximum number of candidates of a decision."""

Nodes = tuple[tuple[int, int], ...]
"""A placement: (node, GPUs there), in ascending order of nodes."""


def candidates(occupancy: Occupancy, gpus: int) -> tuple[Nodes, ...]:
    """Return placements of a gang of `gpus` GPUs, at most `MOST`; none: it does not fit.

    The order is: the usual rules `consolidate`, `first_fit`, `emptiest`; each single node; for gangs that need more
    than one, as few nodes as possible of each rack; pairs of nodes with equal halves.
    """
    if gpus > sum(occupancy.free):
        return ()
    found: dict[Nodes, None] = {consolidate(occupancy, gpus): None}
    found[first_fit(occupancy, gpus)] = None
    found[emptiest(occupancy, gpus)] = None
    free = occupancy.free
    for node in sorted(range(len(free)), key=lambda node: -free[node]):
        if free[node] >= gpus:
            found[((node, gpus),)] = None
    racks = _racks(occupancy)
    for rack in racks:
        if sum(free[node] for node in rack) >= gpus:
            found[_packed(free, rack, gpus)] = None
            found[_spread(free, rack, gpus)] = None
    if gpus > 1:
        half = gpus // 2
        for one, two in _pairs(free, racks, gpus - half):
            if len(found) >= MOST:
                break
            found[((one, half), (two, gpus - half))] = None
    return tuple(found)[:MOST]


def consolidate(occupancy: Occupancy, gpus: int) -> Nodes:
    """Return the fewest nodes, if possible of one rack; among equals, those that leave the fewest GPUs free."""
    free = occupancy.free
    fits = [node for node in range(len(free)) if free[node] >= gpus]
    if fits:
        return ((min(fits, key=lambda node: (free[node], node)), gpus),)
    racks = [rack for rack in _racks(occupancy) if sum(free[node] for node in rack) >= gpus]
    choices = [_packed(free, rack, gpus) for rack in racks] or [_packed(free, range(len(free)), gpus)]
    return min(choices, key=len)


def first_fit(occupancy: Occupancy, gpus: int) -> Nodes:
    """Return the first nodes that have free GPUs."""
    return _taken(occupancy.free, range(len(occupancy.free)), gpus)


def emptiest(occupancy: Occupancy, gpus: int) -> Nodes:
    """Return the nodes with the most free GPUs."""
    return _packed(occupancy.free, range(len(occupancy.free)), gpus)


def _pairs(free: Sequence[int], racks: Sequence[range], gpus: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of nodes with this number of free GPUs each: first pairs in one rack, then others."""
    fitting = [[node for node in rack if free[node] >= gpus] for rack in racks]
    for rack in fitting:
        yield from combinations(rack, 2)
    for place, rack in enumerate(fitting):
        yield from product(rack, chain.from_iterable(fitting[place + 1 :]))


def _racks(occupancy: Occupancy) -> list[range]:
    size = occupancy.rack_nodes
    return [range(first, min(first + size, len(occupancy.free))) for first in range(0, len(occupancy.free), size)]


def _packed(free: Sequence[int], nodes: Iterable[int], gpus: int) -> Nodes:
    return _taken(free, sorted(nodes, key=lambda node: -free[node]), gpus)


def _taken(free: Sequence[int], nodes: Iterable[int], gpus: int) -> Nodes:
    taken: list[tuple[int, int]] = []
    for node in nodes:
        count = min(free[node], gpus)
        if count:
            taken.append((node, count))
            gpus -= count
        if not gpus:
            break
    return tuple(sorted(taken))


def _spread(free: Sequence[int], nodes: Iterable[int], gpus: int) -> Nodes:
    left = {node: free[node] for node in nodes}
    taken: dict[int, int] = {}
    for _ in range(gpus):
        node = max(left, key=lambda node: (left[node], -node))
        left[node] -= 1
        taken[node] = taken.get(node, 0) + 1
    return tuple(sorted(taken.items()))
