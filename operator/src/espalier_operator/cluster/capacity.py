"""Allocation of free GPUs on nodes to single workers and gangs, now or after pending releases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import Final

from espalier_operator.cluster.free_gpus import FreeGpuIndex, GroupFreeGpus, choose, largest
from espalier_operator.cluster.headroom import UNKNOWN
from espalier_operator.cluster.ledger import NodeLedger
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.cluster.topology import RackSplit
from espalier_operator.model.constraints import Amounts

_ALL: Final = 2**40
"""More GPUs than any node has or will have."""


class Supply(IntEnum):
    """The time at which requested GPUs are available."""

    NEVER = 0
    """Never, as things are. Nothing is reserved."""
    LATER = 1
    """After a pending release; the GPUs are reserved."""
    NOW = 2
    """Now; the GPUs are handed out."""


Swap = Callable[[str, Amounts], bool | None]
"""Function of a node and of the requests given back there with the GPUs. Returns whether the swap leaves nothing over;
None: there is no room, and nothing was done."""


class Capacity(NodeLedger):
    """Hands out the GPUs of one snapshot, and reserves them for waiting jobs."""

    def take(self, node_pool: NodePool, gpus: int, near: Collection[str] = ()) -> str | None:
        """Hand out `gpus` (> 0) of one node; return the node, or None if no node has them.

        Nodes of `near` come first, then nodes of their racks, then of their zones; the fullest of several is taken.
        """
        if near and self._offers.has(node_pool, gpus):
            own = self._fullest(near, node_pool, gpus)
            if own is not None:
                self._change(own, gpus, node_pool.requests, now=-1, later=-1, placed=1)
                return own
            close = None if self._racks is None else self._racks.nearest(node_pool, gpus, near, self._room_now)
            if close is not None:
                self._change(close, gpus, node_pool.requests, now=-1, later=-1, placed=1)
                return close
        return self._place(self._offers, node_pool, gpus, now=-1, later=-1)

    def take_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Hand out `gpus` (> 0) for each of `workers`, or nothing; return whether they were handed out.

        The gang gets few racks (`topology.RackSplit`), the fewest nodes within these, and the fullest of such nodes.
        """
        if self._offers.count(node_pool, gpus, workers) < workers:
            return False
        if self._racks is None:
            return self._fill(self._offers, node_pool, gpus, workers)
        most = largest(self._offers.on(node_pool), gpus, node_pool.requests, self._room_now)
        if most == 0:
            return False
        split = RackSplit(self._racks, node_pool, gpus, self._room_now, most)
        rack = split.one_for_all(workers)
        if rack is not None:
            return self._fill(self._racks.free_groups(node_pool, [rack]), node_pool, gpus, workers)
        parts = split.several(workers)
        for rack, part in parts:
            self._fill(self._racks.free_groups(node_pool, [rack]), node_pool, gpus, part)
        return bool(parts)

    def has_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Return whether `take_gang` would hand out `gpus` (> 0) to each of `workers` that need only GPUs."""
        return self._offers.count(node_pool, gpus, workers) >= workers

    def set_aside(self, node_pool: NodePool, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node for a waiting worker; return the node, None where none will have them."""
        return self._place(self._hopes, node_pool, gpus, now=0, later=-1)

    def keep_some(self, node_pool: NodePool, gpus: int, workers: int) -> tuple[Supply, int] | None:
        """Reserve `gpus` (> 0) of one node for each of as many of `workers` as fit there, free GPUs first.

        Return when the GPUs are available and for how many workers; None where no node will have room for one.
        """
        for supply, free_index, now in ((Supply.NOW, self._offers, -1), (Supply.LATER, self._hopes, 0)):
            if self._place(free_index, node_pool, gpus, now=now, later=-1, workers=workers) is not None:
                return supply, self._log[-1][-1]
        return None

    def hold(self, node_pool: NodePool, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node: free ones if there are any, otherwise ones that are being given back."""
        return self.take(node_pool, gpus) or self.set_aside(node_pool, gpus)

    def hold_at(self, node_pool: NodePool, node: str | None, gpus: int, *, stays: bool = True) -> Supply:
        """Reserve `gpus` (> 0) of `node` for a worker that must run there; NEVER where the node will not have them.

        A worker that does not stay holds them until it gives them back.
        """
        if node is None or not self.is_in(node_pool, node):
            return Supply.NEVER
        now, later = self._now[node], self._later[node]
        if min(now, later) >= gpus and self._room_now(node, node_pool.requests):
            self._change(node, gpus, node_pool.requests, now=-1, later=-1 if stays else 0, placed=1)
            return Supply.NOW
        if stays and later >= gpus and self._room_later(node, node_pool.requests):
            self._change(node, gpus, node_pool.requests, now=0, later=-1, placed=1)
            return Supply.LATER
        return Supply.NEVER

    def swapping(self, node_pool: NodePool, gpus: int) -> Swap:
        """Return a function that replaces a worker that gives back `gpus` (> 0) by one of `node_pool` with as many.

        It does so only where the node is in `node_pool`, has no other GPUs to give, and has room for the requests of
        the new worker.
        """
        now, later, group = self._now, self._later, self._group
        members, requests = node_pool.members, node_pool.requests
        headroom, add, number = self._headroom, self._log.append, self._number
        known = {} if headroom is None else headroom.known

        def swap(node: str, given: Amounts) -> bool | None:
            if later.get(node) != 0 or now[node] >= gpus or group[node] not in members:  # not indexed, and stays so
                return None
            if headroom is not None and known.get(node, UNKNOWN) is not None and headroom.can_run_short(node):
                if not headroom.fits(node, requests, now=False, more=given):
                    return None
                if given != requests:
                    for each, more, placed in ((given, 1, 0), (requests, -1, 1)):
                        headroom.change(node, each, 0, more)
                        add((number, node, gpus, each, 0, more, placed))
                    return False
            add((number, node, gpus, requests, 0, 0, 1))
            return True

        return swap

    def exchange(self, node_pool: NodePool, node: str, gpus: int, requests: Amounts) -> Supply:
        """Combine `expect` of a worker's `gpus` and `requests` with `hold_at` of as many GPUs for one of `node_pool`.

        Nothing given back may be left over, and the new worker must be known to fit later.
        """
        if self._later[node] == 0 and self._now[node] < gpus:  # not indexed before or after
            self._log.append((self._number, node, gpus, node_pool.requests, 0, 0, 1))
            return Supply.LATER
        self.expect(node, gpus, requests)
        return self.hold_at(node_pool, node, gpus)

    def reserve(self, node: str | None, gpus: int, requests: Amounts = (), *, ending: int = 0) -> Supply:
        """Count `gpus` (> 0) of `node` as held by a foreign pod that may be bound there, if the node has enough.

        `ending` is the number of GPUs that become free once terminating pods there are gone. Where GPUs are free now
        but partly kept for unbound workers of ours, kube-scheduler decides, and until then the rest is not handed out.
        """
        if node is None or node not in self._group:
            return Supply.NEVER
        now, later, unheld = self._now[node], self._later[node], self._unheld.get(node, 0)
        self._unheld[node] = unheld - gpus if unheld >= gpus else unheld
        if min(now, later) >= gpus and self._room_now(node, requests):
            self._change(node, gpus, requests, now=-1, later=-1)
            return Supply.NOW
        if min(now + ending, later) >= gpus and self._room_later(node, requests):
            self._change(node, gpus, requests, now=0, later=-1)
            return Supply.LATER
        if unheld >= gpus and min(now, later) > 0 and self._room_now(node, requests):
            self._change(node, min(now, later), (), now=-1, later=-1)
        return Supply.NEVER

    def close_off(self, node_pools: Iterable[NodePool], gpus: int, most: int) -> list[tuple[NodePool, str]]:
        """Make at most `most` nodes of `node_pools` that have `gpus` (> 0) now offer nothing; return them."""
        closed: list[tuple[NodePool, str]] = []
        for node_pool in node_pools:
            while len(closed) < most:
                chosen = self._offers.choose(node_pool, gpus, node_pool.requests, self._room_now)
                if chosen is None:
                    break
                self._change(chosen[0], _ALL, (), now=-1, later=-1)
                closed.append((node_pool, chosen[0]))
        return closed

    def reopen(self, closed: Iterable[tuple[NodePool, str]]) -> None:
        """Restore the offers of nodes that were closed off."""
        for _, node in closed:
            self._change(node, _ALL, (), now=1, later=1)

    def take_at(self, node_pool: NodePool, node: str, gpus: int) -> bool:
        """Hand out `gpus` (> 0) of `node`; return whether it is in the node pool and has them now."""
        mark = self.transaction.mark()
        has = self.hold_at(node_pool, node, gpus) is Supply.NOW
        if not has:
            self.transaction.undo(mark)
        return has

    def occupy(self, node_pool: NodePool, gpus: int) -> str | None:
        """Count `gpus` (> 0) of one node as held until they are given back; return it, None where no node has them."""
        return self._place(self._offers, node_pool, gpus, now=-1, later=0)

    def expect(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Record that `gpus` and `requests` will be given back on `node`."""
        if node is not None and node in self._group:
            self._change(node, gpus, requests, now=0, later=1)

    def withdraw(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Undo `expect`."""
        if node is not None and node in self._group:
            self._change(node, gpus, requests, now=0, later=-1)

    def _fill(
        self, free_index: FreeGpuIndex | Sequence[GroupFreeGpus], node_pool: NodePool, gpus: int, workers: int
    ) -> bool:
        """Hand out GPUs of nodes in `free_index` for all of `workers`, or nothing; return whether it was done."""
        mark = self.transaction.mark()
        while workers > 0:
            if self._place(free_index, node_pool, gpus, now=-1, later=-1, workers=workers) is None:
                self.transaction.undo(mark)
                return False
            workers -= self._log[-1][-1]
        return True

    def _place(
        self,
        free_index: FreeGpuIndex | Sequence[GroupFreeGpus],
        node_pool: NodePool,
        gpus: int,
        *,
        now: int,
        later: int,
        workers: int = 1,
    ) -> str | None:
        """Place the first of `workers` and all others that go to the same node; return the node."""
        room = self._room_now if now else self._room_later
        if isinstance(free_index, FreeGpuIndex):
            chosen = free_index.choose(node_pool, gpus, node_pool.requests, room, workers)
        else:
            chosen = choose(free_index, gpus, node_pool.requests, room, workers)
        if chosen is None:
            return None
        node, placed = chosen
        self._change(node, gpus, node_pool.requests, now=now * placed, later=later * placed, placed=placed)
        return node

    def _fullest(self, nodes: Iterable[str], node_pool: NodePool, gpus: int) -> str | None:
        """Return the fullest of `nodes` that has `gpus` and room for a worker now."""
        now, later, group, members = self._now, self._later, self._group, node_pool.members
        # Most of them are full, or not in the node pool.
        known = [node for node in nodes if group.get(node) in members and now[node] >= gpus and later[node] >= gpus]
        fitting = sorted((min(now[node], later[node]), node) for node in known)
        return next((node for _, node in fitting if self._room_now(node, node_pool.requests)), None)
