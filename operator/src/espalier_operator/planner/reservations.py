"""EASY backfilling: a job starts before waiting ones if it delays none that has a reservation.

After Lifka, The ANL/IBM SP Scheduling System (JSSPP 1995), and Mu'alem and Feitelson (IEEE TPDS 12(6), 2001). Time
budgets bound the run times of jobs, so the latest time is known at which enough of them have ended for a waiting job.
It reserves the GPUs that it needs then: later jobs in the queue may use these only until that time. It may rely on GPUs
that can be reclaimed at any time, and on GPUs that running jobs give back until then.
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
    """Resources held by workers on `nodes`, one worker for each entry."""

    gpu_type: str
    nodes: Sequence[str]
    each: ResourceVector

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Number of workers on each node."""
        return Counter(self.nodes)


@dataclass(slots=True, eq=False)
class Reservation:
    """The reservation of a waiting job."""

    starts_by: float
    """Latest start of the job."""
    node_pool: NodePool
    holding: HeldGpus
    """The job's holding after its start."""
    kept: dict[str, ResourceVector] = field(default_factory=dict)
    """Reserved resources that are free or can be reclaimed, by node."""
    expected: dict[str, ResourceVector] = field(default_factory=dict)
    """Resources that it needs of those that jobs give back until its start, by node."""

    def starts_before(self, time: float) -> bool:
        """Return whether the job starts before `time`."""
        return self.starts_by < time


class _GangForecast:
    """Room of a node pool for a gang after all loans have been reclaimed, as jobs end one after the other."""

    def __init__(self, capacity: Capacity, node_pool: NodePool, gpus: int, more: Mapping[str, ResourceVector]) -> None:
        """Begin with the later capacity, and `more` on some nodes."""
        self._open, self._requests, self._gpus, self._more = capacity.opening(node_pool), node_pool.requests, gpus, more
        self._has: dict[str, int] = {}
        """GPUs by node."""
        self._left: dict[str, dict[str, int]] = {}
        """Remaining other resources of nodes on which they can run short."""
        self._fitting: dict[str, int] = {}
        self.workers = 0
        """Number of workers that fit."""
        self._ended: list[HeldGpus] = []
        having = (node for node, resources in more.items() if resources.gpus > 0)
        for node in {*capacity.nodes_with_hopes(node_pool), *having}:
            if self._begin(node):
                self._count(node)

    @property
    def headroom(self) -> list[tuple[str, int]]:
        """(Node, workers that fit), in order of name."""
        return sorted(self._fitting.items())

    def given(self, node: str) -> ResourceVector:
        """Return the resources that jobs have given back on `node`."""
        given = (each.each * each.counts[node] for each in self._ended if node in each.counts)
        return sum(given, NOTHING)

    def give_back(self, holding: HeldGpus) -> None:
        """Add the resources of an ended job."""
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
        """Add the resources of a node; return whether it is in the node pool."""
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
    """The reservations of one plan. Their resources are missing in the capacity, except while lifted."""

    def __init__(
        self,
        capacity: Capacity,
        most: int,
        running: Callable[[], Iterable[tuple[float, HeldGpus]]],
        extra_workers: Callable[[], Mapping[str, ResourceVector]],
    ) -> None:
        """Make at most `most` reservations.

        `running` yields (latest end, holding) of running jobs; `extra_workers` returns reclaimable resources by node.
        Both are called only when a job must wait.
        """
        self._capacity, self._most, self._extra_workers = capacity, most, extra_workers
        self._running: Callable[[], Iterable[tuple[float, HeldGpus]]] | None = running
        self._ends: list[tuple[float, int, HeldGpus]] = []
        """(Time, unique number, holding) of jobs that give back, by time: running ones, once read, and added ones.
        """
        self._added = 0
        self._made: list[Reservation] = []
        self._failed_placements: dict[tuple[NodePool, int], int] = {}
        """The smallest gang without a reservation, by node pool and GPUs of a worker."""

    def kept_from(self, ends_by: float) -> tuple[int, ...]:
        """Return the indices of reservations that a job running until `ends_by` must not touch."""
        return tuple(number for number, each in enumerate(self._made) if each.starts_before(ends_by))

    def relied_on(self, ends_by: float) -> set[str]:
        """Return the nodes on which reservations rely that a job running until `ends_by` must not touch."""
        return {node for each in self._made if each.starts_before(ends_by) for node in each.expected}

    @contextmanager
    def lifted(self, ends_by: float) -> Iterator[tuple[float, Callable[[HeldGpus], None]]]:
        """Lift the reservations that a job ending by `ends_by` does not delay; yield (slack in seconds, take).

        `take` counts the holding of a job that starts within: the reservations rely on it once it is given back.
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
        """Count running jobs that hold `gone` as ended, and their resources as held until `ends_by` in `by`."""
        ends = list(self._endings())
        for holding in gone:
            ends.remove(next(each for each in ends if each[2] == holding))
        self._ends = ends
        self._add_end(ends_by, by)

    def end(self) -> None:
        """End all reservations: the loans that follow can be reclaimed for them."""
        self._free(self._made)
        self._made = []

    def cancel(self, reservation: Reservation) -> None:
        """Cancel a result of `reserve`; not while reservations are lifted."""
        self._free([reservation])
        self._made.remove(reservation)
        self._ends = [each for each in self._endings() if each[2] is not reservation.holding]

    def reserve(
        self, node_pools: Iterable[NodePool], gpus: int, workers: int, now: float, seconds: float
    ) -> Reservation | None:
        """Reserve `gpus` (> 0) for each of `workers` where they can start first, for `seconds` from then.

        None where their start is unknown: too many others have reservations, or foreign pods would have to leave.
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
        """Return the latest start of a gang on `node_pool`, and the forecast for that time."""
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
