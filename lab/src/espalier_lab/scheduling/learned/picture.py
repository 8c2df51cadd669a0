"""The network's input from a policy's view, for jobs whose gradients are exchanged by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import (
    FREE,
    WORKERS_ONLY,
    Floats,
    Inputs32,
    JobQuantities,
    NetworkInputs,
    OptionQuantities,
    cluster_features,
    inputs,
    job_features,
    option_features,
)
from espalier_lab.scheduling.learned.speeds import LARGEST_GAIN, gains
from espalier_operator.policies.view import Candidate, Decision, Share, View

AGAIN_SECONDS: Final = 600.0
"""Seconds until a policy is asked again: remaining work changes slowly, and each change costs a restart."""
_LEAST_STEPS: Final = 1e-9
"""Minimum steps, a number that can be multiplied by infinite seconds."""
MOST_WORKERS: Final = 64
"""Maximum number of workers for which a job's speed is looked up, and that it gets."""


@dataclass(slots=True, eq=False)
class PartialDecision:
    """A decision in progress on the jobs of a view: the workers of each so far."""

    jobs: Sequence[Candidate]
    gpus: int
    workers: NDArray[np.int64]
    """(jobs): workers so far."""
    free: int
    """GPUs that are left."""
    order: list[int]
    """The jobs with workers, in the order of their first worker."""
    costs: NDArray[np.int64]
    """(jobs): the GPUs of each job's next gift."""
    _fixed: _Fixed = field(repr=False)
    _seen: tuple[int, Inputs32] | None = field(default=None, repr=False)
    """The last observed cluster features except the free part, with the number of jobs that had workers then."""

    @classmethod
    def of(cls, view: View) -> PartialDecision:
        """Begin: jobs that run and may not be stopped have their base workers; if all base workers fit, all jobs do."""
        fixed = _Fixed.of(view)
        jobs = fixed.jobs
        base = fixed.base * fixed.gpus
        total = int(base.sum())
        stay = np.array([bool(job.workers) and not job.yields for job in jobs], bool)
        has = np.ones(len(jobs), bool) if total <= view.gpus else stay
        taken = int(base[has].sum())
        if taken > view.gpus:  # GPUs disappeared; the planner handles the rest
            has, taken = np.zeros(len(jobs), bool), 0
        workers = np.where(has, fixed.base, 0)
        order = [int(index) for index in np.flatnonzero(workers)]
        costs = np.where(has, fixed.gpus, base)
        return cls(jobs, view.gpus, workers, view.gpus - taken, order, costs, fixed)

    def mask(self) -> NDArray[np.bool_]:
        """Return the mask of choices, (jobs + 1): one more worker for each job that is not complete, then "stop".

        A waiting job gets its base workers at once. While one of these fits, there is no other choice.
        """
        found, waits = np.empty(len(self.jobs) + 1, bool), self.workers == 0
        fits = self.costs <= self.free
        np.logical_and(fits, waits, out=found[:-1])
        found[-1] = not found[:-1].any()
        if found[-1]:
            np.logical_and(fits & ~waits, self.workers < self._fixed.most, out=found[:-1])
        return found

    def give(self, index: int) -> None:
        """Give the job of this index its base workers, or one more."""
        self.free -= int(self.costs[index])
        if not self.workers[index]:
            self.order.append(index)
            self.costs[index] = self._fixed.gpus[index]
        self.workers[index] = self._fixed.base[index] if not self.workers[index] else self.workers[index] + 1

    def is_complete(self, index: int) -> bool:
        """Return whether a job with workers takes no more."""
        return bool(self.workers[index] >= self._fixed.most[index])

    def decision(self, now: float) -> Decision:
        """Return shares, in the order of the jobs' first workers, for `AGAIN_SECONDS`.

        A job of unknown speed gets spare workers too, while no share needs their GPUs.
        """
        waiting = [index for index in range(len(self.jobs)) if not self.workers[index]]
        shares = []
        for index in (*self.order, *waiting):
            job, workers = self.jobs[index], int(self.workers[index])
            spare = 0 if self._fixed.known[index] or not workers else job.max_workers - workers
            shares.append(Share(job=job.key, workers=workers, spare=max(0, spare)))
        return Decision(shares=tuple(shares), preempts=True, until=now + AGAIN_SECONDS if shares else None)

    def speed_parts(self) -> Floats:
        """Return (jobs): the speed of each with its workers so far, relative to its best speed."""
        fixed = self._fixed
        left = fixed.steps * fixed.seconds[np.arange(len(self.jobs)), self.workers]
        return np.asarray(fixed.best / left)

    def inputs(self) -> NetworkInputs:
        """Return the network's input."""
        jobs, options = self.quantities()
        return inputs(jobs, options, np.array(self.free / max(1, self.gpus)), np.ones(len(self.jobs)))

    def quantities(self) -> tuple[JobQuantities, OptionQuantities]:
        """Return the quantities of the jobs and of their options."""
        return self._quantities(np.arange(len(self.jobs)), self.workers)

    def tables(self) -> tuple[Inputs32, Inputs32]:
        """Return the features of each job with each number of workers, for the whole decision.

        (jobs, workers + 1, features) of jobs and of options, these without `OF_FREE` (see `of_free`). Entries for
        impossible numbers of workers are meaningless.
        """
        count, width = self._fixed.seconds.shape
        jobs, options = self._quantities(np.arange(count)[:, None], np.broadcast_to(np.arange(width), (count, width)))
        offered = option_features(options, jobs.known, float(count))
        return job_features(jobs, float(count)), offered[:, :, 0]

    def cluster(self) -> Inputs32:
        """Return the cluster features, as in `inputs`."""
        gpus, served = max(1, self.gpus), len(self.order)
        if self._seen is None or self._seen[0] != served:
            self._seen = served, cluster_features(0.0, len(self.jobs), self.costs.sum() / gpus, served)
        found = self._seen[1].copy()
        found[FREE] = self.free / gpus
        return found

    def of_free(self, rows: NDArray[np.int64]) -> Floats:
        """Return the feature `OF_FREE` of jobs' possible options, as in `inputs`."""
        return self.costs[rows] / self.free

    def _quantities(
        self, rows: NDArray[np.int64], workers: NDArray[np.int64]
    ) -> tuple[JobQuantities, OptionQuantities]:
        """Return the quantities of the jobs of these rows, which broadcast with their assumed workers."""
        fixed, gpus = self._fixed, max(1, self.gpus)
        at, none = (rows, workers), np.zeros(workers.shape)
        waits = workers == 0
        cost = np.where(waits, fixed.base[rows], 1) * fixed.gpus[rows]
        after = np.where(waits, fixed.base[rows], workers + 1)
        steps = fixed.steps[rows]
        jobs = JobQuantities(
            workers=workers.astype(float),
            most_workers=fixed.most[rows].astype(float),
            servers=none,
            most_servers=none,
            held=fixed.held[rows].astype(float),
            share=workers * fixed.gpus[rows] / gpus,
            age=fixed.age[rows],
            left=steps * fixed.seconds[at],
            best_left=fixed.best[rows],
            known=fixed.known[rows],
            done=fixed.done[rows],
        )
        options = OptionQuantities(
            gain=fixed.gain[at][..., None],
            gain_ahead=fixed.gain_ahead[at][..., None],
            saved=(steps * fixed.saved[at])[..., None],
            saved_ahead=(steps * fixed.saved_ahead[at])[..., None],
            share=(cost / gpus)[..., None],
            fits=(cost <= self.free).astype(float)[..., None],
            restores=(after <= fixed.held[rows]).astype(float)[..., None],
        )
        return jobs, options


