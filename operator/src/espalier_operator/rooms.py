"""What nodes have left of resources other than GPUs (CPU, memory, pods), now and later.

Most nodes have more of everything than the workers on their GPUs can ask for; these are not counted. The others are
counted when they are asked about: most nodes of a cluster have no free GPUs.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import accumulate
from typing import Final

from espalier_operator.constraints import Amounts
from espalier_operator.facts import JobFacts, Node, Worker, host_of

UNLIMITED: Final = sys.maxsize

_Left = dict[str, int]
"""By resource; one without an entry is not limited."""


class Rooms:
    """What is left on the nodes of one snapshot."""

    def __init__(
        self, workers: Iterable[Worker], leaving: Set[str], jobs: Collection[JobFacts], others: Iterable[Worker] = ()
    ) -> None:
        """Count the bound `workers` of `jobs`; those named in `leaving` hold nothing later.

        `others` are pods of others that wait: what they request may be more than any node has.
        """
        self._leaving = leaving
        self._requests = {job.key: job.terms.constraints.requests for job in jobs}
        kinds = {(job.terms.constraints.requests, job.terms.gpus_per_worker) for job in jobs}
        self._greatest = _greatest(kinds | {(worker.constraints.requests, worker.gpus) for worker in others})
        by_node: dict[str, list[Worker]] = defaultdict(list)
        for worker in workers:
            if worker.job is not None and worker.node is not None:
                by_node[worker.node].append(worker)
        self._workers: dict[str, list[Worker]] = defaultdict(list)
        for node, own in by_node.items():
            self._workers[host_of(node)] += own
        self._nodes: dict[str, tuple[Node, int]] = {}
        self._hosts: dict[str, str] = {}
        """By node: its machine."""
        self._offered: Counter[str] = Counter()
        """By machine: its GPUs of all kinds."""
        self._groups: dict[int, list[str]] = defaultdict(list)
        self._left: dict[str, tuple[_Left, _Left] | None] = {}
        """By machine: what is left now and later; None where nothing can run short."""
        self._ample: set[str] = set()
        """Nodes that are known to have more of everything than can be requested."""
        self._answers: dict[object, bool] = {}

    def add(self, node: Node, group: int, offered: int) -> None:
        """Add a node of `group` that offers `offered` GPUs."""
        self._nodes[node.name] = node, offered
        self._hosts[node.name] = host = node.host
        self._offered[host] += offered
        self._groups[group].append(node.name)

    def can_run_short(self, node: str) -> bool:
        """Return whether the workers that fit on the GPUs of `node` could request more than it has."""
        return node not in self._ample and self._left_on(node) is not None

    def change(self, node: str, requests: Amounts, now: int, later: int) -> None:
        """Add a multiple of `requests` to what is left now and later."""
        left = self._left_on(node)
        if left is not None:
            _add(left[0], requests, now)
            _add(left[1], requests, later)

    def fits(self, node: str, requests: Amounts, *, now: bool, more: Amounts = ()) -> int:
        """Return how often `requests` fit on `node` later, `now`: also at this moment; at most as often as GPUs do.

        `more` is what is added to what the node has left.
        """
        left = None if node in self._ample else self._left_on(node)
        if left is None:
            return UNLIMITED
        later = left[1]
        if more:
            later = dict(later)
            _add(later, more, 1)
        most = _times(later, requests)
        return min(most, _times(left[0], requests)) if now and most > 0 else most

    def could_hold(
        self, groups: Iterable[int], requests: Amounts, gpus: int, workers: int, others: Mapping[str, int] | None
    ) -> bool:
        """Return whether `workers` of `gpus` would fit on nodes of `groups` if all our jobs had ended.

        `others` are the GPUs that pods of others hold; None: they had ended as well.
        """
        key = (tuple(groups), requests, gpus, workers, others is None)
        if key not in self._answers:
            nodes = (self._nodes[name] for group in key[0] for name in self._groups[group])
            counts = (_times_when_empty(node, offered, requests, gpus, others) for node, offered in nodes)
            self._answers[key] = any(fitting >= workers for fitting in accumulate(counts))
        return self._answers[key]

    def _left_on(self, node_name: str) -> tuple[_Left, _Left] | None:
        if node_name in self._ample:
            return None
        name = self._hosts[node_name]
        if name not in self._left:
            node, offered = self._nodes[node_name][0], self._offered[name]
            if self._has_enough(node, offered):
                self._left[name] = None
            else:
                unused = _unused(node)
                self._left[name] = now, later = unused, dict(unused)
                for worker in self._workers.get(name, ()):
                    requests = self._requests.get(worker.job or "", ())
                    _add(now, requests, -1)
                    _add(later, requests, 0 if worker.name in self._leaving else -1)
        left = self._left[name]
        if left is None:
            self._ample.add(node_name)
        return left

    def _has_enough(self, node: Node, offered: int) -> bool:
        """Return whether `node` has more of everything than workers on `offered` GPUs can request."""
        used, greatest = node.used, self._greatest
        for resource, amount in node.resources.items():
            if not amount - used.get(resource, 0) >= offered * greatest.get(resource, 0.0):  # of 0 GPUs it may be NaN
                return False
        return True


def _greatest(kinds: Iterable[tuple[Amounts, int]]) -> dict[str, float]:
    """Return how much of each resource is requested for each GPU, at most, by `kinds` of requests and GPUs."""
    greatest: dict[str, float] = defaultdict(float)
    for requests, gpus in kinds:
        for name, amount in requests:
            greatest[name] = max(greatest[name], amount / gpus if gpus else float("inf") if amount else 0.0)
    return greatest


def _unused(node: Node) -> _Left:
    return {name: amount - node.used.get(name, 0) for name, amount in node.resources.items()}


def _add(left: _Left, requests: Amounts, times: int) -> None:
    for name, amount in requests if times else ():
        if name in left:
            left[name] += times * amount


def _times(left: Mapping[str, int], requests: Amounts) -> int:
    """Return how often `requests` fit into what is left, 0 or more."""
    most = UNLIMITED
    for name, amount in requests:
        if amount and name in left:
            most = min(most, left[name] // amount)
    return max(0, most)


def _times_when_empty(node: Node, offered: int, requests: Amounts, gpus: int, others: Mapping[str, int] | None) -> int:
    if others is None:
        return max(0, min(offered // gpus, _times(node.resources, requests)))
    return max(0, min((offered - others.get(node.name, 0)) // gpus, _times(_unused(node), requests)))
