"""What a policy's view means to the network, for jobs whose gradients are exchanged by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_operator.policies.view import Candidate, Decision, Share, View
from espalier_scheduling.learned.description import (
    WORKERS_ONLY,
    Floats,
    Inputs,
    JobQuantities,
    OptionQuantities,
    inputs,
)
from espalier_scheduling.learned.speeds import LARGEST_GAIN, Gains, gains

AGAIN_SECONDS: Final = 600.0
"""Jobs come and end more often than that; what is left of them changes slowly, and each change costs a restart."""
_LEAST_STEPS: Final = 1e-9
"""A number that can be multiplied with infinite seconds."""
MOST_WORKERS: Final = 64
"""The speed of a job is looked up with so many workers at most, and it gets no more."""


@dataclass(slots=True, eq=False)
class Picture:
    """A decision that is being made about the jobs of a view: who has how many workers in it so far."""

    jobs: Sequence[Candidate]
    gpus: int
    workers: NDArray[np.int64]
    """(jobs): so far."""
    free: int
    """GPUs that are left."""
    order: list[int]
    """The jobs that have workers, in the order in which they got the first."""
    _fixed: _Fixed = field(repr=False)

    @classmethod
    def of(cls, view: View) -> Picture:
        """Begin: jobs that run and may not be stopped have their base workers; if those of all fit, all have them."""
        fixed = _Fixed.of(view)
        jobs = fixed.jobs
        base = fixed.base * fixed.gpus
        total = int(base.sum())
        stay = np.array([bool(job.workers) and not job.yields for job in jobs], bool)
        has = np.ones(len(jobs), bool) if total <= view.gpus else stay
        taken = int(base[has].sum())
        if taken > view.gpus:  # GPUs went away; the planner sees to what follows
            has, taken = np.zeros(len(jobs), bool), 0
        workers = np.where(has, fixed.base, 0)
        order = [int(index) for index in np.flatnonzero(workers)]
        return cls(jobs, view.gpus, workers, view.gpus - taken, order, fixed)

    def mask(self) -> NDArray[np.bool_]:
        """Return what can be chosen, (jobs + 1): one worker more for each job that is not complete, then "stop".

        A job that waits gets its base workers at once. While one of those fits, nothing else can be chosen.
        """
        fits = self._cost() <= self.free
        waits = self.workers == 0
        starts = fits & waits
        if starts.any():
            return np.append(starts, False)
        return np.append(fits & ~waits & (self.workers < self._fixed.most), True)

    def give(self, index: int) -> None:
        """Give the job of this index its base workers, or one more."""
        self.free -= int(self._cost()[index])
        if not self.workers[index]:
            self.order.append(index)
        self.workers[index] = self._fixed.base[index] if not self.workers[index] else self.workers[index] + 1

    def decision(self, now: float) -> Decision:
        """Return shares, in the order in which jobs first got workers; asked again after `AGAIN_SECONDS`.

        A job of which no speed is known gets spare workers too, while no share needs their GPUs.
        """
        waiting = [index for index in range(len(self.jobs)) if not self.workers[index]]
        shares = []
        for index in (*self.order, *waiting):
            job, workers = self.jobs[index], int(self.workers[index])
            spare = 0 if self._fixed.known[index] or not workers else job.max_workers - workers
            shares.append(Share(job=job.key, workers=workers, spare=max(0, spare)))
        return Decision(shares=tuple(shares), preempts=True, until=now + AGAIN_SECONDS if shares else None)

    def speed_parts(self) -> Floats:
        """Return (jobs): the speed of each with what it has so far, over the best that it could have."""
        fixed = self._fixed
        left = fixed.steps * fixed.seconds[np.arange(len(self.jobs)), self.workers]
        return np.asarray(fixed.best / left)

    def inputs(self) -> Inputs:
        """Return what the network sees."""
        jobs, options = self.quantities()
        return inputs(jobs, options, np.array(self.free / max(1, self.gpus)), np.ones(len(self.jobs)))

    def quantities(self) -> tuple[JobQuantities, OptionQuantities]:
        """Return what is known of the jobs and of what each could get more of."""
        fixed, workers = self._fixed, self.workers
        rows = np.arange(len(self.jobs))
        gpus = max(1, self.gpus)
        zeros = np.zeros(len(self.jobs))
        cost = self._cost()
        left = fixed.steps * fixed.seconds[rows, workers]
        saved, saved_ahead = fixed.steps * fixed.saved[rows, workers], fixed.steps * fixed.saved_ahead[rows, workers]
        jobs = JobQuantities(
            workers=workers.astype(float),
            most_workers=fixed.most.astype(float),
            servers=zeros,
            most_servers=zeros,
            held=fixed.held.astype(float),
            share=workers * fixed.gpus / gpus,
            age=fixed.age,
            left=left,
            best_left=fixed.best,
            known=fixed.known,
            done=fixed.done,
        )
        after = np.where(workers == 0, fixed.base, workers + 1)
        options = OptionQuantities(
            gain=fixed.gain[rows, workers][:, None],
            gain_ahead=fixed.gain_ahead[rows, workers][:, None],
            saved=saved[:, None],
            saved_ahead=saved_ahead[:, None],
            share=(cost / gpus)[:, None],
            fits=(cost <= self.free).astype(float)[:, None],
            restores=(after <= fixed.held).astype(float)[:, None],
        )
        return jobs, options

    def _cost(self) -> NDArray[np.int64]:
        """Return the GPUs that each job would take next."""
        return np.where(self.workers == 0, self._fixed.base, 1) * self._fixed.gpus


@dataclass(frozen=True, slots=True, eq=False)
class _Fixed:
    """What does not change while a decision is made; arrays of shape (jobs) or (jobs, workers + 1)."""

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
        columns = {name: np.zeros((count, width)) for name in ("gain", "gain_ahead", "saved", "saved_ahead")}
        for row, job in enumerate(jobs):
            outlook = view.outlooks.get(job.key)
            if outlook is None:
                continue
            size = int(most[row]) + 1
            own = seconds[row, :size]
            own[base[row] :] = [outlook.step_seconds(workers) for workers in range(int(base[row]), size)]
            known[row], steps[row] = 1.0, max(_LEAST_STEPS, outlook.remaining_steps)
            best[row] = steps[row] * float(own.min())
            found = _gains(own.tobytes())
            for name, column in columns.items():
                column[row, :size] = getattr(found, name)[0, :, 0]
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


@lru_cache(10_000)
def _gains(raw: bytes) -> Gains:
    """Return what one worker more gains from each number on; from none on, what the base workers gain.

    `raw`: the seconds of a step by workers, float64; the same ones are asked for at every decision about a job.
    """
    seconds = np.frombuffer(raw)
    found = gains(seconds[None, :], WORKERS_ONLY)
    found.gain[0, 0], found.gain_ahead[0, 0] = LARGEST_GAIN, LARGEST_GAIN
    found.saved[0, 0], found.saved_ahead[0, 0] = np.inf, np.inf
    return found
