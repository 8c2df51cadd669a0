"""The workers of a snapshot, sorted in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from espalier_operator.facts import Role, Worker, WorkerState
from espalier_operator.strangers import served


class Census:
    """Who is where. Workers that terminate are left out."""

    def __init__(self, workers: Collection[Worker]) -> None:
        self.bound: dict[str | None, dict[int, str]] = defaultdict(dict)
        """By job: the nodes of its live base workers that are bound to one."""
        self.extras: dict[str | None, list[Worker]] = defaultdict(list)
        """By job: its live extra workers."""
        self.foreign: list[Worker] = []
        """Pods of others that wait for GPUs."""
        self.rivals = {worker.node or worker.pinned_to for worker in workers if worker.is_rival}
        """Nodes where workers of another Espalier are, or will be."""
        self.unbound: list[Worker] = []
        """Workers that wait for the node that was chosen for them."""
        for worker in workers:
            if worker.state is not WorkerState.TERMINATING:
                if worker.pinned_to is not None and worker.node is None:
                    self.unbound.append(worker)
                if worker.role is Role.EXTRA:
                    self.extras[worker.job].append(worker)
                elif worker.role is Role.BASE:
                    if worker.node is not None:
                        self.bound[worker.job][worker.index] = worker.node
                elif worker.node is None and worker.pinned_to is None:
                    self.foreign.append(worker)
        self.foreign = served(self.foreign)
