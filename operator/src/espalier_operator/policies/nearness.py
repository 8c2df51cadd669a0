"""On which nodes workers should be: where they are, else on as few nodes as possible (best fit)."""

from __future__ import annotations

from collections.abc import Mapping

from espalier_operator.policies.view import Candidate, View


def near(view: View, workers: Mapping[Candidate, int]) -> dict[str, tuple[str, ...]]:
    """Return the node of each worker, by job; nothing for a job that finds no room, or where nodes are not known.

    A job that keeps its number of workers keeps its nodes. Of the others, large ones choose first: the fullest node on
    which all of the rest fits, or the emptiest one.
    """
    free = dict(view.nodes)
    found: dict[str, tuple[str, ...]] = {}
    moving: list[tuple[Candidate, int]] = []
    for job, count in workers.items():
        nodes = view.held.get(job.key, ())
        if not count or not free:
            continue
        if count != len(nodes) or not free.keys() >= set(nodes):
            moving.append((job, count))
            continue
        found[job.key] = nodes
        for node in nodes:
            # A job still holds GPUs that are announced to depart, and that its node no longer offers.
            free[node] = max(0, free[node] - job.gpus_per_worker)
    room = _Room(free)
    for job, count in sorted(moving, key=lambda each: -each[1] * each[0].gpus_per_worker):
        taken = room.take(count, job.gpus_per_worker)
        if taken:
            found[job.key] = taken
    return found


class _Room:
    """Free GPUs, and nodes by their number."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._nodes: list[dict[str, None]] = [{} for _ in range(max(free.values(), default=0) + 1)]
        for node, gpus in free.items():
            self._nodes[gpus][node] = None

    def take(self, count: int, gpus: int) -> tuple[str, ...]:
        """Take GPUs for `count` workers with `gpus` each, and return the node of each; none where not all fit."""
        taken: list[tuple[str, int, int]] = []
        left = count
        while left:
            free = self._best(left * gpus)
            fits = min(left, free // gpus)
            if not fits:
                for node, before, used in reversed(taken):
                    self._move(node, before - used, before)
                return ()
            node = next(iter(self._nodes[free]))
            self._move(node, free, free - fits * gpus)
            taken.append((node, free, fits * gpus))
            left -= fits
        return tuple(node for node, _, used in taken for _ in range(used // gpus))

    def _best(self, needs: int) -> int:
        """Return the smallest number of free GPUs of a node that is enough, else the largest."""
        enough = range(needs, len(self._nodes))
        less = reversed(range(min(needs, len(self._nodes))))
        return next((free for part in (enough, less) for free in part if self._nodes[free]), 0)

    def _move(self, node: str, before: int, after: int) -> None:
        del self._nodes[before][node]
        self._nodes[after][node] = None
