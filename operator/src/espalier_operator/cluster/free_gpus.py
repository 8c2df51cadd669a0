"""Nodes with equally many free GPUs, to find one quickly that has the other resources of a worker as well."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model.constraints import Amounts

Room = Callable[[str, Amounts], int]
"""Returns how many workers with these requests a node has room for, apart from GPUs."""


_STALE: Final = 64
"""So many places of nodes that left a bucket keeps at least before it drops them."""

_FEW_GROUPS: Final = 16
"""A node pool of so few groups is searched group by group."""

Key = tuple[int, int]
"""What nodes of a bucket have in common: how many GPUs they have to hand out, and how many once everything that is
leaving has left. Of nodes that fit equally well, the one with the poorer future is used."""


class NodeBucket:
    """Nodes in the order in which they came; a node that changes leaves and comes again.

    A node that had no room for some requests is not asked for the same again before it changes: searches through
    thousands of nodes with free GPUs and no CPUs would cost seconds.
    """

    __slots__ = ("_nodes", "_places", "_starts")

    def __init__(self) -> None:
        """Make an empty one."""
        self._nodes: list[str] = []
        self._places: dict[str, int] = {}
        """By node that is in the bucket: its place in the list, which also has those that left."""
        self._starts: dict[tuple[Amounts, int], int] = {}
        """By requests and number of workers: the first place at which there may be room for them."""

    def __len__(self) -> int:
        """Return how many nodes are in it."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Yield the nodes that are in it."""
        return iter(self._places)

    def add(self, node: str) -> None:
        """Put `node` last."""
        self._places[node] = len(self._nodes)
        self._nodes.append(node)

    def remove(self, node: str) -> None:
        """Take `node` out."""
        del self._places[node]
        if len(self._nodes) > 2 * len(self._places) + _STALE:
            self._drop_those_that_left()

    def _drop_those_that_left(self) -> None:
        places = list(self._places.values())  # in order: a node that comes again comes last
        self._nodes = list(self._places)
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._starts = {key: bisect_left(places, start) for key, start in self._starts.items()}

    def first(self, requests: Amounts, room: Room, least: int = 1) -> tuple[str, int] | None:
        """Return the first node with room for `least` workers, and for how many; None if there is none.

        `room` must only depend on what changed while the node was not in the bucket.
        """
        key, nodes = (requests, least), self._nodes
        start = self._starts.get(key, 0)
        for place in range(start, len(nodes)):
            node = nodes[place]
            if self._places.get(node) == place:
                count = room(node, requests)
                if count >= least:
                    if place > start:
                        self._starts[key] = place
                    return node, count
        if start < len(nodes):
            self._starts[key] = len(nodes)
        return None


class GroupFreeGpus(dict[Key, NodeBucket]):
    """Nodes with free GPUs, in buckets."""

    def put(self, node: str, key: Key) -> None:
        """Add `node`."""
        bucket = self.get(key)
        if bucket is None:
            bucket = self[key] = NodeBucket()
        bucket.add(node)

    def drop(self, node: str, key: Key) -> None:
        """Take `node` out."""
        bucket = self[key]
        bucket.remove(node)
        if not bucket:
            del self[key]


def choose(
    free_index: Sequence[GroupFreeGpus], gpus: int, requests: Amounts, room: Room, workers: int = 1
) -> tuple[str, int] | None:
    """Return the node for the first of `workers` of `gpus` (> 0) each, and how many go there; None if there is none.

    That is the fullest node that has room for all of them, else the one that takes the most: so the fewest nodes are
    used, where nothing but GPUs is scarce.
    """

    def buckets(key: Key) -> list[NodeBucket]:
        return [group_gpus[key] for group_gpus in free_index if key in group_gpus]

    keys = {key for group_gpus in free_index for key in group_gpus if key[0] >= gpus}
    return _chosen(sorted(keys), buckets, gpus, requests, room, workers)


