"""The two forms of the environment as parallel episodes for learning: `rollout.ParallelEpisodes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.forms import WorkerRun
from espalier_lab.scheduling.allocation.rules import RULES, WORTHS, act, chosen_by
from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.tables import OPTIONS
from espalier_lab.scheduling.allocation.traces import Trace
from espalier_lab.scheduling.learned.description import (
    WORKERS_ONLY,
    Floats,
    JobQuantities,
    NetworkInputs,
    OptionQuantities,
    inputs,
)
from espalier_lab.scheduling.learned.picture import AGAIN_SECONDS
from espalier_lab.scheduling.learners.passed import Chosen, Passed

Q = TypeVar("Q", JobQuantities, OptionQuantities)


class SlotEpisodes:
    """Parallel episodes of DL2's cluster."""

    options = OPTIONS

    def __init__(self, make: Callable[[list[Trace]], Slots], traces: Iterator[Trace], count: int) -> None:
        """Begin the episodes; `make` creates episodes of traces."""
        self._traces = traces
        self.slots = make([next(traces) for _ in range(count)])
        self.opened = self.slots.speed_parts()

    @property
    def present(self) -> NDArray[np.bool_]:
        """As `Slots.present`."""
        return self.slots.present

    @property
    def window(self) -> NDArray[np.int64]:
        """As `Slots.window`."""
        return self.slots.window

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the network's input, and the mask of choices."""
        return self.slots.seen(self.slots.window)

    def speed_parts(self) -> Floats:
        """As `Slots.speed_parts`."""
        return self.slots.speed_parts()

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Apply the choices, and begin new episodes where one is over."""
        slots = self.slots
        ends, passed = act(slots, chosen, np.ones(len(chosen), bool))
        for row in ends:
            if slots.over[row]:
                slots.begin(int(row), next(self._traces))
        self.opened[ends] = slots.speed_parts()[ends]
        return ends, passed

    def taught(self, teacher: str) -> Chosen:
        """Return the choices of the rule with this name."""
        return RULES[teacher](self.slots)


class WorkerEpisodes:
    """Parallel episodes of the simulator's rounds, for jobs with all-reduce. A slot is `AGAIN_SECONDS` long.

    A job's loss is computed from its speed with its workers, and from the pause after a change; the effect of their
    nodes on its speed is ignored.
    """

    options = len(WORKERS_ONLY)

    def __init__(self, runs: Iterator[WorkerRun], count: int, jobs: int) -> None:
        """Begin this number of `runs` side by side, each with at most `jobs` jobs."""
        self._coming, self._jobs = runs, jobs + 1  # the last one is padding
        self._runs = [next(runs) for _ in range(count)]
        self._look()
        self.opened = self.speed_parts()

    def _look(self) -> None:
        """Update the view of the next decisions."""
        pictures = [run.begun() for run in self._runs]
        found = [picture.quantities() for picture in pictures]
        width = max(len(picture.jobs) for picture in pictures)
        count = len(pictures)
        self.window = np.full((count, width), self._jobs - 1)
        self._here = np.zeros((count, width), bool)
        self._mask = np.zeros((count, width + 1), bool)
        for row, (run, picture) in enumerate(zip(self._runs, pictures, strict=True)):
            number = len(picture.jobs)
            self.window[row, :number] = [run.places[job.key] for job in picture.jobs]
            self._here[row, :number] = True
            mask = picture.mask()
            self._mask[row, :number], self._mask[row, -1] = mask[:-1], mask[-1]
        self.job_quantities = _stacked([jobs for jobs, _ in found], width)
        self.option_quantities = _stacked([options for _, options in found], width)
        self._free = np.array([picture.free / max(1, picture.gpus) for picture in pictures])
        self.present = np.zeros((count, self._jobs), bool)
        rows, columns = np.nonzero(self._here)
        self.present[rows, self.window[rows, columns]] = True

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the network's input, and the mask of choices."""
        here = self._here.astype(float)
        return inputs(self.job_quantities, self.option_quantities, self._free, here), self._mask

    def speed_parts(self) -> Floats:
        """Return the speed of each job with its workers, relative to its best speed."""
        found = np.zeros((len(self._runs), self._jobs))
        rows, columns = np.nonzero(self._here)
        jobs = self.job_quantities
        found[rows, self.window[rows, columns]] = (jobs.best_left / np.maximum(jobs.left, 1e-12))[rows, columns]
        return found

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Apply the choices, and begin new episodes where one is over."""
        stop = self.window.shape[1] * self.options
        ends: list[int] = []
        costs: list[tuple[Floats, Floats, NDArray[np.bool_], float]] = []
        for row, (run, column) in enumerate(zip(self._runs, chosen, strict=True)):
            picture = run.begun()
            run.take(len(picture.jobs) if column == stop else int(column))
            if run.picture is not picture:
                ends.append(row)
                costs.append(self._cost(run))
                if run.over:
                    self._runs[row] = next(self._coming)
        self._look()
        self.opened[ends] = self.speed_parts()[ends]
        size = (len(ends), self._jobs)
        spent, lost, ended = (np.array([cost[part] for cost in costs]).reshape(size) for part in range(3))
        return np.array(ends, np.int64), Passed(spent, lost, ended > 0, np.array([cost[3] for cost in costs]))

    def _cost(self, run: WorkerRun) -> tuple[Floats, Floats, NDArray[np.bool_], float]:
        """Return for the last period: time and loss per job, the jobs that ended, and its length."""
        spent, lost, ended = np.zeros(self._jobs), np.zeros(self._jobs), np.zeros(self._jobs, bool)
        period = run.period
        for job in period.jobs:
            place = job.job
            spent[place] = job.seconds / AGAIN_SECONDS
            trained = max(0.0, job.seconds - job.paused) / AGAIN_SECONDS
            lost[place] = spent[place] - trained * job.part
            ended[place] = job.ended
        return spent, lost, ended, period.seconds / AGAIN_SECONDS

    def taught(self, teacher: str) -> Chosen:
        """Return the choices of the rule with this name, which stops only if it must."""
        return chosen_by(WORTHS[teacher](self.job_quantities, self.option_quantities), self._mask)


def _stacked(found: Sequence[Q], width: int) -> Q:
    """Return the quantities of the jobs of several episodes, padded with zeros to `width`."""
    rows: dict[str, Floats] = {}
    for name in (each.name for each in fields(found[0])):
        values: list[Floats] = [getattr(one, name) for one in found]
        rows[name] = np.zeros((len(values), width, *values[0].shape[1:]))
        for row, value in enumerate(values):
            rows[name][row, : len(value)] = value
    return type(found[0])(**rows)
