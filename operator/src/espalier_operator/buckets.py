"""Nodes with equally many free GPUs, to find one quickly that has the other resources of a worker as well."""

from __future__ import annotations

from collections.abc import Callable

from espalier_operator.constraints import Amounts


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
        self._starts: dict[Amounts, int] = {}
        """By requests: the first place at which there may be room for them."""

    def __len__(self) -> int:
        """Return how many nodes are in it."""
        return len(self._places)

    def add(self, node: str) -> None:
        """Put `node` last."""
        self._places[node] = len(self._nodes)
        self._nodes.append(node)

    def remove(self, node: str) -> None:
        """Take `node` out."""
        del self._places[node]

    def first(self, requests: Amounts, room: Callable[[str, Amounts], int]) -> tuple[str, int] | None:
        """Return the first node with room for `requests`, and for how many of them; None if there is none.

        `room` must only depend on what changed while the node was not in the bucket.
        """
        for place in range(self._starts.get(requests, 0), len(self._nodes)):
            node = self._nodes[place]
            if self._places.get(node) == place:
                count = room(node, requests)
                if count > 0:
                    self._starts[requests] = place
                    return node, count
        self._starts[requests] = len(self._nodes)
        return None