def _chosen(
    keys: list[Key],
    buckets: Callable[[Key], Iterable[NodeBucket]],
    gpus: int,
    requests: Amounts,
    room: Room,
    workers: int,
) -> tuple[str, int] | None:
    """Return what `choose` does; `keys` are sorted."""
    for key in keys:
        if key[0] >= workers * gpus:
            for bucket in buckets(key):
                found = bucket.first(requests, room, workers)
                if found is not None:
                    return found[0], workers
    if workers > 1:
        keys.sort(key=lambda key: (-(key[0] // gpus), key))
        for key in keys:
            for bucket in buckets(key):
                found = bucket.first(requests, room)
                if found is not None:
                    return found[0], min(workers, key[0] // gpus, found[1])
    return None


class FreeGpuIndex(dict[int, GroupFreeGpus]):
    """The nodes with free GPUs of all groups, each with those of its group; also found by their keys.

    A node pool may have a thousand groups, of which few have nodes with free GPUs of a kind.
    """

    def __init__(self) -> None:
        """Make empty ones."""
        self._having: dict[Key, list[int]] = {}
        """The groups that have nodes of a key, in order."""

    def put(self, node: str, group: int, key: Key) -> None:
        """Add `node`."""
        group_gpus = self.get(group)
        if group_gpus is None:
            group_gpus = self[group] = GroupFreeGpus()
        if key not in group_gpus:
            insort(self._having.setdefault(key, []), group)
        group_gpus.put(node, key)

    def drop(self, node: str, group: int, key: Key) -> None:
        """Take `node` out."""
        group_gpus = self[group]
        group_gpus.drop(node, key)
        if key not in group_gpus:
            having = self._having[key]
            del having[bisect_left(having, group)]
            if not having:
                del self._having[key]

    def on(self, node_pool: NodePool) -> list[GroupFreeGpus]:
        """Return the groups with free nodes of `node_pool`."""
        return [self[group] for group in node_pool.groups if group in self]

    def choose(
        self, node_pool: NodePool, gpus: int, requests: Amounts, room: Room, workers: int = 1
    ) -> tuple[str, int] | None:
        """Return what `choose` does of the groups of `node_pool`, without a look at each of them."""
        if len(node_pool.groups) <= _FEW_GROUPS:
            return choose(self.on(node_pool), gpus, requests, room, workers)

        def buckets(key: Key) -> Iterator[NodeBucket]:
            return (self[group][key] for group in self._having[key] if group in node_pool.members)

        return _chosen(sorted(self._free(gpus)), buckets, gpus, requests, room, workers)

    def count(self, node_pool: NodePool, gpus: int, enough: int) -> int:
        """Return how many workers of `gpus` (> 0) fit by their GPUs alone; counting ends at `enough`."""
        workers = 0
        if len(node_pool.groups) <= _FEW_GROUPS:
            free = (
                (key, bucket)
                for group_gpus in self.on(node_pool)
                for key, bucket in group_gpus.items()
                if key[0] >= gpus
            )
        else:
            keys = ((key, self._having[key]) for key in self._free(gpus))
            free = ((key, self[group][key]) for key, having in keys for group in having if group in node_pool.members)
        for key, bucket in free:
            workers += key[0] // gpus * len(bucket)
            if workers >= enough:
                break
        return workers

    def has(self, node_pool: NodePool, gpus: int) -> bool:
        """Return whether a node of `node_pool` has `gpus`."""
        return any(group in node_pool.members for key in self._free(gpus) for group in self._having[key])

    def _free(self, gpus: int) -> Iterator[Key]:
        return (key for key in self._having if key[0] >= gpus)


def largest(free_index: Sequence[GroupFreeGpus], gpus: int, requests: Amounts, room: Room) -> int:
    """Return for how many workers of `gpus` (> 0) the roomiest node has room."""
    buckets = [(key[0] // gpus, bucket) for group_gpus in free_index for key, bucket in group_gpus.items()]
    for workers in range(max((most for most, _ in buckets), default=0), 0, -1):
        if any(most >= workers and bucket.first(requests, room, workers) for most, bucket in buckets):
            return workers
    return 0
