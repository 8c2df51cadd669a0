"""Where GPUs are free, now and once everything that is leaving has left.

Each node has two figures. `now` is what can be handed out this moment. `later` adds what terminating workers and
standing reclaims will free, and subtracts what is set aside for those who wait for exactly that. Handing out
takes from both, setting aside from `later` only, so nobody is lent what somebody waits for.

Nodes of one type that no constraint tells apart form a group. In a group, nodes are kept in buckets by free GPUs:
finding the best fit costs the number of groups and of GPUs of a node, not the number of nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from espalier_operator.buckets import Bucket
from espalier_operator.constraints import ANYWHERE, Amounts, Constraints
from espalier_operator.facts import JobFacts, Node, Promise, Role, Worker, WorkerState
from espalier_operator.rooms import UNLIMITED, Rooms


class Supply(IntEnum):
    """When the requested GPUs are available."""

    NEVER = 0
    """Never, as things are. Nothing is reserved."""
    LATER = 1
    """After a pending release; the GPUs are reserved."""
    NOW = 2
    """Now; the GPUs are handed out."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker may run: groups of nodes, all of one type of GPU."""

    gpu_type: str
    groups: tuple[int, ...]
    requests: Amounts = ()
    """What the worker needs of a node in addition to GPUs."""

    def without(self, groups: Set[int]) -> Site:
        """Return the site less some groups."""
        return replace(self, groups=tuple(group for group in self.groups if group not in groups))


_Buckets = dict[tuple[int, int], Bucket]
"""Nodes by (free GPUs, GPUs free later): of nodes that fit equally well, the one with the poorer future is used."""


