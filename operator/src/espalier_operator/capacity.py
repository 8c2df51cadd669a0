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
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from espalier_operator.constraints import ANYWHERE, Amounts, Constraints
from espalier_operator.facts import JobFacts, Node, Promise, Role, Worker, WorkerState


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


_NO_REQUESTS: Final[Mapping[str | None, Amounts]] = MappingProxyType({})
_Buckets = dict[tuple[int, int], dict[str, None]]
"""Nodes by (free GPUs, GPUs free later): of nodes that fit equally well, the one with the poorer future is used."""


class Capacity:
    """The free GPUs of one snapshot, with a journal to undo what was only tried.

    Nodes that are not ready or not schedulable offer nothing; GPUs announced to depart are not offered either.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        workers: Iterable[Worker],
        leaving: set[str],
        constraints: Collection[Constraints] = (ANYWHERE,),
        requests: Mapping[str | None, Amounts] = _NO_REQUESTS,
    ) -> None:
        """Count `workers` against `nodes`; those named in `leaving` do not hold anything `later`.

        `constraints` are all that `site` will be asked for, `requests` what a worker of a job needs besides GPUs.
        """
        grouping = _Grouping(constraints)
        self._rooms = _Rooms() if any(each.requests for each in constraints) else None
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
        offers, others = dict(self._now), Counter[str]()
        for worker in workers:
            if worker.node in self._group:
                if worker.role is Role.FOREIGN and worker.name not in leaving:
                    others[worker.node] += worker.gpus
                self._now[worker.node] -= worker.gpus
                if worker.name not in leaving:
                    self._later[worker.node] -= worker.gpus
                if self._rooms is not None and worker.job is not None:
                    self._rooms.hold(worker.node, requests.get(worker.job, ()), worker.name not in leaving)
        self._without_jobs = {group: dict(sizes) for group, sizes in self._slots.items()}
        for name, held in others.items():
            sizes, offered = self._without_jobs[self._group[name]], offers[name]
            sizes[offered] -= 1
            sizes[offered - held] = sizes.get(offered - held, 0) + 1
            if self._rooms is not None:
                self._rooms.others[name] = held
        self._offers: dict[int, _Buckets] = defaultdict(dict)
        self._hopes: dict[int, _Buckets] = defaultdict(dict)
        self._journal: list[tuple[str, int, int, Amounts, bool]] = []
        """(node, change of GPUs now, later, other requests, whether a worker was placed)."""
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
            return gpus == 0 or self._rooms.could_hold(site, gpus, workers, without_others=True)
        return _holds(self._slots, site, gpus, workers)

    def could_hold_without_jobs(self, site: Site, gpus: int, workers: int) -> bool:
        """Return whether they would fit if all our jobs had ended, and what others hold were held."""
        if site.requests and self._rooms is not None:
            return gpus == 0 or self._rooms.could_hold(site, gpus, workers, without_others=False)
        return _holds(self._without_jobs, site, gpus, workers)

    def take(self, site: Site, gpus: int) -> str | None:
        """Hand out `gpus` (> 0) on the fullest node that has them; return the node, None if there is none."""
        return self._place(self._offers, site, gpus, now=-gpus, later=-gpus)

    def set_aside(self, site: Site, gpus: int) -> str | None:
        """Reserve `gpus` (> 0) of one node for a waiting worker; None where no node will have them."""
        return self._place(self._hopes, site, gpus, now=0, later=-gpus)

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
        if min(now, later) >= gpus and self._has(node, site, now=True):
            self._change(node, -gpus, -gpus if stays else 0, site.requests, placed=True)
            return Supply.NOW
        if stays and later >= gpus and self._has(node, site, now=False):
            self._change(node, 0, -gpus, site.requests, placed=True)
            return Supply.LATER
        return Supply.NEVER

    def occupy(self, site: Site, gpus: int) -> str | None:
        """Count `gpus` (> 0) of one node as held until they are given back; None where none are free."""
        return self._place(self._offers, site, gpus, now=-gpus, later=0)

    def expect(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Expect that `gpus` and what belongs to `requests` will be given back on `node`."""
        if node is not None and node in self._group:
            self._change(node, 0, gpus, requests)

    def withdraw(self, node: str | None, gpus: int, requests: Amounts = ()) -> None:
        """Expect that no more."""
        if node is not None and node in self._group:
            self._change(node, 0, -gpus, requests)

    def placed_since(self, mark: int) -> list[str]:
        """Return the nodes of the workers that were placed since `mark`, in their order."""
        return [node for node, _, _, _, placed in self._journal[mark:] if placed]

    def mark(self) -> int:
        """Return a point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._journal) > mark:
            node, now, later, requests, _ = self._journal.pop()
            self._leave(node)
            self._now[node] -= now
            self._later[node] -= later
            self._enter(node)
            if self._rooms is not None and requests:
                self._rooms.change(node, requests, -_sign(now), -_sign(later))

    def _place(self, places: dict[int, _Buckets], site: Site, gpus: int, now: int, later: int) -> str | None:
        fitting = ((key, group) for group in site.groups for key in places[group] if key[0] >= gpus)
        if not site.requests or self._rooms is None:
            best = min(fitting, default=None)
            node = None if best is None else next(iter(places[best[1]][best[0]]))
        else:
            nodes = (node for key, group in sorted(fitting) for node in places[group][key])
            node = next((node for node in nodes if self._has(node, site, now=now != 0)), None)
        if node is not None:
            self._change(node, now, later, site.requests, placed=True)
        return node

    def _has(self, node: str, site: Site, *, now: bool) -> bool:
        """Return whether `node` has what a worker requests in addition to GPUs, now or later."""
        if self._rooms is None:
            return True
        return self._rooms.has_now(node, site.requests) if now else self._rooms.has_later(node, site.requests)

    def _change(self, node: str, now: int, later: int, requests: Amounts, *, placed: bool = False) -> None:
        self._leave(node)
        self._now[node] += now
        self._later[node] += later
        self._enter(node)
        self._journal.append((node, now, later, requests, placed))
        if self._rooms is not None and requests:
            self._rooms.change(node, requests, _sign(now), _sign(later))

    def _places(self, node: str) -> tuple[tuple[_Buckets, tuple[int, int]], tuple[_Buckets, tuple[int, int]]]:
        group, later = self._group[node], self._later[node]
        offer = min(self._now[node], later)
        return (self._offers[group], (offer, later)), (self._hopes[group], (later, later))

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


def _holds(slots: Mapping[int, Mapping[int, int]], site: Site, gpus: int, workers: int) -> bool:
    sizes = (entry for group in site.groups for entry in slots.get(group, {}).items())
    return gpus == 0 or sum(count * (max(0, size) // gpus) for size, count in sizes) >= workers


def _sign(gpus: int) -> int:
    return (gpus > 0) - (gpus < 0)


class _Rooms:
    """What nodes have left of resources other than GPUs, now and later. A resource without an entry is not limited.

    It is computed for the nodes that are asked for: most nodes of a cluster have no free GPUs.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._groups: dict[int, list[tuple[Node, int]]] = defaultdict(list)
        self._held: dict[str, list[tuple[Amounts, bool]]] = defaultdict(list)
        """By node: what bound workers of jobs request, and whether they stay."""
        self._left: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
        """By node, where it was asked for: what is left now and later."""
        self._answers: dict[tuple[Site, int, int, bool], bool] = {}
        self.others: dict[str, int] = {}
        """GPUs that pods of others hold, by node."""

    def add(self, node: Node, group: int, offered: int) -> None:
        """Add a node that offers `offered` GPUs."""
        self._nodes[node.name] = node
        self._groups[group].append((node, offered))

    def hold(self, node: str, requests: Amounts, stays: bool) -> None:
        """Count a bound worker of a job, before anything is asked."""
        self._held[node].append((requests, stays))

    def change(self, node: str, requests: Amounts, now: int, later: int) -> None:
        """Add `requests` so many times to what is left now and later."""
        for left, times in zip(self._left_on(node), (now, later), strict=True):
            _add(left, requests, times)

    def has_now(self, node: str, requests: Amounts) -> bool:
        """Return whether `requests` fit on `node` now, and do not take what is promised later."""
        return all(_suffices(left, requests) for left in self._left_on(node))

    def has_later(self, node: str, requests: Amounts) -> bool:
        """Return whether `requests` will fit on `node`."""
        return _suffices(self._left_on(node)[1], requests)

    def could_hold(self, site: Site, gpus: int, workers: int, *, without_others: bool) -> bool:
        """Return whether `workers` would fit if all our jobs had ended, and pods of others as well or not."""
        key = (site, gpus, workers, without_others)
        if key not in self._answers:
            nodes = (entry for group in site.groups for entry in self._groups[group])
            counts = (self._times(node, offered, site.requests, gpus, without_others) for node, offered in nodes)
            self._answers[key] = any(fitting >= workers for fitting in accumulate(counts))
        return self._answers[key]

    def _left_on(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return what is left on a node now and later."""
        if name not in self._left:
            node = self._nodes[name]
            now = {resource: amount - node.used.get(resource, 0) for resource, amount in node.resources.items()}
            later = dict(now)
            for requests, stays in self._held.get(name, ()):
                _add(now, requests, -1)
                _add(later, requests, -1 if stays else 0)
            self._left[name] = now, later
        return self._left[name]

    def _times(self, node: Node, offered: int, requests: Amounts, gpus: int, without_others: bool) -> int:
        free = offered if without_others else offered - self.others.get(node.name, 0)
        used = {} if without_others else node.used
        most = [free // gpus]
        most += [
            (node.resources[name] - used.get(name, 0)) // amount
            for name, amount in requests
            if amount and name in node.resources
        ]
        return max(0, min(most))


def _add(left: dict[str, int], requests: Amounts, times: int) -> None:
    for name, amount in requests if times else ():
        if name in left:
            left[name] += times * amount


def _suffices(left: Mapping[str, int], requests: Amounts) -> bool:
    return all(left.get(name, amount) >= amount for name, amount in requests)


class _Grouping:
    """Numbers the groups of nodes that no constraint tells apart."""

    def __init__(self, constraints: Iterable[Constraints]) -> None:
        distinct = set(constraints)
        self._keys = sorted(set().union(*(each.keys for each in distinct)))
        self._by_name = any(each.by_name for each in distinct)
        self._numbers: dict[object, int] = {}
        self.examples: list[Node] = []
        """By group: its first node."""

    def group_of(self, node: Node) -> int:
        """Return the group of `node`."""
        name = node.name if self._by_name else ""
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