@dataclass(frozen=True, slots=True, eq=False)
class _Fixed:
    """Values that are constant during a decision; arrays of shape (jobs) or (jobs, workers + 1)."""

    jobs: tuple[Candidate, ...]
    base: NDArray[np.int64]
    most: NDArray[np.int64]
    gpus: NDArray[np.int64]
    held: NDArray[np.int64]
    age: Floats
    done: Floats
    known: Floats
    steps: Floats
    best: Floats
    seconds: Floats
    gain: Floats
    gain_ahead: Floats
    saved: Floats
    saved_ahead: Floats

    @classmethod
    def of(cls, view: View) -> _Fixed:
        jobs = view.jobs
        base = np.array([max(1, job.min_workers) for job in jobs], np.int64)
        gpus = np.array([max(1, job.gpus_per_worker) for job in jobs], np.int64)
        most = np.array(
            [min(job.max_workers, MOST_WORKERS, view.gpus // max(1, job.gpus_per_worker)) for job in jobs], np.int64
        )
        most = np.maximum(most, base)
        width = int(most.max(initial=0)) + 1
        count = len(jobs)
        known, steps, best = np.zeros(count), np.full(count, _LEAST_STEPS), np.zeros(count)
        seconds = np.full((count, width), np.inf)
        for row, job in enumerate(jobs):
            speed_model = view.speed_models.get(job.key)
            if speed_model is None:
                continue
            first, size = int(base[row]), int(most[row]) + 1
            own = [speed_model.step_seconds(workers) for workers in range(first, size)]
            seconds[row, first:size] = own
            known[row], steps[row] = 1.0, max(_LEAST_STEPS, speed_model.remaining_steps)
            best[row] = steps[row] * min(own)
        columns = _gains(seconds, most, known > 0)
        return cls(
            jobs=jobs,
            base=base,
            most=most,
            gpus=gpus,
            held=np.array([job.workers for job in jobs], np.int64),
            age=np.array([view.now - job.submitted_at for job in jobs], float),
            done=np.array([job.done or 0.0 for job in jobs], float),
            known=known,
            steps=steps,
            best=best,
            seconds=seconds,
            **columns,
        )


def _gains(seconds: Floats, most: NDArray[np.int64], known: NDArray[np.bool_]) -> dict[str, Floats]:
    """Return the gain of one more worker at each number; at none, the gain of the base workers.

    The names are those of `OptionGains`, (jobs, workers + 1); 0 for jobs of unknown speed.
    """
    columns = {name: np.zeros(seconds.shape) for name in ("gain", "gain_ahead", "saved", "saved_ahead")}
    possible = np.arange(seconds.shape[1]) <= most[known, None]
    found = gains(np.where(possible, seconds[known], np.nan)[:, None, :], WORKERS_ONLY)
    for name, column in columns.items():
        column[known] = getattr(found, name)[:, 0, :, 0]
        column[known, 0] = LARGEST_GAIN if name.startswith("gain") else np.inf
    return columns
