"""EASY backfilling: a job starts before others that wait if it delays none of those that have a reservation.

After Lifka, The ANL/IBM SP Scheduling System (JSSPP 1995), and Mu'alem and Feitelson (IEEE TPDS 12(6), 2001). Time
budgets are upper bounds of how long jobs run, so the latest time is known at which enough of them have ended for a job
that waits. It keeps the GPUs that it needs then: jobs after it in the queue may use these only until that time. It may
count on what can be reclaimed at any time, and on what running jobs give back until then.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from espalier_operator.cluster.capacity import Capacity
from espalier_operator.cluster.headroom import NOTHING, ResourceVector, add, times
from espalier_operator.cluster.node_index import NodePool


@dataclass(frozen=True)
class HeldGpus:
    """What workers on `nodes` hold, one for each entry."""

    gpu_type: str
    nodes: Sequence[str]
    each: ResourceVector

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many workers are on each node."""
        return Counter(self.nodes)


@dataclass(slots=True, eq=False)
class Reservation:
    """What a job keeps that waits."""

    starts_by: float
    """When it starts at the latest."""
    node_pool: NodePool
    holding: HeldGpus
    """What it holds then."""
    kept: dict[str, ResourceVector] = field(default_factory=dict)
    """By node: what it keeps of what is free, or can be reclaimed."""
    expected: dict[str, ResourceVector] = field(default_factory=dict)
    """By node: what it needs of what jobs give back until it starts."""

    def starts_before(self, time: float) -> bool:
        """Return whether its job starts before `time`."""
        return self.starts_by < time


