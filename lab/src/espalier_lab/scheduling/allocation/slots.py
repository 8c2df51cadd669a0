"""DL2's cluster in time slots, many episodes at once.

At the beginning of a slot all workers and servers end, arrived jobs get one of both in order of arrival, and then more
are given, one at a time, until "stop". Each goes to the least used node (by the sum of its resources), and cannot be
given if that node has no room. Then the slot passes. Jobs lose no time by the change: a slot is 20 minutes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.source import AllocationSettings
from espalier_lab.scheduling.allocation.tables import tables_of
from espalier_lab.scheduling.allocation.traces import Trace
from espalier_lab.scheduling.learned.description import (
    WORKERS_AND_SERVERS,
    Floats,
    JobQuantities,
    NetworkInputs,
    OptionQuantities,
    inputs,
)
from espalier_lab.scheduling.learned.speeds import STEPS
from espalier_lab.scheduling.learners.passed import Passed

_STEPS = np.array([STEPS[option] for option in WORKERS_AND_SERVERS])
"""(options, 2): additional servers and workers."""
_AWAY = np.iinfo(np.int64).max // 2
"""The load of nodes that do not exist in a cluster."""
_BOTH = WORKERS_AND_SERVERS.index("both")


class Slots:
    """Parallel episodes; arrays begin with the dimension of episodes, then jobs in order of arrival."""

    def __init__(self, source: AllocationSettings, nodes: int | Sequence[int], traces: Sequence[Trace]) -> None:
        """Begin all episodes, one per trace; `nodes` are for all clusters, or for each."""
        count, jobs = len(traces), source.jobs
        self.source, self.nodes = source, np.broadcast_to(np.asarray(nodes, np.int64), (count,))
        self.tables = tables_of(source)
        self.kinds, self.comes = np.zeros((count, jobs), np.int64), np.zeros((count, jobs), np.int64)
        self.workers, self.servers = np.zeros((count, jobs), np.int64), np.zeros((count, jobs), np.int64)
        self.done, self.ends = np.zeros((count, jobs)), np.full((count, jobs), np.nan)
        self.slot = np.zeros(count, np.int64)
        self.present = np.zeros((count, jobs), bool)
        """Jobs that have arrived and are not complete."""
        self._order = np.zeros((count, jobs), np.int64)
        self._width = np.zeros(count, np.int64)
        self._window: NDArray[np.int64] | None = None
        self._known: _SlotFeatures | None = None
        self._taken = np.zeros((count, len(source.node)), np.int64)
        """Resources of each cluster."""
        self._used = np.zeros((count, self.nodes.max(), len(source.node)), np.int64)
        self._load = np.zeros(self._used.shape[:2], np.int64)
        self.node = np.zeros(count, np.int64)
        """The node of the next worker or server."""
        self._rows = np.arange(count)
        self.over = np.zeros(count, bool)
        """(episodes): whether all jobs are complete."""
        for row, trace in enumerate(traces):
            self.begin(row, trace)

    def begin(self, row: int, trace: Trace) -> None:
        """Begin an episode again."""
        self.kinds[row], self.comes[row] = trace.kinds, trace.slots
        self.done[row], self.ends[row], self.slot[row] = 0.0, np.nan, 0
        self._open(row)

    def completion_slots(self, row: int) -> Floats:
        """Return (jobs), the slots from arrival to completion, with a fraction for the last one; as in the source."""
        return np.asarray(self.ends[row] - self.comes[row])

    @property
    def window(self) -> NDArray[np.int64]:
        """(episodes, width): the present jobs, in order of arrival; then any, as padding."""
        if self._window is None:
            self._window = self._order[:, : max(1, int(self._width.max()))]
        return self._window

    def _standing(self, window: NDArray[np.int64]) -> _SlotFeatures:
        """Return the features that are constant until a slot begins."""
        if self._known is None or self._known.window is not window:
            self._known = _SlotFeatures.of(self, window)
        return self._known

    def in_window(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (episodes, width), of values (episodes, jobs)."""
        return np.asarray(values[self._rows[:, None], self.window])

    def fitting(self, window: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (episodes, width, options): the options that can be given next to the jobs of the window."""
        standing, here = self._standing(window), self._rows[:, None]
        free = self.source.node - self._used[self._rows, self.node]
        fits: NDArray[np.bool_] = (standing.demand <= free[:, None, None, :]).all(-1) & standing.present[..., None]
        more_workers = self.workers[here, window] < self.source.most_workers
        more_servers = self.servers[here, window] < self.source.most_servers
        fits[..., 0] &= more_workers
        fits[..., 1] &= more_servers
        fits[..., 2] &= more_workers & more_servers
        return fits

    def speed_parts(self) -> Floats:
        """Return (episodes, jobs): the speed of each with its workers and servers, relative to its best speed."""
        return np.asarray(self.tables.parts[self.kinds, self.servers, self.workers] * self.present)

    def give(self, rows: NDArray[np.int64], jobs: NDArray[np.int64], options: NDArray[np.int64]) -> None:
        """Give one job of each of these episodes one more of an option, which must fit."""
        demand = self.tables.demand[self.kinds[rows, jobs], options]
        self._used[rows, self.node[rows]] += demand
        self._load[rows, self.node[rows]] += demand.sum(-1)
        self._taken[rows] += demand
        self.servers[rows, jobs] += _STEPS[options, 0]
        self.workers[rows, jobs] += _STEPS[options, 1]
        self.node[rows] = self._load[rows].argmin(1)

    def stop(self, rows: NDArray[np.int64]) -> Passed:
        """Let the slot pass in these episodes, and begin the next one with a job."""
        if not len(rows):
            none = np.zeros((0, self.kinds.shape[1]))
            return Passed(none, none, none > 0)
        here, present = rows[:, None], self.present[rows]
        parts = self.speed_parts()[rows]
        rate = self.tables.rates[self.kinds[rows], self.servers[rows], self.workers[rows]] * present
        left = 1 - self.done[rows]
        complete = present & (rate >= left)
        ended = complete | (present & (self.slot[here] + 1 - self.comes[rows] >= self.source.most_slots))
        spent = np.where(complete, np.divide(left, rate, out=np.zeros_like(left), where=rate > 0), present)
        self.ends[rows] = np.where(ended, self.slot[here] + spent, self.ends[rows])
        self.done[rows] = np.where(ended, 1.0, self.done[rows] + rate)
        self.slot[rows] += 1
        for row in rows:
            self._open(int(row))
        return Passed(spent, spent * (1 - parts), ended)

    def _open(self, row: int) -> None:
        """Begin a slot: arrived jobs get a worker and a server each, as far as there is room."""
        unfinished, self._window, self._known = np.isnan(self.ends[row]), None, None
        self.workers[row] = self.servers[row] = 0
        self._used[row], self._load[row], self.node[row] = 0, _AWAY, 0
        self.present[row] = unfinished & (self.comes[row] <= self.slot[row])
        self.over[row] = not unfinished.any()
        if not self.over[row] and not self.present[row].any():  # no job is present: skip to the next arrival
            self.slot[row] = self.comes[row][unfinished].min()
            self.present[row] = unfinished & (self.comes[row] <= self.slot[row])
        self._order[row] = np.argsort(~self.present[row], kind="stable")
        self._width[row] = self.present[row].sum()
        heap = [(0, node) for node in range(self.nodes[row])]
        for job in np.flatnonzero(self.present[row]):
            demand = self.tables.demand[self.kinds[row, job], _BOTH]
            load, node = heap[0]
            if (self._used[row, node] + demand <= self.source.node).all():
                self._used[row, node] += demand
                heapq.heapreplace(heap, (load + int(demand.sum()), node))
                self.workers[row, job] = self.servers[row, job] = 1
        for load, node in heap:
            self._load[row, node] = load
        self.node[row] = heap[0][1]
        self._taken[row] = self._used[row].sum(0)

    def quantities(self, window: NDArray[np.int64]) -> tuple[JobQuantities, OptionQuantities, Floats]:
        """Return the quantities of the window's jobs and options, and the free part of the cluster.

        They are the arguments of `description.inputs`.
        """
        standing, here = self._standing(window), self._rows[:, None]
        workers, servers = self.workers[here, window], self.servers[here, window]
        left = standing.left
        free = (1 - self._taken / (self.source.node * self.nodes[:, None])).min(-1)
        share, slots, gain, gain_ahead, saved, saved_ahead = self.tables.at(standing.kinds, servers, workers)
        jobs = JobQuantities(
            workers=workers.astype(float),
            most_workers=np.array(float(self.source.most_workers)),
            servers=servers.astype(float),
            most_servers=np.array(float(self.source.most_servers)),
            held=np.zeros(()),  # all workers end with the slot
            share=share / self.nodes[:, None],
            age=standing.age,
            left=slots * left,
            best_left=standing.best_left,
            known=standing.known,
            done=standing.done,
        )
        options = OptionQuantities(
            gain=gain,
            gain_ahead=gain_ahead,
            saved=saved * left[..., None],
            saved_ahead=saved_ahead * left[..., None],
            share=standing.share,
            fits=self.fitting(window).astype(float),
            restores=np.zeros(()),
        )
        return jobs, options, free

    def seen(self, window: NDArray[np.int64]) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the network's input for the window, and the mask of choices, (episodes, width × options + 1)."""
        jobs, options, free = self.quantities(window)
        mask = np.ones((len(free), options.fits[0].size + 1), bool)
        mask[:, :-1] = options.fits.reshape(len(free), -1) > 0
        return inputs(jobs, options, free, self._standing(window).present.astype(float)), mask


@dataclass(frozen=True, slots=True, eq=False)
class _SlotFeatures:
    """Quantities of jobs and options that are constant until a slot begins; of shape (episodes, width, ...)."""

    window: NDArray[np.int64]
    kinds: NDArray[np.int64]
    present: NDArray[np.bool_]
    demand: NDArray[np.int64]
    """(episodes, width, options, resources)."""
    share: Floats
    """(episodes, width, options)."""
    age: Floats
    done: Floats
    left: Floats
    """Seconds until completion if a whole job took a slot."""
    best_left: Floats
    known: Floats

    @classmethod
    def of(cls, slots: Slots, window: NDArray[np.int64]) -> _SlotFeatures:
        """Return the features of this window's jobs."""
        tables, seconds, here = slots.tables, slots.source.slot_seconds, np.arange(len(window))[:, None]
        kinds, done = slots.kinds[here, window], slots.done[here, window]
        left = np.maximum(1 - done, 1e-9) * seconds
        return cls(
            window=window,
            kinds=kinds,
            present=slots.present[here, window],
            demand=tables.demand[kinds],
            share=tables.costs[kinds] / slots.nodes[:, None, None],
            age=np.asarray((slots.slot[:, None] - slots.comes[here, window]) * seconds),
            done=done,
            left=left,
            best_left=tables.best[kinds] * left,
            known=np.ones(kinds.shape),
        )
