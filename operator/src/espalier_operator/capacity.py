"""Where GPUs are free, now and once everything that is leaving has left.

Each node has two figures. `now` is what can be handed out this moment. `later` adds what terminating workers and
standing reclaims will free, and subtracts what is set aside for those who wait for exactly that. Handing out
takes from both, setting aside from `later` only, so nobody is lent what somebody waits for.

Nodes of one type that no constraint tells apart form a group. In a group, nodes are kept in buckets by free GPUs:
finding the best fit costs the number of groups and of GPUs of a node, not the number of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate

from espalier_operator.buckets import Key, Shelf, Shelves, choose, largest
from espalier_operator.constraints import ANYWHERE, Amounts, Constraints
from espalier_operator.facts import JobFacts, Node, Role, Worker
from espalier_operator.goods import Goods
from espalier_operator.rooms import UNLIMITED, Rooms
from espalier_operator.sites import Grouping, Site
from espalier_operator.topology import Racks, Split, racks_of


class Supply(IntEnum):
    """When the requested GPUs are available."""

    NEVER = 0
    """Never, as things are. Nothing is reserved."""
    LATER = 1
    """After a pending release; the GPUs are reserved."""
    NOW = 2
    """Now; the GPUs are handed out."""


_FOREIGN = Role.FOREIGN
_Change = tuple[str, int, Amounts, int, int, int]
"""One entry of the journal, of which a plan may write tens of thousands: a node, the GPUs of a worker, what else a
worker requests, by how many workers' GPUs the node has more now and later, and how many workers were placed by it."""