class _GangForecast:
    """What a node pool has for a gang once all that is lent has been reclaimed, and jobs end one after the other."""

    def __init__(self, capacity: Capacity, node_pool: NodePool, gpus: int, more: Mapping[str, ResourceVector]) -> None:
        """Begin with what the capacity has for later, and `more` on some nodes."""
        self._open, self._requests, self._gpus, self._more = capacity.opening(node_pool), node_pool.requests, gpus, more
        self._has: dict[str, int] = {}
        """By node: GPUs."""
        self._left: dict[str, dict[str, int]] = {}
        """By node on which another resource can run short: what is left of these."""
        self._fitting: dict[str, int] = {}
        self.workers = 0
        """How many there is room for."""
        self._ended: list[HeldGpus] = []
        having = (node for node, resources in more.items() if resources.gpus > 0)
        for node in {*capacity.nodes_with_hopes(node_pool), *having}:
            if self._begin(node):
                self._count(node)

    @property
    def headroom(self) -> list[tuple[str, int]]:
        """The nodes in order of name, and for how many workers each has room."""
        return sorted(self._fitting.items())

    def given(self, node: str) -> ResourceVector:
        """Return what jobs have given back on `node`."""
        given = (each.each * each.counts[node] for each in self._ended if node in each.counts)
        return sum(given, NOTHING)

    def give_back(self, holding: HeldGpus) -> None:
        """Let a job end."""
        self._ended.append(holding)
        each, has, short, gpus, fitting = holding.each, self._has, self._left, self._gpus, self._fitting
        for node, workers in holding.counts.items():
            if node in has or self._begin(node):
                has[node] += each.gpus * workers
                if node in short:
                    add(short[node], each.requests, workers)
                    self._count(node)
                else:  # thousands
                    fits = max(0, has[node] // gpus)
                    self.workers += fits - fitting.get(node, 0)
                    fitting[node] = fits

    def _begin(self, node: str) -> bool:
        """Take in what a node has; return whether it is one of the node pool's."""
        found = self._open(node)
        if found is None:
            return False
        more = self._more.get(node, NOTHING)
        self._has[node] = found[0] + more.gpus
        if found[1] is not None:
            self._left[node] = add(found[1], more.requests, 1)
        return True

    def _count(self, node: str) -> None:
        """Count the workers that fit on `node`."""
        fits, left = max(0, self._has[node] // self._gpus), self._left.get(node)
        if left is not None and fits:
            fits = min(fits, times(left, self._requests))
        self.workers += fits - self._fitting.get(node, 0)
        self._fitting[node] = fits


class Reservations:
    """The reservations of one plan. What they keep is missing in the capacity, except where it is lifted."""

    def __init__(
        self,
        capacity: Capacity,
        most: int,
        running: Callable[[], Iterable[tuple[float, HeldGpus]]],
        extra_workers: Callable[[], Mapping[str, ResourceVector]],
    ) -> None:
        """Make at most `most` reservations.

        `running` returns until when at the latest jobs hold what; `extra_workers` what can be reclaimed, by node. Both
        are called only when a job must wait.
        """
        self._capacity, self._most, self._extra_workers = capacity, most, extra_workers
        self._running: Callable[[], Iterable[tuple[float, HeldGpus]]] | None = running
        self._ends: list[tuple[float, int, HeldGpus]] = []
        """What jobs give back, by time: the running ones once they are asked for, and those that were added.

        The second entry is different in each.
        """
        self._added = 0
        self._made: list[Reservation] = []
        self._failed_placements: dict[tuple[NodePool, int], int] = {}
        """By node pool and GPUs of a worker: the smallest gang that could not get a reservation."""

    def kept_from(self, ends_by: float) -> tuple[int, ...]:
        """Return the numbers of the reservations that a job must not touch that runs until `ends_by`."""
        return tuple(number for number, each in enumerate(self._made) if each.starts_before(ends_by))

    def relied_on(self, ends_by: float) -> set[str]:
        """Return the nodes on which reservations count that a job must not touch that runs until `ends_by`."""
        return {node for each in self._made if each.starts_before(ends_by) for node in each.expected}

    @contextmanager
    def lifted(self, ends_by: float) -> Iterator[tuple[float, Callable[[HeldGpus], None]]]:
        """Within, allow what a job may use that has ended by `ends_by`; yield for how many seconds more it may.

        And what counts what a job has taken that starts within: the reservations count on it once it is given back.
        """
        lifted = [each for each in self._made if not each.starts_before(ends_by)]
        self._free(lifted)

        def take(started: HeldGpus) -> None:
            for node, workers in started.counts.items() if lifted else ():
                resources = started.each * workers
                for each in lifted:
                    if node in each.kept:
                        returned = each.kept[node].of_which(resources)
                        each.kept[node] -= returned
                        each.expected[node] += returned
            self._add_end(ends_by, started)

        yield min((each.starts_by for each in lifted), default=math.inf) - ends_by, take
        for each in lifted:
            self._keep(each)

    def replace(self, gone: Iterable[HeldGpus], ends_by: float, by: HeldGpus) -> None:
        """Count running jobs that hold `gone` as ended, and what they give back as held until `ends_by`."""
        ends = list(self._endings())
        for holding in gone:
            ends.remove(next(each for each in ends if each[2] == holding))
        self._ends = ends
        self._add_end(ends_by, by)

    def end(self) -> None:
        """End all reservations: what follows can be asked back when they start."""
        self._free(self._made)
        self._made = []

    def cancel(self, reservation: Reservation) -> None:
        """Take back what `reserve` has returned; not where reservations are lifted."""
        self._free([reservation])
        self._made.remove(reservation)
        self._ends = [each for each in self._endings() if each[2] is not reservation.holding]

    def reserve(
        self, node_pools: Iterable[NodePool], gpus: int, workers: int, now: float, seconds: float
    ) -> Reservation | None:
        """Reserve `gpus` (> 0) for each of `workers` where they can start first, for as many seconds from then.

        None where it is not known by when they start: too many others wait before, or pods of others would have to
        leave.
        """
        if len(self._made) >= self._most:
            return None
        taken: dict[str, ResourceVector] = {}
        for each in self._made:
            for node, resources in each.expected.items():
                taken[node] = taken.get(node, NOTHING) + resources
        more = dict(self._extra_workers())
        for node, resources in taken.items():
            more[node] = more.get(node, NOTHING) - resources
        starts = [
            (*found, node_pool)
            for node_pool in node_pools
            if (found := self._start(node_pool, gpus, workers, now, more))
        ]
        if not starts:
            return None
        start, forecast, node_pool = min(starts, key=lambda each: each[0])
        needed, nodes = ResourceVector(gpus, node_pool.requests), list[str]()
        made = Reservation(start, node_pool, HeldGpus(node_pool.gpu_type, nodes, needed))
        for node, fits in forecast.headroom:  # not the fullest first: the next plan, after starts, must choose the same
            if workers == 0:
                break
            here = min(workers, fits)
            if here > 0:
                spare = forecast.given(node) - taken.get(node, NOTHING)
                made.expected[node] = (needed * here).of_which(spare)
                made.kept[node] = needed * here - made.expected[node]
                workers -= here
                nodes += [node] * here
        self._add_end(start + seconds, made.holding)
        self._made.append(made)
        self._keep(made)
        return made

    def _start(
        self, node_pool: NodePool, gpus: int, workers: int, now: float, more: Mapping[str, ResourceVector]
    ) -> tuple[float, _GangForecast] | None:
        """Return when a gang can start on `node_pool` at the latest, and what the node pool has then."""
        if workers >= self._failed_placements.get((node_pool, gpus), workers + 1):
            return None
        forecast, start = _GangForecast(self._capacity, node_pool, gpus, more), now
        for time, _, holding in self._endings():
            if time > start and forecast.workers >= workers:
                break
            start = max(start, time)
            if holding.gpu_type == node_pool.gpu_type:
                forecast.give_back(holding)
        if forecast.workers >= workers:
            return start, forecast
        self._failed_placements[node_pool, gpus] = workers
        return None

    def _endings(self) -> list[tuple[float, int, HeldGpus]]:
        if self._running is not None:
            self._ends += [(time, number, holding) for number, (time, holding) in enumerate(self._running())]
            self._ends.sort()
            self._running = None
        return self._ends

    def _add_end(self, time: float, holding: HeldGpus) -> None:
        self._added += 1
        insort(self._ends, (time, -self._added, holding))

    def _keep(self, reservation: Reservation) -> None:
        for node, resources in reservation.kept.items():
            self._capacity.withdraw(node, resources.gpus, resources.requests)

    def _free(self, reservations: Iterable[Reservation]) -> None:
        for each in reservations:
            for node, resources in each.kept.items():
                self._capacity.expect(node, resources.gpus, resources.requests)
