"""Where GPUs are free, now and once everything that is leaving has left.

Each node has two figures. `now` is what can be handed out this moment. `later` adds what terminating workers and
standing reclaims will free, and subtracts what is set aside for those who wait for exactly that. Handing out
takes from both, setting aside from `later` only, so nobody is lent what somebody waits for. Nodes are kept in
buckets by free GPUs: finding the best fit costs the number of GPUs of a node, not the number of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum

from espalier_operator.facts import JobFacts, Node, Promise, Role, Worker, WorkerState


class Supply(IntEnum):
    """When the requested GPUs are available."""

    NEVER = 0
    """Never, as things are. Nothing is reserved."""
    LATER = 1
    """After a pending release; the GPUs are reserved."""
    NOW = 2
    """Now; the GPUs are handed out."""


_Buckets = dict[tuple[int, int], dict[str, None]]
"""Nodes by (free GPUs, GPUs free later): of nodes that fit equally well, the one with the poorer future is used."""


class Capacity:
    """The free GPUs of one snapshot, with a journal to undo what was only tried.

    Nodes that are not ready or not schedulable offer nothing; GPUs announced to depart are not offered either.
    """

    def __init__(self, nodes: Iterable[Node], workers: Iterable[Worker], leaving: set[str]) -> None:
        """Count `workers` against `nodes`; those named in `leaving` do not hold anything `later`."""
        self._type: dict[str, str] = {}
        self._now: dict[str, int] = {}
        self._later: dict[str, int] = {}
        self._slots: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for node in nodes:
            if node.ready and node.schedulable:
                offered = node.allocatable - node.departing
                self._type[node.name] = node.gpu_type
                self._now[node.name] = self._later[node.name] = offered
                self._slots[node.gpu_type][offered] += 1
        for worker in workers:
            if worker.node in self._type:
                self._now[worker.node] -= worker.gpus
                if worker.name not in leaving:
                    self._later[worker.node] -= worker.gpus
        self._offers: dict[str, _Buckets] = defaultdict(dict)
        self._hopes: dict[str, _Buckets] = defaultdict(dict)
        self._journal: list[tuple[str, int, int]] = []
        for name, later in self._later.items():
            if later > 0:  # most nodes of a cluster are full, and have no place in any bucket
                self._enter(name)

    @property
    def gpu_types(self) -> list[str]:
        """The types that ready, schedulable nodes have, in order of name."""
        return sorted(self._slots)

    def overdrawn(self) -> list[tuple[str, int]]:
        """Return (node, GPUs) for each node on which more GPUs are held permanently than the node will have."""
        return sorted((name, -free) for name, free in self._later.items() if free < 0)

    def could_ever_hold(self, gpu_type: str, gpus: int, workers: int) -> bool:
        """Return whether `workers` of `gpus` each would fit on empty nodes."""
        return gpus == 0 or sum(count * (size // gpus) for size, count in self._slots[gpu_type].items()) >= workers

    def take(self, gpu_type: str, gpus: int) -> str | None:
        """Hand out `gpus` (> 0) on the fullest node that has them; return the node, None if there is none."""
        return self._place(self._offers[gpu_type], gpus, now=-gpus, later=-gpus)

    def set_aside(self, gpu_type: str, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node for a waiting worker; None where no node will have them."""
        return self._place(self._hopes[gpu_type], gpus, now=0, later=-gpus)

    def hold(self, gpu_type: str, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node: free ones if there are, otherwise some that are being given back."""
        return self.take(gpu_type, gpus) or self.set_aside(gpu_type, gpus)

    def occupy(self, gpu_type: str, gpus: int) -> str | None:
        """Count `gpus` (> 0) of one node as held until they are given back; None where none are free."""
        return self._place(self._offers[gpu_type], gpus, now=-gpus, later=0)

    def expect(self, node: str | None, gpus: int) -> None:
        """Expect that `gpus` will be given back on `node`; a negative number withdraws the expectation."""
        if node is not None and node in self._type:
            self._change(node, 0, gpus)

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._journal) > mark:
            node, now, later = self._journal.pop()
            self._leave(node)
            self._now[node] -= now
            self._later[node] -= later
            self._enter(node)

    def _place(self, buckets: _Buckets, gpus: int, now: int, later: int) -> str | None:
        best = min((key for key in buckets if key[0] >= gpus), default=None)
        if best is None:
            return None
        node = next(iter(buckets[best]))
        self._change(node, now, later)
        return node

    def _change(self, node: str, now: int, later: int) -> None:
        self._leave(node)
        self._now[node] += now
        self._later[node] += later
        self._enter(node)
        self._journal.append((node, now, later))

    def _places(self, node: str) -> tuple[tuple[_Buckets, tuple[int, int]], tuple[_Buckets, tuple[int, int]]]:
        gpu_type, later = self._type[node], self._later[node]
        offer = min(self._now[node], later)
        return (self._offers[gpu_type], (offer, later)), (self._hopes[gpu_type], (later, later))

    def _enter(self, node: str) -> None:
        for buckets, key in self._places(node):
            if key[0] > 0:
                buckets.setdefault(key, {})[node] = None

    def _leave(self, node: str) -> None:
        for buckets, key in self._places(node):
            if key[0] > 0:
                del buckets[key][node]
                if not buckets[key]:
                    del buckets[key]


def hold_promised(
    capacity: Capacity, job: JobFacts, promise: Promise | None, seen: Sequence[Worker], kept: int, now: float
) -> list[Worker]:
    """Keep GPUs in `capacity` for what `job` was granted and is not bound; return that as workers of where it will be.

    Those are the unbound ones of `seen` (the job's live extra workers), and while `promise` holds those that are not
    to be seen at all. Workers from index `kept` up are being given back: they are counted until they are gone, and
    are not in the answer. Where there is no room for one it is left to be bound, or its promise to expire.
    """
    bound = {worker.index for worker in seen if worker.node is not None}
    due = job.extra if promise is not None and now < promise.expires_at else len(seen)
    unbound = [index for index in range(job.extra) if index not in bound][: max(0, due - len(bound))]
    promised = []
    for index in unbound:
        keep = capacity.hold if index < kept else capacity.occupy
        node = keep(job.gpu_type or "", job.terms.gpus_per_worker)
        if node is not None and index < kept:
            promised.append(
                Worker(
                    name=f"{job.key} extra {index}, promised",
                    job=job.key,
                    role=Role.EXTRA,
                    index=index,
                    node=node,
                    gpus=job.terms.gpus_per_worker,
                    state=WorkerState.PENDING,
                )
            )
    return promised