class _Change(NamedTuple):
    """One entry of the journal."""

    node: str
    gpus: int
    """Of a worker."""
    requests: Amounts
    """What else a worker requests."""
    now: int
    """By how many workers' GPUs the node has more now."""
    later: int
    placed: int
    """How many workers were placed by it."""


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
    ) -> None:
        """Count `workers` against `nodes`; those named in `leaving` do not hold anything `later`.

        `constraints` are all that `site` will be asked for; `jobs` are those of `workers`.
        """
        grouping = _Grouping(constraints)
        self._rooms = Rooms(workers, leaving, jobs) if any(each.requests for each in constraints) else None
        self._group: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._later: dict[str, int] = {}
        self._slots: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for node in nodes:
            if node.ready and node.schedulable:
                offered = node.allocatable - node.departing
                self._group[node.name] = group = grouping.group_of(node)
                self._now[node.name] = self._later[node.name] = offered
                self._slots[group][offered] += 1
                if self._rooms is not None:
                    self._rooms.add(node, group, offered)
        self._examples: list[Node] = grouping.examples
        self._sites: dict[tuple[str, Constraints], Site] = {}
        offers = dict(self._now)
        self._others = Counter[str]()
        """GPUs that pods of others hold, by node."""
        for worker in workers:
            if worker.node in self._group:
                if worker.role is Role.FOREIGN and worker.name not in leaving:
                    self._others[worker.node] += worker.gpus
                self._now[worker.node] -= worker.gpus
                if worker.name not in leaving:
                    self._later[worker.node] -= worker.gpus
        self._without_jobs = {group: dict(sizes) for group, sizes in self._slots.items()}
        for name, held in self._others.items():
            sizes, offered = self._without_jobs[self._group[name]], offers[name]
            sizes[offered] -= 1
            sizes[offered - held] = sizes.get(offered - held, 0) + 1
        self._offers: dict[int, _Buckets] = defaultdict(dict)
        self._hopes: dict[int, _Buckets] = defaultdict(dict)
        self._journal: list[_Change] = []
        for name, later in self._later.items():
            if later > 0:  # most nodes of a cluster are full, and have no place in any bucket
                self._enter(name)

    @property
    def gpu_types(self) -> list[str]:
        """The types that ready, schedulable nodes have, in order of name."""
        return sorted({node.gpu_type for node in self._examples})

    def site(self, gpu_type: str, constraints: Constraints | None) -> Site:
        """Return where a worker with `constraints` may run on GPUs of `gpu_type`; None: all nodes of the type."""
        if constraints is None:
            same = (group for group, node in enumerate(self._examples) if node.gpu_type == gpu_type)
            return Site(gpu_type, tuple(same))
        known = self._sites.get((gpu_type, constraints))
        if known is None:
            fitting = (
                group
                for group, node in enumerate(self._examples)
                if node.gpu_type == gpu_type and node.admits(constraints)
            )
            known = self._sites[gpu_type, constraints] = Site(gpu_type, tuple(fitting), constraints.requests)
        return known

    def is_in(self, site: Site, node: str | None) -> bool:
        """Return whether `node` is one of the site's."""
        return node is not None and self._group.get(node) in site.groups

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

    def take(self, site: Site, gpus: int) -> str | None:
        """Hand out `gpus` (> 0) on the fullest node that has them; return the node, None if there is none."""
        return self._place(self._offers, site, gpus, now=-1, later=-1)

    def take_gang(self, site: Site, gpus: int, workers: int) -> bool:
        """Hand out `gpus` (> 0) for each of `workers` as `take` does, or nothing; return whether they were.

        After a worker the fullest node that has the GPUs is the same one, until it has no room: all that fit go there.
        """
        mark = self.mark()
        while workers > 0:
            if self._place(self._offers, site, gpus, now=-1, later=-1, most=workers) is None:
                self.undo(mark)
                return False
            workers -= self._journal[-1].placed
        return True

    def set_aside(self, site: Site, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node for a waiting worker; None where no node will have them."""
        return self._place(self._hopes, site, gpus, now=0, later=-1)

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

    def placed_since(self, mark: int) -> list[str]:
        """Return the nodes of the workers that were placed since `mark`, in their order."""
        return [change.node for change in self._journal[mark:] for _ in range(change.placed)]

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._journal) > mark:
            node, gpus, requests, now, later, _ = self._journal.pop()
            self._add(node, gpus, requests, -now, -later)

    def _place(
        self, places: dict[int, _Buckets], site: Site, gpus: int, *, now: int, later: int, most: int = 1
    ) -> str | None:
        """Place as many workers as fit, and not more than `most`, on the first node for one; return the node."""
        fitting = [(key, group) for group in site.groups for key in places[group] if key[0] >= gpus]
        fitting.sort()
        room = self._room_now if now else self._room_later
        for key, group in fitting:
            found = places[group][key].first(site.requests, room)
            if found is not None:
                node, fits = found
                placed = min(most, key[0] // gpus, fits)
                self._change(node, gpus, site.requests, now=now * placed, later=later * placed, placed=placed)
                return node
        return None

    def _room_now(self, node: str, requests: Amounts) -> int:
        """Return for how many workers `node` has what they request in addition to GPUs, without delaying others."""
        return UNLIMITED if self._rooms is None or not requests else self._rooms.fits(node, requests, now=True)

    def _room_later(self, node: str, requests: Amounts) -> int:
        """Return for how many workers `node` will have what they request in addition to GPUs."""
        return UNLIMITED if self._rooms is None or not requests else self._rooms.fits(node, requests, now=False)

    def _change(self, node: str, gpus: int, requests: Amounts, *, now: int, later: int, placed: int = 0) -> None:
        self._add(node, gpus, requests, now, later)
        self._journal.append(_Change(node, gpus, requests, now, later, placed))

    def _add(self, node: str, gpus: int, requests: Amounts, now: int, later: int) -> None:
        """Add what so many workers hold to what `node` has now and later."""
        self._leave(node)
        self._now[node] += now * gpus
        self._later[node] += later * gpus
        self._enter(node)
        if self._rooms is not None and requests:
            self._rooms.change(node, requests, now, later)

    def _places(self, node: str) -> tuple[tuple[_Buckets, tuple[int, int]], tuple[_Buckets, tuple[int, int]]]:
        group, later = self._group[node], self._later[node]
        offer = min(self._now[node], later)
        return (self._offers[group], (offer, later)), (self._hopes[group], (later, later))

    def _enter(self, node: str) -> None:
        for buckets, key in self._places(node):
            if key[0] > 0:
                if key not in buckets:
                    buckets[key] = Bucket()
                buckets[key].add(node)

    def _leave(self, node: str) -> None:
        for buckets, key in self._places(node):
            if key[0] > 0:
                buckets[key].remove(node)
                if not buckets[key]:
                    del buckets[key]


def _holds(slots: Mapping[int, Mapping[int, int]], site: Site, gpus: int, workers: int) -> bool:
    sizes = (entry for group in site.groups for entry in slots.get(group, {}).items())
    return gpus == 0 or sum(count * (max(0, size) // gpus) for size, count in sizes) >= workers


class _Grouping:
    """Numbers the groups of nodes that no constraint tells apart."""

    def __init__(self, constraints: Iterable[Constraints]) -> None:
        distinct = set(constraints)
        self._keys = sorted(set().union(*(each.keys for each in distinct)))
        self._names = set[str]().union(*(each.names for each in distinct))
        self._numbers: dict[object, int] = {}
        self.examples: list[Node] = []
        """By group: its first node."""

    def group_of(self, node: Node) -> int:
        """Return the group of `node`."""
        name = node.name if node.name in self._names else ""
        labels = tuple(map(node.labels.get, self._keys)) if self._keys else ()
        alike = (node.gpu_type, labels, node.taints, name)
        number = self._numbers.setdefault(alike, len(self.examples))
        if number == len(self.examples):
            self.examples.append(node)
        return number


def hold_promised(
    capacity: Capacity,
    job: JobFacts,
    promise: Promise | None,
    seen: Sequence[Worker],
    kept: int,
    now: float,
    chosen: Sequence[str | None] = (),
) -> list[Worker]:
    """Keep GPUs in `capacity` for what `job` was granted and is not bound; return that as workers of where it will be.

    Those are the unbound ones of `seen` (the job's live extra workers), and while `promise` holds those that are not
    to be seen at all, on the nodes `chosen` for them before if these have room. Workers from index `kept` up are being
    given back: they are counted until they are gone, and are not in the answer. Where there is no room for one it is
    left to be bound, or its promise to expire.
    """
    bound = {worker.index for worker in seen if worker.node is not None}
    due = job.extra if promise is not None and now < promise.expires_at else len(seen)
    unbound = [index for index in range(job.extra) if index not in bound][: max(0, due - len(bound))]
    promised = []
    site, gpus, before = capacity.site(job.gpu_type or "", job.terms.constraints), job.terms.gpus_per_worker, [*chosen]
    for index in unbound:
        node = before.pop() if before and index < kept else None
        if capacity.hold_at(site, node, gpus) is Supply.NEVER:
            node = capacity.hold(site, gpus) if index < kept else capacity.occupy(site, gpus)
        if node is not None and index < kept:
            promised.append(
                Worker(
                    name=f"{job.key} extra {index}, promised",
                    job=job.key,
                    role=Role.EXTRA,
                    index=index,
                    node=node,
                    gpus=gpus,
                    state=WorkerState.PENDING,
                )
            )
    return promised
