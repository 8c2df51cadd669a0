"""The workers of a snapshot, sorted in one pass, and the pods of others that the planner serves.

Served are pods that wait for GPUs, of a limited number of kinds. Each kind costs a look at all groups of nodes, and a
kind that names nodes makes groups of them. Whoever may create pods could make the planner slow with thousands of kinds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Final

from espalier_operator.model import Worker, WorkerRole, WorkerState

_BASE, _EXTRA, _GATED, _TERMINATING = WorkerRole.BASE, WorkerRole.EXTRA, WorkerState.GATED, WorkerState.TERMINATING
_JOB: Final = attrgetter("job")
MOST_KINDS: Final = 100
"""Pods of further kinds are left to kube-scheduler, which may bind them to free GPUs: none are kept or reclaimed for
them."""


class WorkerIndex:
    """Who is where. Workers that terminate are on a list of their own."""

    def __init__(self, workers: Collection[Worker]) -> None:
        self.bound: dict[str | None, dict[int, str]] = defaultdict(dict)
        """By job: the nodes of its live base workers that are bound to one."""
        self.gated: dict[str | None, set[int]] = defaultdict(set)
        """By job: its base workers that want no GPUs yet."""
        self.extras: dict[str | None, list[Worker]] = defaultdict(list)
        """By job: its live extra workers."""
        self.foreign: list[Worker] = []
        """Pods of others that wait for GPUs."""
        self.rivals: set[str | None] = set()
        """Nodes where workers of another Espalier are, or will be."""
        self.unbound: list[Worker] = []
        """Workers that wait for the node that was chosen for them."""
        self.terminating: list[Worker] = []
        self.holders: set[str | None] = set(map(_JOB, workers))
        """Jobs that have workers of any kind, and None where others have."""
        bound, extras = self.bound, self.extras
        for worker in workers:  # tens of thousands
            role, node = worker.role, worker.node
            if worker.state is _TERMINATING:
                self.terminating.append(worker)
            elif role is _BASE:
                if node is not None:
                    bound[worker.job][worker.index] = node
                elif worker.state is _GATED:
                    self.gated[worker.job].add(worker.index)
                elif worker.pinned_to is not None:
                    self.unbound.append(worker)
            elif role is _EXTRA:
                extras[worker.job].append(worker)
                if node is None and worker.pinned_to is not None:
                    self.unbound.append(worker)
            elif node is None:
                (self.foreign if worker.pinned_to is None else self.unbound).append(worker)
            if worker.is_rival:
                self.rivals.add(node or worker.pinned_to)
        self.foreign = served(self.foreign)

    def has_lost_base(self, job: str, indexes: Iterable[int]) -> bool:
        """Return whether base workers of a job have GPUs, and one that has none does not wait for its first."""
        waits = {worker.index for worker in self.unbound if worker.job == job and worker.role is _BASE}
        missing = set(indexes) - self.bound[job].keys() - self.gated[job] - waits
        return bool(self.bound[job] and missing)

    def leaving_times(self) -> Iterator[float]:
        """Yield the times from which on workers that terminate are counted on, or no more."""
        for worker in self.terminating:
            yield from (time for time in worker.leaves_between() if time < math.inf)

    def ending(self, leaving: Collection[str]) -> Counter[str | None]:
        """Return by node the GPUs of workers that terminate, of those named in `leaving`."""
        found: Counter[str | None] = Counter()
        for worker in self.terminating:
            if worker.name in leaving:
                found[worker.node] += worker.gpus
        return found


def served(pods: Iterable[Worker], most: int = MOST_KINDS) -> list[Worker]:
    """Return the `pods` (each waits for GPUs) of at most `most` kinds; all namespaces have equally many of these.

    Pods are of one kind if nothing tells them apart but their name: type of GPU, GPUs and constraints.
    """
    pods = list(pods)
    kinds: dict[str, dict[object, None]] = defaultdict(dict)  # of each namespace, in the order of its pods
    for pod in pods:
        kinds[_namespace(pod)][_kind(pod)] = None
    if sum(map(len, kinds.values())) <= most:
        return pods
    ranked = [(rank, namespace, kind) for namespace, found in sorted(kinds.items()) for rank, kind in enumerate(found)]
    ranked.sort(key=lambda each: each[:2])
    chosen = {(namespace, kind) for _, namespace, kind in ranked[:most]}
    return [pod for pod in pods if (_namespace(pod), _kind(pod)) in chosen]


def _namespace(pod: Worker) -> str:
    return pod.name.partition("/")[0]


def _kind(pod: Worker) -> object:
    return pod.gpu_type, pod.gpus, pod.constraints
