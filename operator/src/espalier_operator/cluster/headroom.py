"""Remaining non-GPU resources (CPU, memory, pods) of nodes, now and after pending releases.

Most nodes have more of everything than the workers on their GPUs can request; these are not counted. The others are
counted on demand, as most nodes of a cluster have no free GPUs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from espalier_operator.cluster.node_index import NodeIndex
from espalier_operator.model import JobFacts, Node, Worker, host_of
from espalier_operator.model.constraints import NATIVE, Amounts

UNLIMITED: Final = sys.maxsize
_Left = dict[str, int]
"""Remaining amount by resource; a resource without an entry is unlimited."""
UNKNOWN: Final[tuple[_Left, _Left]] = {}, {}
"""Placeholder for a node not counted yet."""


@dataclass(frozen=True, slots=True)
class ResourceVector:
    """GPUs and other amounts that can be added and subtracted; they may be negative."""

    gpus: int
    requests: Amounts = ()
    """Amounts in order of name; a resource that is not named is 0."""

    def __add__(self, other: ResourceVector) -> ResourceVector:
        """Return the sum."""
        if self is NOTHING:
            return other
        if not self.requests and not other.requests:
            return ResourceVector(self.gpus + other.gpus)
        return self._with(other, lambda own, others: own + others)

    def __sub__(self, other: ResourceVector) -> ResourceVector:
        """Return the difference."""
        if not self.requests and not other.requests:
            return ResourceVector(self.gpus - other.gpus)
        return self._with(other, lambda own, others: own - others)

    def __mul__(self, times: int) -> ResourceVector:
        """Return the multiple."""
        return ResourceVector(self.gpus * times, tuple([(name, amount * times) for name, amount in self.requests]))

    def of_which(self, other: ResourceVector) -> ResourceVector:
        """Return the smaller of both amounts for each resource, 0 or more."""
        return self._with(other, lambda own, others: max(0, min(own, others)))

    def _with(self, other: ResourceVector, joined: Callable[[int, int], int]) -> ResourceVector:
        if [name for name, _ in self.requests] == [name for name, _ in other.requests]:
            pairs = zip(self.requests, other.requests, strict=True)
            alike = tuple([(name, joined(amount, others)) for (name, amount), (_, others) in pairs])
            return ResourceVector(joined(self.gpus, other.gpus), alike)
        own, others = dict(self.requests), dict(other.requests)
        both = tuple((name, joined(own.get(name, 0), others.get(name, 0))) for name in sorted(own.keys() | others))
        return ResourceVector(joined(self.gpus, other.gpus), both)


NOTHING: Final = ResourceVector(0)


class NodeHeadroom:
    """Remaining resources on the nodes of one snapshot."""

    def __init__(
        self,
        nodes: Sequence[Node],
        node_index: NodeIndex,
        workers: Collection[Worker],
        leaving: Set[str],
        jobs: Collection[JobFacts],
        others: Collection[Worker] = (),
    ) -> None:
        """Take the bound `workers` of `jobs` on `nodes`; workers named in `leaving` hold nothing later.

        `node_index` belongs to `nodes`. `others` are waiting foreign pods, which may request more than any node has.
        Counting is done on demand, as most plans need few nodes.
        """
        self._all, self._node_index = nodes, node_index
        self._workers, self._leaving, self._jobs, self._others = workers, leaving, jobs, others
        self._left: dict[str, tuple[_Left, _Left] | None] = {}
        """Amounts left now and later, by machine; None where nothing can run short."""
        self.known: dict[str, tuple[_Left, _Left] | None] = {}
        """The same by node, for nodes queried by `left_on`; nodes of one machine share it."""
        self._answers: dict[object, bool] = {}

    @cached_property
    def _nodes(self) -> Collection[Node]:
        return [node for node in self._all if node.name in self._node_index.groups]

    @cached_property
    def _requests(self) -> Mapping[str, Amounts]:
        return {job.key: job.terms.constraints.requests for job in self._jobs}

    @cached_property
    def _greatest(self) -> Mapping[str, float]:
        kinds = {(job.terms.constraints.requests, job.terms.gpus_per_worker) for job in self._jobs}
        return _greatest(kinds | {(worker.constraints.requests, worker.gpus) for worker in self._others})

    @cached_property
    def _special(self) -> tuple[str, ...]:
        """Requested resources that some nodes name; nodes that do not name them have none.

        A resource that no node names is not counted, as dynamic resource allocation may provide it.
        """
        others = [name for name in self._greatest if name not in NATIVE]
        return tuple(name for name in others if any(name in node.resources for node in self._nodes))

    @cached_property
    def _of_group(self) -> Mapping[int, list[Node]]:
        nodes: dict[int, list[Node]] = defaultdict(list)
        for node in self._nodes:
            nodes[self._node_index.groups[node.name]].append(node)
        return nodes

    @cached_property
    def _own(self) -> Mapping[str, list[Worker]]:
        """The workers of our jobs, by machine."""
        own: dict[str, list[Worker]] = defaultdict(list)
        without_gpus = {job.key for job in self._jobs if not job.terms.gpus_per_worker}
        for worker in self._workers:  # tens of thousands
            if worker.job is not None and worker.node is not None and (worker.gpus or worker.job in without_gpus):
                own[worker.node].append(worker)  # a pod that has ended holds nothing
        for node in [name for name in own if name != host_of(name)]:
            own[host_of(node)] += own.pop(node)
        return own

    def can_run_short(self, node: str) -> bool:
        """Return whether workers that fit on the GPUs of `node` could request more than it has of another resource."""
        return self.left_on(node) is not None

    def change(self, node: str, requests: Amounts, now: int, later: int) -> None:
        """Add `now` and `later` times `requests` to the amounts left now and later."""
        left = self.left_on(node)
        if left is not None:
            add(left[0], requests, now)
            add(left[1], requests, later)

    def fits(self, node: str, requests: Amounts, *, now: bool, more: Amounts = ()) -> int:
        """Return how often `requests` fit on `node` later, and with `now` also at this moment, GPUs not counted.

        `more` is added to the amounts left later.
        """
        left = self.left_on(node)
        if left is None:
            return UNLIMITED
        later = left[1]
        if more:
            later = dict(later)
            add(later, more, 1)
        most = times(later, requests)
        return min(most, times(left[0], requests)) if now and most else most

    def could_hold(
        self, groups: Iterable[int], requests: Amounts, gpus: int, workers: int, others: Mapping[str, int] | None
    ) -> bool:
        """Return whether `workers` of `gpus` would fit on nodes of `groups` if all our jobs had ended.

        `others` are the GPUs held by foreign pods, by node; None: these had ended as well.
        """
        key = (tuple(groups), requests, gpus, workers, others is None)
        if key not in self._answers:
            nodes = (node for group in key[0] for node in self._of_group.get(group, ()))
            counts = (self._times_when_empty(node, requests, gpus, others) for node in nodes)
            self._answers[key] = any(fitting >= workers for fitting in accumulate(counts))
        return self._answers[key]

    def left_on(self, node_name: str) -> tuple[_Left, _Left] | None:
        """Return the amounts left on a node now and later; None where nothing can run short."""
        known = self.known.get(node_name, UNKNOWN)
        if known is not UNKNOWN:
            return known
        name = host_of(node_name)
        if name not in self._left:
            node, offered = self._all[self._node_index.places[node_name]], self._node_index.machines[name]
            if self._has_enough(node, offered):
                self._left[name] = None
            else:
                unused = self._unused(node)
                self._left[name] = now, later = unused, dict(unused)
                for worker in self._own.get(name, ()):
                    requests = self._requests.get(worker.job or "", ())
                    add(now, requests, -1)
                    add(later, requests, 0 if worker.name in self._leaving else -1)
        left = self.known[node_name] = self._left[name]
        return left

    def _has_enough(self, node: Node, offered: int) -> bool:
        """Return whether `node` has more of everything than workers on `offered` GPUs can request."""
        used, greatest = node.used, self._greatest
        if self._special and node.resources and any(name not in node.resources for name in self._special):
            return False
        for resource, amount in node.resources.items():
            if not amount - used.get(resource, 0) >= offered * greatest.get(resource, 0.0):  # may be NaN with 0 GPUs
                return False
        return True

    def _whole(self, node: Node) -> _Left:
        """Return the total amounts of `node`."""
        special = dict.fromkeys(self._special, 0) if node.resources else {}
        return {**special, **node.resources}

    def _unused(self, node: Node) -> _Left:
        """Return the amounts of `node` that are available to workers."""
        return {name: amount - node.used.get(name, 0) for name, amount in self._whole(node).items()}

    def _times_when_empty(self, node: Node, requests: Amounts, gpus: int, others: Mapping[str, int] | None) -> int:
        offered = self._node_index.offers[node.name]
        if others is None:
            return max(0, min(offered // gpus, times(self._whole(node), requests)))
        return max(0, min((offered - others.get(node.name, 0)) // gpus, times(self._unused(node), requests)))


def _greatest(kinds: Iterable[tuple[Amounts, int]]) -> dict[str, float]:
    """Return the greatest request per GPU for each resource over `kinds` of requests and GPUs."""
    greatest: dict[str, float] = defaultdict(float)
    for requests, gpus in kinds:
        for name, amount in requests:
            greatest[name] = max(greatest[name], amount / gpus if gpus else float("inf") if amount else 0.0)
    return greatest


def add(left: _Left, requests: Amounts, workers: int) -> _Left:
    """Add the requests of this number of workers to `left`, and return it."""
    for name, amount in requests if workers else ():
        if name in left:
            left[name] += workers * amount
    return left


def times(left: Mapping[str, int], requests: Amounts) -> int:
    """Return how often `requests` fit into `left`, 0 or more."""
    most = UNLIMITED
    for name, amount in requests:
        if amount and name in left:
            times = left[name] // amount
            if times < most:
                if times <= 0:
                    return 0
                most = times
    return most
