"""GPUs and other resources of nodes, now and after all pending releases.

Each node has two figures. `now` is what can be handed out at this moment. `later` adds what terminating workers and
pending reclaims will free, and subtracts reservations of waiting jobs. Handing out takes from both figures, setting
aside from `later` only, so that reserved GPUs are not lent.

Nodes of one type that no constraint distinguishes form a group. In a group, nodes are kept in buckets by free GPUs:
finding the best fit costs the number of groups and of GPUs of a node, not the number of nodes.

All changes that a plan makes to these figures and to its reclaim requests are written to the log of its `Transaction`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from espalier_operator.cluster.free_gpus import FreeGpuIndex, Key
from espalier_operator.cluster.headroom import UNLIMITED, NodeHeadroom, ResourceVector
from espalier_operator.cluster.node_index import NodePool, node_index_of
from espalier_operator.cluster.topology import Racks
from espalier_operator.model import JobFacts, Node, Worker, WorkerRole
from espalier_operator.model.constraints import ANYWHERE, Amounts, Constraints

_FOREIGN = WorkerRole.FOREIGN


class Transaction:
    """Log of a plan's changes, to undo trials."""

    def __init__(self) -> None:
        """Start with an empty log."""
        self.log: list[tuple[Any, ...]] = []
        """Entries (number of the undo function, its arguments). A plan may write tens of thousands."""
        self._undoing: list[Callable[..., None]] = []

    def undone_by(self, undo: Callable[..., None]) -> int:
        """Register `undo` and return its number, with which the changes that it undoes must be logged."""
        self._undoing.append(undo)
        return len(self._undoing) - 1

    def mark(self) -> int:
        """Return a position for `undo`."""
        return len(self.log)

    def undo(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self.log) > mark:
            change = self.log.pop()
            self._undoing[change[0]](*change[1:])

    def end(self) -> None:
        """Commit all changes and clear the log."""
        self.log.clear()
        self._undoing.clear()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes made within the context."""
        mark = self.mark()
        try:
            yield
        finally:
            self.undo(mark)


class NodeLedger:
    """Resources of the nodes of one snapshot, and their holders.

    Nodes that are not ready or not schedulable offer nothing; GPUs announced to depart are not offered either.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        workers: Collection[Worker],
        leaving: set[str],
        constraints: Collection[Constraints] = (ANYWHERE,),
        jobs: Collection[JobFacts] = (),
        rack_label: str | None = None,
        others: Collection[Worker] = (),
        transaction: Transaction | None = None,
    ) -> None:
        """Count `workers` against `nodes`; workers named in `leaving` hold nothing `later`.

        `constraints` must contain all with which `node_pool` will be called; `jobs` own `workers`; `rack_label` is the
        node label that names the rack; `others` are waiting foreign pods; `transaction` has the log.
        """
        node_index = node_index_of(nodes, constraints, rack_label)
        self._node_classes, self._slots = node_index.node_classes, node_index.slots
        self.gpu_types = node_index.gpu_types
        """GPU types of ready nodes that are schedulable or leaving, in order of name."""
        self._group, offers = node_index.groups, node_index.offers
        requests = any(each.requests for each in constraints) or any(each.constraints.requests for each in others)
        self._headroom = NodeHeadroom(nodes, node_index, workers, leaving, jobs, others) if requests else None
        self._now = free = dict(offers)
        self._others: dict[str, int] = defaultdict(int)
        """GPUs held by foreign pods, by node."""
        given: dict[str, int] = defaultdict(int)
        """GPUs being given back, by node."""
        ended: list[Worker] = []
        for worker in workers:  # tens of thousands
            node = worker.node
            if node in free:
                if not worker.gpus:
                    ended.append(worker)
                free[node] -= worker.gpus
                if leaving and worker.name in leaving:
                    given[node] += worker.gpus
                elif worker.role is _FOREIGN:
                    self._others[node] += worker.gpus
        self._unheld = {worker.pinned_to: free[worker.pinned_to] for worker in others if worker.pinned_to in free}
        """GPUs that no pod holds on nodes chosen for foreign pods."""
        # The GPUs of an ended worker stay with its job until the end is judged, if no other worker has taken them.
        owed = {job.key: job.terms.gpus_per_worker for job in jobs} if ended else {}
        for worker in ended:
            if worker.node is not None and worker.job is not None:
                free[worker.node] -= min(max(0, free[worker.node]), owed.get(worker.job, 0))
        self._later = {**free, **{node: free[node] + gpus for node, gpus in given.items()}}
        self._without_jobs = {group: dict(sizes) for group, sizes in self._slots.items()}
        for name, held in self._others.items():
            sizes, offered = self._without_jobs[self._group[name]], offers[name]
            sizes[offered] -= 1
            sizes[offered - held] = sizes.get(offered - held, 0) + 1
        self._offers, self._hopes = FreeGpuIndex(), FreeGpuIndex()
        self._racks = Racks(node_index.racks) if node_index.racks else None
        self.transaction = transaction or Transaction()
        self._log, self._number = self.transaction.log, self.transaction.undone_by(self._revert)
        for name, later in self._later.items():
            if later > 0:  # most nodes of a cluster are full and in no bucket
                self._enter(name)

    def node_pool(self, gpu_type: str, constraints: Constraints | None) -> NodePool:
        """Return the node pool of a worker with `constraints` on GPUs of `gpu_type`; None: all nodes of the type."""
        return self._node_classes.node_pool(gpu_type, constraints)

    def without_requests(self, node_pool: NodePool) -> NodePool:
        """Return `node_pool` for a worker that needs only GPUs."""
        return self._node_classes.without_requests(node_pool)

    def is_in(self, node_pool: NodePool, node: str | None) -> bool:
        """Return whether `node` is in the node pool."""
        return node is not None and self._group.get(node) in node_pool.members

    def can_run_short(self, node: str | None) -> bool:
        """Return whether workers on the GPUs of `node` could exhaust another resource of it."""
        return self._headroom is not None and node is not None and self._headroom.can_run_short(node)

    def overdrawn(self) -> list[tuple[str, int]]:
        """Return (node, GPUs) for each node on which more GPUs are held permanently than the node will have."""
        return sorted((name, -free) for name, free in self._later.items() if free < 0)

    def could_ever_hold(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Return whether `workers` of `gpus` each would fit on empty nodes."""
        if node_pool.requests and self._headroom is not None:
            return gpus == 0 or self._headroom.could_hold(
                node_pool.groups, node_pool.requests, gpus, workers, others=None
            )
        return _holds(self._slots, node_pool, gpus, workers)

    def could_hold_without_jobs(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Return whether they would fit if all our jobs had ended and foreign pods kept theirs."""
        if node_pool.requests and self._headroom is not None:
            return gpus == 0 or self._headroom.could_hold(
                node_pool.groups, node_pool.requests, gpus, workers, self._others
            )
        return _holds(self._without_jobs, node_pool, gpus, workers)

    def nodes_with_hopes(self, node_pool: NodePool) -> Iterator[str]:
        """Yield the nodes of `node_pool` that will have free GPUs."""
        for group_gpus in self._hopes.on(node_pool):
            for bucket in group_gpus.values():
                yield from bucket

    def fits_with(self, node: str, node_pool: NodePool, gpus: int, more: ResourceVector) -> int:
        """Return the number of workers that would fit on `node` later if it had `more`."""
        workers = max(0, (self._later[node] + more.gpus) // gpus)
        if not workers or self._headroom is None or not node_pool.requests:
            return workers
        return min(workers, self._headroom.fits(node, node_pool.requests, now=False, more=more.requests))

    def opening(self, node_pool: NodePool) -> Callable[[str], tuple[int, dict[str, int] | None] | None]:
        """Return a function from a node to (later GPUs, other amounts left later; None if nothing else can run short).

        The function returns None for a node outside the node pool. It is called for thousands of nodes.
        """
        later, group, members = self._later, self._group, node_pool.members
        left_on = self._headroom.left_on if self._headroom is not None and node_pool.requests else None

        def opened(node: str) -> tuple[int, dict[str, int] | None] | None:
            if group.get(node) not in members:
                return None
            left = None if left_on is None else left_on(node)
            return later[node], None if left is None else dict(left[1])

        return opened

    def placed_since(self, mark: int) -> list[str]:
        """Return the nodes of the workers placed since `mark`, in order of placement."""
        placed = ((change[1], change[-1]) for change in self._log[mark:] if change[0] == self._number)
        return [node for node, workers in placed for _ in range(workers)]

    def _room_now(self, node: str, requests: Amounts) -> int:
        """Return the number of workers for which `node` has the non-GPU requests now, without delaying others."""
        return UNLIMITED if self._headroom is None or not requests else self._headroom.fits(node, requests, now=True)

    def _room_later(self, node: str, requests: Amounts) -> int:
        """Return the number of workers for which `node` will have the non-GPU requests."""
        return UNLIMITED if self._headroom is None or not requests else self._headroom.fits(node, requests, now=False)

    def _change(self, node: str, gpus: int, requests: Amounts, *, now: int, later: int, placed: int = 0) -> None:
        self._add(node, gpus, requests, now, later)
        self._log.append((self._number, node, gpus, requests, now, later, placed))

    def _revert(self, node: str, gpus: int, requests: Amounts, now: int, later: int, placed: int) -> None:
        """Undo `_change`."""
        if now or later:
            self._add(node, gpus, requests, -now, -later)

    def _add(self, node: str, gpus: int, requests: Amounts, now: int, later: int) -> None:
        """Add the holdings of `now` and `later` workers to the figures of `node`."""
        self._leave(node)
        self._now[node] += now * gpus
        self._later[node] += later * gpus
        self._enter(node)
        if self._headroom is not None and requests:
            self._headroom.change(node, requests, now, later)

    def _keys(self, node: str) -> tuple[Key, Key]:
        """Return the keys of `node` in `_offers` and in `_hopes`."""
        later = self._later[node]
        return (min(self._now[node], later), later), (later, later)

    def _enter(self, node: str) -> None:
        group, (offer, hope) = self._group[node], self._keys(node)
        if offer[0] > 0:
            self._offers.put(node, group, offer)
            if self._racks is not None:
                self._racks.put(node, group, offer)
        if hope[0] > 0:
            self._hopes.put(node, group, hope)

    def _leave(self, node: str) -> None:
        group, (offer, hope) = self._group[node], self._keys(node)
        if offer[0] > 0:
            self._offers.drop(node, group, offer)
            if self._racks is not None:
                self._racks.drop(node, group, offer)
        if hope[0] > 0:
            self._hopes.drop(node, group, hope)


def _holds(slots: Mapping[int, Mapping[int, int]], node_pool: NodePool, gpus: int, workers: int) -> bool:
    if gpus == 0:
        return True
    sizes = (entry for group in node_pool.groups for entry in slots.get(group, {}).items())
    return any(room >= workers for room in accumulate(count * (max(0, size) // gpus) for size, count in sizes))
