"""Racks and zones: placement of gangs, and nodes close to existing workers.

A rack is identified by its zone and its own label. Nodes without a label share one zone and one rack.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Final, NamedTuple

from espalier_operator.cluster.free_gpus import GroupFreeGpus, Key, Room, choose
from espalier_operator.cluster.node_index import NodePool, Rack

_MOST_VIEWS: Final = 32
"""Number of combinations of groups whose free GPUs are kept by rack; others are counted on demand."""


_SMALL_RACK: Final = 64
"""Maximum number of nodes with free GPUs in a rack that is searched completely."""


class _RackRoom(NamedTuple):
    """Room for workers in a rack."""

    fitting: list[tuple[int, int]]
    """(Workers that fit on a node, number of such nodes), nodes with the most free GPUs first."""
    workers: int
    """Number of workers that fit."""


class Racks:
    """The nodes with free GPUs, by rack and group."""

    def __init__(self, racks: Mapping[str, Rack]) -> None:
        """Take the rack of each node; the index is empty."""
        self._rack = racks
        self._free_index: dict[Rack, dict[int, GroupFreeGpus]] = defaultdict(lambda: defaultdict(GroupFreeGpus))
        self._having: dict[str, dict[Key, list[tuple[Rack, int]]]] = defaultdict(lambda: defaultdict(list))
        """Sorted racks and groups with nodes of a key, by zone and key."""
        self._free: dict[int, Counter[Rack]] = defaultdict(Counter)
        """Free GPUs by group and rack, for racks that have any."""
        self._views: dict[tuple[int, ...], Counter[Rack]] = {}
        """Free GPUs by rack for combinations of groups."""
        self._views_of: dict[int, list[Counter[Rack]]] = defaultdict(list)
        """The views that include each group."""
        self.headroom: dict[Rack, dict[tuple[NodePool, int], _RackRoom]] = defaultdict(dict)
        """Known room for workers by rack, node pool and GPUs of a worker."""

    def put(self, node: str, group: int, key: Key) -> None:
        """Add a node."""
        rack = self._rack[node]
        group_gpus = self._free_index[rack][group]
        if key not in group_gpus:
            insort(self._having[rack[0]][key], (rack, group))
        group_gpus.put(node, key)
        self.headroom.pop(rack, None)
        for free in (self._free[group], *self._views_of.get(group, ())):
            free[rack] += key[0]

    def drop(self, node: str, group: int, key: Key) -> None:
        """Take a node out."""
        rack = self._rack[node]
        group_gpus = self._free_index[rack][group]
        group_gpus.drop(node, key)
        if key not in group_gpus:
            having = self._having[rack[0]]
            del having[key][bisect_left(having[key], (rack, group))]
            if not having[key]:
                del having[key]
        self.headroom.pop(rack, None)
        for free in (self._free[group], *self._views_of.get(group, ())):
            if free[rack] == key[0]:
                del free[rack]
            else:
                free[rack] -= key[0]

    def free(self, node_pool: NodePool) -> Mapping[Rack, int]:
        """Return the free GPUs of `node_pool` by rack; racks without any are left out."""
        if len(node_pool.groups) == 1:
            return self._free[node_pool.groups[0]]
        view = self._views.get(node_pool.groups)
        if view is None:
            view = Counter[Rack]()
            for (
                group
            ) in node_pool.groups:  # there may be a thousand, of a few racks each: `update` of a Counter is slow
                for rack, gpus in self._free[group].items():
                    view[rack] += gpus
            if len(self._views) < _MOST_VIEWS:
                self._views[node_pool.groups] = view
                for group in node_pool.groups:
                    self._views_of[group].append(view)
        return view

    def free_groups(self, node_pool: NodePool, racks: Iterable[Rack]) -> list[GroupFreeGpus]:
        """Return the groups with free nodes of `node_pool` in `racks`."""
        found = ((self._free_index[rack], group) for rack in racks for group in node_pool.groups)
        return [free_index[group] for free_index, group in found if group in free_index]

    def nearest(self, node_pool: NodePool, gpus: int, nodes: Collection[str], room: Room) -> str | None:
        """Return the fullest node with room for a worker of `gpus` (> 0) in the racks of `nodes`, else in their zones.

        None if there is none.
        """
        near = {self._rack[node] for node in nodes if node in self._rack}
        chosen = choose(self.free_groups(node_pool, sorted(near)), gpus, node_pool.requests, room)
        if chosen is not None:
            return chosen[0]
        zones = sorted({zone for zone, _ in near})
        for key in sorted({key for zone in zones for key in self._having[zone] if key[0] >= gpus}):
            for rack, group in chain.from_iterable(self._having[zone].get(key, ()) for zone in zones):
                if group in node_pool.members and rack not in near:
                    found = self._free_index[rack][group][key].first(node_pool.requests, room)
                    if found is not None:
                        return found[0]
        return None


class RackSplit:
    """Split of one gang among racks.

    It goes into one rack if one has room for all: the rack where it needs the fewest nodes, the fullest of several.
    Otherwise it goes into the racks of the zone where it needs the fewest racks, if one zone has room for all;
    otherwise into few racks of few zones.
    """

    def __init__(self, racks: Racks, node_pool: NodePool, gpus: int, room: Room, largest: int) -> None:
        """Search `node_pool` for workers of `gpus` (> 0); no node has room for more than `largest` of them."""
        self._racks, self._node_pool, self._gpus, self._room, self._largest = racks, node_pool, gpus, room, largest
        self._free = racks.free(node_pool)
        self._key = node_pool, gpus

    def one_for_all(self, workers: int) -> Rack | None:
        """Return the rack with room for all `workers` on the fewest nodes, the fullest of several, if there is one."""
        return self._one_of(self._free, workers)

    def several(self, workers: int) -> list[tuple[Rack, int]]:
        """Return the racks with the number of `workers` for each; empty where `node_pool` has no room for all."""
        totals = {rack: self._room_of(rack).workers for rack, free in self._free.items() if free >= self._gpus}
        if sum(totals.values()) < workers:
            return []
        chosen: list[tuple[Rack, int]] = []
        while workers > 0 and totals:
            rack = self._one_of([rack for rack, total in totals.items() if total >= workers], workers)
            if rack is None:
                totals = _zone_for_all(totals, self._free, workers) or totals
                rack = _largest_of(totals, {zone for (zone, _), _ in chosen})
            chosen.append((rack, min(workers, totals.pop(rack))))
            workers -= chosen[-1][1]
        return chosen

    def _one_of(self, candidates: Iterable[Rack], workers: int) -> Rack | None:
        enough = [(free, rack) for rack in candidates if (free := self._free[rack]) >= workers * self._gpus]
        fewest_possible = -(-workers // self._largest)
        best, fewest = None, 0
        for _, rack in sorted(enough):
            nodes = self._nodes(rack, workers)
            if nodes and (best is None or nodes < fewest):
                best, fewest = rack, nodes
                if nodes <= fewest_possible:
                    break
        return best

    def _nodes(self, rack: Rack, workers: int) -> int:
        """Return the number of nodes of `rack`, the freest first, that `workers` take; 0 if not all of them fit."""
        room = self._racks.headroom[rack].get(self._key)
        if room is None and self._is_small(rack):
            room = self._room_of(rack)
        if room is not None and room.workers < workers:
            return 0
        used = total = 0
        for most, nodes in self._fitting(rack) if room is None else room.fitting:
            if workers <= total + most * nodes:
                return used + -(-(workers - total) // most)
            total, used = total + most * nodes, used + nodes
        return 0

    def _is_small(self, rack: Rack) -> bool:
        """Return whether `rack` has few enough nodes to visit all: of thousands in a zone, the first few suffice."""
        free_groups = self._racks.free_groups(self._node_pool, [rack])
        return sum(len(bucket) for group_gpus in free_groups for bucket in group_gpus.values()) <= _SMALL_RACK

    def _room_of(self, rack: Rack) -> _RackRoom:
        known = self._racks.headroom[rack]
        room = known.get(self._key)
        if room is None:
            fitting: list[tuple[int, int]] = []
            for most, nodes in self._fitting(rack):
                if fitting and fitting[-1][0] == most:
                    fitting[-1] = most, fitting[-1][1] + nodes
                else:
                    fitting.append((most, nodes))
            room = known[self._key] = _RackRoom(fitting, sum(most * nodes for most, nodes in fitting))
        return room

    def _fitting(self, rack: Rack) -> Iterator[tuple[int, int]]:
        """Yield (workers that fit on a node, number of such nodes) of `rack`, nodes with the most free GPUs first."""
        requests = self._node_pool.requests
        free_groups = self._racks.free_groups(self._node_pool, [rack])
        buckets = [(key[0] // self._gpus, bucket) for group_gpus in free_groups for key, bucket in group_gpus.items()]
        buckets.sort(key=lambda each: -each[0])
        for most, bucket in buckets:
            if most and not requests:
                yield most, len(bucket)
            elif most:
                headroom = (min(most, self._room(node, requests)) for node in bucket)
                yield from ((fits, 1) for fits in headroom if fits)


def _zone_for_all(totals: Mapping[Rack, int], free: Mapping[Rack, int], workers: int) -> dict[Rack, int]:
    """Return the part of `totals` (workers that fit, by rack) in the zone with room for all `workers` in the fewest
    racks, the fullest of several; empty if no zone has room.
    """
    zones: dict[str, list[Rack]] = defaultdict(list)
    for rack in totals:
        zones[rack[0]].append(rack)
    found = []
    for zone, racks in zones.items():
        used = next((used for used, room in _sums(totals[rack] for rack in racks) if room >= workers), None)
        if used is not None:
            found.append((used, sum(free[rack] for rack in racks), zone))
    return {rack: totals[rack] for rack in zones[min(found)[2]]} if found else {}


def _sums(totals: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (number of racks, workers that fit in these), racks with the most room first."""
    return enumerate(accumulate(sorted(totals, reverse=True)), 1)


def _largest_of(totals: Mapping[Rack, int], used: Collection[str]) -> Rack:
    """Return the rack with room for the most workers in a zone already used, else in the zone with the most room."""
    zones: dict[str, int] = defaultdict(int)
    for (zone, _), total in totals.items():
        zones[zone] += total
    best = max(zones, key=lambda zone: (zone in used and zones[zone] > 0, zones[zone], zone))
    return max((total, rack) for rack, total in totals.items() if rack[0] == best)[1]
