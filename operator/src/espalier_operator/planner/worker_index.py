"""The workers of a snapshot, sorted in one pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Final

from espalier_operator.cluster.foreign_pods import served
from espalier_operator.model import Role, Worker, WorkerState

_BASE, _EXTRA, _GATED, _TERMINATING = Role.BASE, Role.EXTRA, WorkerState.GATED, WorkerState.TERMINATING
_JOB: Final = attrgetter("job")


class Census:
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

    def ending(self, leaving: Collection[str]) -> Counter[str | None]:
        """Return by node the GPUs of workers that terminate, of those named in `leaving`."""
        found: Counter[str | None] = Counter()
        for worker in self.terminating:
            if worker.name in leaving:
                found[worker.node] += worker.gpus
        return found
