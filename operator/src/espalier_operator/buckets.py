"""Nodes with equally many free GPUs, to find one quickly that has the other resources of a worker as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from espalier_operator.constraints import Amounts

Room = Callable[[str, Amounts], int]
"""Returns how many workers with these requests a node has room for, apart from GPUs."""


Key = tuple[int, int]
"""What nodes of a bucket have in common: how many GPUs they have to hand out, and how many once everything that is
leaving has left. Of nodes that fit equally well, the one with the poorer future is used."""


class Bucket:
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

    def first(self, requests: Amounts, room: Room, least: int = 1) -> tuple[str, int] | None:
        """Return the first node with room for `least` workers, and for how many; None if there is none.

        `room` must only depend on what changed while the node was not in the bucket.
        """
        for place in range(self._starts.get((requests, least), 0), len(self._nodes)):
            node = self._nodes[place]
            if self._places.get(node) == place:
                count = room(node, requests)
                if count >= least:
                    self._starts[requests, least] = place
                    return node, count
        self._starts[requests, least] = len(self._nodes)
        return None


class Shelf(dict[Key, Bucket]):
    """Nodes with free GPUs, in buckets."""

    def put(self, node: str, key: Key) -> None:
        """Add `node`."""
        bucket = self.get(key)
        if bucket is None:
            bucket = self[key] = Bucket()
        bucket.add(node)

    def drop(self, node: str, key: Key) -> None:
        """Take `node` out."""
        bucket = self[key]
        bucket.remove(node)
        if not bucket:
            del self[key]


def choose(
    shelves: Sequence[Shelf], gpus: int, requests: Amounts, room: Room, workers: int = 1
) -> tuple[str, int] | None:
    """Return the node for the first of `workers` of `gpus` (> 0) each, and how many go there; None if there is none.

    That is the fullest node that has room for all of them, else the one that takes the most: so the fewest nodes are
    used, where nothing but GPUs is scarce.
    """
    fitting = [(key, place) for place, shelf in enumerate(shelves) for key in shelf if key[0] >= gpus]
    fitting.sort()
    for key, place in fitting:
        if key[0] >= workers * gpus:
            found = shelves[place][key].first(requests, room, workers)
            if found is not None:
                return found[0], workers
    if workers > 1:
        fitting.sort(key=lambda each: (-(each[0][0] // gpus), each))
        for key, place in fitting:
            found = shelves[place][key].first(requests, room)
            if found is not None:
                return found[0], min(workers, key[0] // gpus, found[1])
    return None


def largest(shelves: Sequence[Shelf], gpus: int, requests: Amounts, room: Room) -> int:
    """Return for how many workers of `gpus` (> 0) the roomiest node has room."""
    buckets = [(key[0] // gpus, bucket) for shelf in shelves for key, bucket in shelf.items()]
    for workers in range(max((most for most, _ in buckets), default=0), 0, -1):
        if any(most >= workers and bucket.first(requests, room, workers) for most, bucket in buckets):
            return workers
    return 0