class Capacity:
    """The free GPUs of one snapshot, with a journal to undo what was only tried.

    Nodes that are not ready or not schedulable offer nothing; GPUs announced to depart are not offered either.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        workers: Collection[Worker],
        leaving: set[str],
        constraints: Collection[Constraints] = (ANYWHERE,),
        jobs: Collection[JobFacts] = (),
        rack_label: str | None = None,
        others: Collection[Worker] = (),
    ) -> None:
        """Count `workers` against `nodes`; those named in `leaving` do not hold anything `later`.

        `constraints` are all that `site` will be asked for; `jobs` are those of `workers`; `rack_label` is the label of
        nodes that names their rack; `others` are pods of others that wait.
        """
        self._grouping = grouping = Grouping(constraints)
        requests = any(each.requests for each in constraints) or any(each.constraints.requests for each in others)
        usable = [node for node in nodes if node.ready and (node.schedulable or node.is_leaving)]
        self._group = groups = {node.name: grouping.group_of(node) for node in usable}
        offers = {node.name: node.allocatable - node.departing for node in usable}
        self._rooms = Rooms(usable, groups, offers, workers, leaving, jobs, others) if requests else None
        self._slots: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for group, offered in zip(groups.values(), offers.values(), strict=True):
            self._slots[group][offered] += 1
        self._now = free = dict(offers)
        self._others: dict[str, int] = defaultdict(int)
        """GPUs that pods of others hold, by node."""
        given: dict[str, int] = defaultdict(int)
        """GPUs that are given back, by node."""
        for worker in workers:  # tens of thousands
            node = worker.node
            if node in free:
                free[node] -= worker.gpus
                if leaving and worker.name in leaving:
                    given[node] += worker.gpus
                elif worker.role is _FOREIGN:
                    self._others[node] += worker.gpus
        self._later = {**free, **{node: free[node] + gpus for node, gpus in given.items()}}
        self._without_jobs = {group: dict(sizes) for group, sizes in self._slots.items()}
        for name, held in self._others.items():
            sizes, offered = self._without_jobs[self._group[name]], offers[name]
            sizes[offered] -= 1
            sizes[offered - held] = sizes.get(offered - held, 0) + 1
        self._offers, self._hopes = Shelves(), Shelves()
        racks = racks_of(usable, rack_label)
        self._racks = Racks(racks) if racks else None
        self._journal: list[_Change] = []
        for name, later in self._later.items():
            if later > 0:  # most nodes of a cluster are full, and have no place in any bucket
                self._enter(name)

    @property
    def gpu_types(self) -> list[str]:
        """The types that ready, schedulable nodes have, in order of name."""
        return self._grouping.gpu_types

    def site(self, gpu_type: str, constraints: Constraints | None) -> Site:
        """Return where a worker with `constraints` may run on GPUs of `gpu_type`; None: all nodes of the type."""
        return self._grouping.site(gpu_type, constraints)

    def without_requests(self, site: Site) -> Site:
        """Return `site` for a worker that needs nothing but GPUs."""
        return self._grouping.without_requests(site)

    def is_in(self, site: Site, node: str | None) -> bool:
        """Return whether `node` is one of the site's."""
        return node is not None and self._group.get(node) in site.members

    def can_run_short(self, node: str | None) -> bool:
        """Return whether workers on the GPUs of `node` could use up another resource of it."""
        return self._rooms is not None and node is not None and self._rooms.can_run_short(node)

    def overdrawn(self) -> list[tuple[str, int]]:
        """Return (node, GPUs) for each node on which more GPUs are held permanently than the node will have."""
        return sorted((name, -free) for name, free in self._later.items() if free < 0)

    def could_ever_hold(self, site: Site, gpus: int, workers: int) -> bool:
        """Return whether `workers` of `gpus` each would fit on empty nodes."""
        if site.requests and self._rooms is not None:
            return gpus == 0 or self._rooms.could_hold(site.groups, site.requests, gpus, workers, others=None)
        return _holds(self._slots, site, gpus, workers)

    def could_hold_without_jobs(self, site: Site, gpus: int, workers: int) -> bool:
        """Return whether they would fit if all our jobs had ended, and what others hold were held."""
        if site.requests and self._rooms is not None:
            return gpus == 0 or self._rooms.could_hold(site.groups, site.requests, gpus, workers, self._others)
        return _holds(self._without_jobs, site, gpus, workers)

    def take(self, site: Site, gpus: int, near: Collection[str] = ()) -> str | None:
        """Hand out `gpus` (> 0) of one node; return the node, None if there is none.

        A node of `near` has precedence, then one of their racks, then one of their zones; of several the fullest.
        """
        if near and self._offers.has(site, gpus):
            own = self._fullest(near, site, gpus)
            if own is not None:
                self._change(own, gpus, site.requests, now=-1, later=-1, placed=1)
                return own
            for shelves in self._racks.close(site, near) if self._racks is not None else ():
                node = self._place(shelves, site, gpus, now=-1, later=-1)
                if node is not None:
                    return node
        return self._place(self._offers, site, gpus, now=-1, later=-1)

    def take_gang(self, site: Site, gpus: int, workers: int) -> bool:
        """Hand out `gpus` (> 0) for each of `workers`, or nothing; return whether they were.

        The gang gets few racks (`topology.Split`), of these the fewest nodes, and of these the fullest.
        """
        if self._offers.count(site, gpus, workers) < workers:
            return False
        if self._racks is None:
            return self._fill(self._offers, site, gpus, workers)
        most = largest(self._offers.on(site), gpus, site.requests, self._room_now)
        if most == 0:
            return False
        split = Split(self._racks, site, gpus, self._room_now, most)
        rack = split.one_for_all(workers)
        if rack is not None:
            return self._fill(self._racks.shelves(site, [rack]), site, gpus, workers)
        mark = self.mark()
        if not self._fill(self._offers, site, gpus, workers):
            return False
        self.undo(mark)
        for rack, part in split.several(workers):
            self._fill(self._racks.shelves(site, [rack]), site, gpus, part)
        return True

    def has_gang(self, site: Site, gpus: int, workers: int) -> bool:
        """Return whether `take_gang` would hand out `gpus` (> 0) for each of `workers` that need nothing else."""
        return self._offers.count(site, gpus, workers) >= workers

    def set_aside(self, site: Site, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node for a waiting worker; None where no node will have them."""
        return self._place(self._hopes, site, gpus, now=0, later=-1)

    def keep_some(self, site: Site, gpus: int, workers: int) -> tuple[Supply, int] | None:
        """Reserve `gpus` (> 0) of one node for each of as many of `workers` as it can take: free ones if there are.

        Return when they have them, and how many; None where no node will have room for one.
        """
        for supply, shelves, now in ((Supply.NOW, self._offers, -1), (Supply.LATER, self._hopes, 0)):
            if self._place(shelves, site, gpus, now=now, later=-1, workers=workers) is not None:
                return supply, self._journal[-1][-1]
        return None

    def hold(self, site: Site, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node: free ones if there are, otherwise some that are being given back."""
        return self.take(site, gpus) or self.set_aside(site, gpus)

    def hold_at(self, site: Site, node: str | None, gpus: int, *, stays: bool = True) -> Supply:
        """Reserve `gpus` (> 0) of `node` for a worker that is bound to be there; NEVER where it will not have them.

        One that does not stay counts as there until it gives its GPUs back.
        """
        if node is None or not self.is_in(site, node):
            return Supply.NEVER
        now, later = self._now[node], self._later[node]
        if min(now, later) >= gpus and self._room_now(node, site.requests):
            self._change(node, gpus, site.requests, now=-1, later=-1 if stays else 0, placed=1)
            return Supply.NOW
        if stays and later >= gpus and self._room_later(node, site.requests):
            self._change(node, gpus, site.requests, now=0, later=-1, placed=1)
            return Supply.LATER
        return Supply.NEVER

    def swapping(self, site: Site, gpus: int) -> Callable[[str], bool]:
        """Return what does `exchange` on a node where one worker of `gpus` (> 0) replaces another, and nothing else.

        It returns whether that is so: the node is of `site`, has no other GPUs to give, and nothing runs short on it.
        """
        now, later, group, members, requests = self._now, self._later, self._group, site.members, site.requests
        can_run_short = None if self._rooms is None else self._rooms.can_run_short
        add = self._journal.append

        def swap(node: str) -> bool:
            if later.get(node) != 0 or now[node] >= gpus or group[node] not in members:
                return False
            if can_run_short is not None and can_run_short(node):
                return False
            add((node, gpus, requests, 0, 0, 1))
            return True

        return swap

    def exchange(self, site: Site, node: str, gpus: int, requests: Amounts) -> Supply:
        """Do what `expect` of a worker's `gpus` and `requests` does, and `hold_at` of as many GPUs for one of `site`.

        Nothing is left of what is given back. It must be known that the worker fits later.
        """
        if self._later[node] == 0 and self._now[node] < gpus:  # on no shelf before or after
            self._journal.append((node, gpus, site.requests, 0, 0, 1))
            return Supply.LATER
        self.expect(node, gpus, requests)
        return self.hold_at(site, node, gpus)

    def reserve(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Count `gpus` (> 0) of `node` as held by a pod of others that may be bound there; not if it has too little."""
        if node is None or node not in self._group or min(self._now[node], self._later[node]) < gpus:
            return
        if self._room_now(node, requests):
            self._change(node, gpus, requests, now=-1, later=-1)

    def take_at(self, site: Site, node: str, gpus: int) -> bool:
        """Hand out `gpus` (> 0) of `node`; return whether it is one of the site's and has them now."""
        mark = self.mark()
        has = self.hold_at(site, node, gpus) is Supply.NOW
        if not has:
            self.undo(mark)
        return has

    def occupy(self, site: Site, gpus: int) -> str | None:
        """Count `gpus` (> 0) of one node as held until they are given back; None where none are free."""
        return self._place(self._offers, site, gpus, now=-1, later=0)

    def expect(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Expect that `gpus` and what belongs to `requests` will be given back on `node`."""
        if node is not None and node in self._group:
            self._change(node, gpus, requests, now=0, later=1)

    def withdraw(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Expect that no more."""
        if node is not None and node in self._group:
            self._change(node, gpus, requests, now=0, later=-1)

    def nodes_with_hopes(self, site: Site) -> Iterator[str]:
        """Yield the nodes of `site` that will have free GPUs."""
        for shelf in self._hopes.on(site):
            for bucket in shelf.values():
                yield from bucket

    def fits_with(self, node: str, site: Site, gpus: int, more: Goods) -> int:
        """Return for how many workers `node` would have room later if it had `more`."""
        workers = max(0, (self._later[node] + more.gpus) // gpus)
        if not workers or self._rooms is None or not site.requests:
            return workers
        return min(workers, self._rooms.fits(node, site.requests, now=False, more=more.requests))

    def placed_since(self, mark: int) -> list[str]:
        """Return the nodes of the workers that were placed since `mark`, in their order."""
        return [node for node, *_, placed in self._journal[mark:] for _ in range(placed)]

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._journal) > mark:
            node, gpus, requests, now, later, _ = self._journal.pop()
            self._add(node, gpus, requests, -now, -later)

    def _fill(self, shelves: Shelves | Sequence[Shelf], site: Site, gpus: int, workers: int) -> bool:
        """Hand out GPUs of nodes on `shelves` for all of `workers`, or nothing; return whether they were."""
        mark = self.mark()
        while workers > 0:
            if self._place(shelves, site, gpus, now=-1, later=-1, workers=workers) is None:
                self.undo(mark)
                return False
            workers -= self._journal[-1][-1]
        return True

    def _place(
        self,
        shelves: Shelves | Sequence[Shelf],
        site: Site,
        gpus: int,
        *,
        now: int,
        later: int,
        workers: int = 1,
    ) -> str | None:
        """Place the first of `workers`, and all that go to the same node; return the node."""
        room = self._room_now if now else self._room_later
        if isinstance(shelves, Shelves):
            chosen = shelves.choose(site, gpus, site.requests, room, workers)
        else:
            chosen = choose(shelves, gpus, site.requests, room, workers)
        if chosen is None:
            return None
        node, placed = chosen
        self._change(node, gpus, site.requests, now=now * placed, later=later * placed, placed=placed)
        return node

    def _fullest(self, nodes: Iterable[str], site: Site, gpus: int) -> str | None:
        """Return the fullest of `nodes` that has `gpus` and room for a worker now."""
        known = ((min(self._now[node], self._later[node]), node) for node in nodes if node in self._now)
        fitting = (node for free, node in sorted(known) if free >= gpus and self.is_in(site, node))
        return next((node for node in fitting if self._room_now(node, site.requests)), None)

    def _room_now(self, node: str, requests: Amounts) -> int:
        """Return for how many workers `node` has what they request in addition to GPUs, without delaying others."""
        return UNLIMITED if self._rooms is None or not requests else self._rooms.fits(node, requests, now=True)

    def _room_later(self, node: str, requests: Amounts) -> int:
        """Return for how many workers `node` will have what they request in addition to GPUs."""
        return UNLIMITED if self._rooms is None or not requests else self._rooms.fits(node, requests, now=False)

    def _change(self, node: str, gpus: int, requests: Amounts, *, now: int, later: int, placed: int = 0) -> None:
        self._add(node, gpus, requests, now, later)
        self._journal.append((node, gpus, requests, now, later, placed))

    def _add(self, node: str, gpus: int, requests: Amounts, now: int, later: int) -> None:
        """Add what this number of workers holds to what `node` has now and later."""
        self._leave(node)
        self._now[node] += now * gpus
        self._later[node] += later * gpus
        self._enter(node)
        if self._rooms is not None and requests:
            self._rooms.change(node, requests, now, later)

    def _keys(self, node: str) -> tuple[Key, Key]:
        """Return where `node` is among the offers and among the hopes."""
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


def _holds(slots: Mapping[int, Mapping[int, int]], site: Site, gpus: int, workers: int) -> bool:
    if gpus == 0:
        return True
    sizes = (entry for group in site.groups for entry in slots.get(group, {}).items())
    return any(room >= workers for room in accumulate(count * (max(0, size) // gpus) for size, count in sizes))
