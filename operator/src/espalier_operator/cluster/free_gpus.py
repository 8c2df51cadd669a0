"""Index of nodes by number of free GPUs, for a quick search for one that has a worker's other resources too."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from espalier_operator.cluster.node_index import NodePool
from espalier_operator.model.constraints import Amounts

Room = Callable[[str, Amounts], int]
"""Returns the number of workers with these requests that a node has room for, apart from GPUs."""


_STALE: Final = 64
"""Minimum number of places of removed nodes before a bucket drops them."""

_FEW_GROUPS: Final = 16
"""Maximum number of groups of a node pool that is searched group by group."""

Key = tuple[int, int]
"""Key of a bucket: GPUs that its nodes have to hand out now, and GPUs after all pending releases. Of nodes that fit
equally well, the one with fewer later GPUs is used."""


class NodeBucket:
    """Nodes in the order of insertion; a node that changes is removed and added again.

    A node without room for some requests is not tried for the same again before it changes: searches through thousands
    of nodes with free GPUs and no CPUs would cost seconds.
    """

    __slots__ = ("_nodes", "_places", "_starts")

    def __init__(self) -> None:
        """Make an empty bucket."""
        self._nodes: list[str] = []
        self._places: dict[str, int] = {}
        """Place of each node of the bucket in the list, which also has removed nodes."""
        self._starts: dict[tuple[Amounts, int], int] = {}
        """The first place at which there may be room, by requests and number of workers."""

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Yield the nodes."""
        return iter(self._places)

    def add(self, node: str) -> None:
        """Append `node`."""
        self._places[node] = len(self._nodes)
        self._nodes.append(node)

    def remove(self, node: str) -> None:
        """Remove `node`."""
        del self._places[node]
        if len(self._nodes) > 2 * len(self._places) + _STALE:
            self._drop_those_that_left()

    def _drop_those_that_left(self) -> None:
        places = list(self._places.values())  # in order: a node that is added again comes last
        self._nodes = list(self._places)
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._starts = {key: bisect_left(places, start) for key, start in self._starts.items()}

    def first(self, requests: Amounts, room: Room, least: int = 1) -> tuple[str, int] | None:
        """Return the first node with room for `least` workers, and the number that fit; None if there is none.

        `room` of a node must not change while the node is in the bucket.
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
    """Nodes of a group with free GPUs, in buckets."""

    def put(self, node: str, key: Key) -> None:
        """Add `node`."""
        bucket = self.get(key)
        if bucket is None:
            bucket = self[key] = NodeBucket()
        bucket.add(node)

    def drop(self, node: str, key: Key) -> None:
        """Remove `node`."""
        bucket = self[key]
        bucket.remove(node)
        if not bucket:
            del self[key]


def choose(
    free_index: Sequence[GroupFreeGpus], gpus: int, requests: Amounts, room: Room, workers: int = 1
) -> tuple[str, int] | None:
    """Return the node for the first of `workers` of `gpus` (> 0) each, and the number that go there; None if none fits.

    That is the fullest node with room for all of them, else the one that takes the most. This uses the fewest nodes
    where only GPUs are scarce.
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
    """Implement `choose` on sorted `keys`."""
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
    """The nodes with free GPUs by group, with an index of groups by key.

    A node pool may have a thousand groups, few of which have nodes of a key.
    """

    def __init__(self) -> None:
        """Make an empty index."""
        self._having: dict[Key, list[int]] = {}
        """Sorted groups with nodes of each key."""

    def put(self, node: str, group: int, key: Key) -> None:
        """Add `node`."""
        group_gpus = self.get(group)
        if group_gpus is None:
            group_gpus = self[group] = GroupFreeGpus()
        if key not in group_gpus:
            insort(self._having.setdefault(key, []), group)
        group_gpus.put(node, key)

    def drop(self, node: str, group: int, key: Key) -> None:
        """Remove `node`."""
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
        """Do `choose` on the groups of `node_pool` without visiting each of them."""
        if len(node_pool.groups) <= _FEW_GROUPS:
            return choose(self.on(node_pool), gpus, requests, room, workers)

        def buckets(key: Key) -> Iterator[NodeBucket]:
            return (self[group][key] for group in self._having[key] if group in node_pool.members)

        return _chosen(sorted(self._free(gpus)), buckets, gpus, requests, room, workers)

    def count(self, node_pool: NodePool, gpus: int, enough: int) -> int:
        """Return the number of workers of `gpus` (> 0) that fit by GPUs alone; counting ends at `enough`."""
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
        """Return whether any node of `node_pool` has `gpus`."""
        return any(group in node_pool.members for key in self._free(gpus) for group in self._having[key])

    def _free(self, gpus: int) -> Iterator[Key]:
        return (key for key in self._having if key[0] >= gpus)


def largest(free_index: Sequence[GroupFreeGpus], gpus: int, requests: Amounts, room: Room) -> int:
    """Return the number of workers of `gpus` (> 0) that fit on the roomiest node."""
    buckets = [(key[0] // gpus, bucket) for group_gpus in free_index for key, bucket in group_gpus.items()]
    for workers in range(max((most for most, _ in buckets), default=0), 0, -1):
        if any(most >= workers and bucket.first(requests, room, workers) for most, bucket in buckets):
            return workers
    return 0
