"""The batch size of a run: set by the job's author (`Fixed`), or chosen for the best goodput (`Goodput`). Pure.

`batch: Goodput` follows Pollux (OSDI 2021): at the ends of epochs, and when the workers or the model have changed, the
leader takes the multiple of the author's batch size with the largest goodput (`espalier_core.estimates.goodput`), by
the speeds and the gradient noise that were measured. It goes at most `GROWTH` times beyond what was measured, and
changes nothing for less than `GAIN`. The learning rate follows by AdaScale's gain, or by its square root for optimizers
that scale gradients themselves, as in AdaptDL (`AdamScale`). Progress is counted in the author's steps, each step by
its gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch

from espalier_core.estimates.goodput import BatchLimits, Choice, best, choice, fitted, gain, on_type, step_times
from espalier_core.types.job import ElasticBatch, TrainingSpec
from espalier_core.types.measurements import Measurements
from espalier_trainer.checkpoints.document import BatchState
from espalier_trainer.elastic.membership import Portion, fixed_portion
from espalier_trainer.run.meter import WorkerPlacement

GROWTH: Final = 2
"""Limit of a batch, and of a worker's part of it in a pass, as a multiple of the largest measured one."""
GAIN: Final = 1.05
"""Minimum ratio of goodputs for a change of size, without which the size would change with each measurement."""
LEAST_STEPS: Final = 16
"""Number of steps after which a configuration counts as measured."""
LEAST_SAMPLES: Final = 10
"""Minimum number of estimates of the noise for a decision by it."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A change of the batch size."""

    before: int
    """Number of examples in a step of all workers together."""
    after: int
    passes: int
    expected: float | None
    """Expected goodput at the new size relative to the old one; None if the memory was too small."""
    untested: bool = False
    """Whether no worker has computed this many examples at once yet."""


class Batching(Protocol):
    """Strategy for each step's portion of the epoch. By default, only the author decides."""

    @property
    def batch_size(self) -> int | None:
        """Number of examples in a step of all workers together; None for the job's."""
        return None

    def portion(self, world: int, cursor: int, batches: int) -> Portion:
        """Return the portion of the step at batch `cursor` of an epoch of `batches` batches."""

    def choose(
        self, measure: Callable[[], Measurements], place: WorkerPlacement, parameters: int, *, epoch_begins: bool
    ) -> Resized | None:
        """Choose the size of the next steps of a model of `parameters` parameters; return None to keep it.

        `measure` returns the measurements of the run so far.
        """
        return None

    def stepped(self, portion: Portion, world: int) -> bool:
        """Count a step; return whether it shows that a new size fits into memory."""
        return False

    def out_of_memory(self, world: int) -> Resized | None:
        """Return a smaller size after a worker was out of memory; None if the size is not to blame."""
        return None

    def measurable(self, portion: Portion) -> Portion:
        """Return the portion that a worker without others takes in a step that measures the gradient noise."""
        return portion

    def worth(self, portion: Portion) -> float:
        """Return the number of steps that a step counts for in comparisons of durations."""
        return 1.0

    def schedule_due(self, batches: int) -> bool:
        """Return whether the learning rate's schedule counts the epoch of `batches` batches that has ended."""
        return True

    def state(self) -> BatchState | None:
        """Return the state for a checkpoint."""
        return None

    def load(self, state: BatchState | None) -> None:
        """Continue from the state of a checkpoint."""
        return


@dataclass(frozen=True, slots=True)
class FixedBatching(Batching):
    """The author's batch size, divided among workers or multiplied by them."""

    policy: ElasticBatch = ElasticBatch.KEEP_GLOBAL
    passes: int = 1
    """Number of passes over which each worker splits its share."""

    def portion(self, world: int, cursor: int, batches: int) -> Portion:
        """Return one batch, or one for each worker."""
        portion = fixed_portion(self.policy, world, cursor, batches)
        return portion if self.passes == 1 else replace(portion, passes=self.passes)


class GoodputBatching(Batching):
    """The batch size with the largest goodput within the author's limits."""

    def __init__(self, limits: BatchLimits, *, adaptive: bool = False, accumulates: bool = True) -> None:
        """`adaptive`: the optimizer scales gradients itself. `accumulates`: a worker may take several passes."""
        self._limits, self._adaptive, self._accumulates = limits, adaptive, accumulates
        self._state = BatchState()
        self._before = 1
        """Size before the last change."""
        self._untested = False
        """Whether no step of this size has shown yet that it fits into memory."""
        self._place: WorkerPlacement | None = None

    @property
    def batch_size(self) -> int:
        """Number of examples in a step of all workers together."""
        return self._state.batches * self._limits.batch_size

    @property
    def limits(self) -> BatchLimits:
        """The author's limits, with the memory's limit as far as it is known."""
        limits, found = self._limits, self._state.pass_limit
        known = [size for size in (limits.max_pass_size, found) if size is not None]
        return BatchLimits(
            batch_size=limits.batch_size,
            max_batch_size=limits.max_batch_size,
            max_pass_size=min(known, default=None),
        )

    def portion(self, world: int, cursor: int, batches: int) -> Portion:
        """Return the chosen number of batches, fewer at the end of the epoch."""
        taken = min(self._state.batches, batches - cursor)
        worth = self._gain(taken)
        return Portion(
            batches=taken,
            passes=self._passes(taken, world),
            rate=math.sqrt(worth) if self._adaptive else worth,
            full=taken == self._state.batches,
        )

    def choose(
        self, measure: Callable[[], Measurements], place: WorkerPlacement, parameters: int, *, epoch_begins: bool
    ) -> Resized | None:
        """Choose the best size, if the current one was measured or the workers have changed."""
        moved, self._place = self._place not in (None, place), place
        if not (epoch_begins or moved):
            return None
        measured = measure()
        if parameters != self._state.parameters:
            self._keep(parameters=parameters, fits=0 if self._state.parameters else self._state.fits)
        if measured.gradient is not None and measured.gradient.samples >= LEAST_SAMPLES:
            self._keep(noise=measured.gradient)
        noise, points = self._state.noise, step_times(measured)
        points = on_type(points, points[-1].gpu_type) if points else points
        if noise is None or not points or measured.speeds[-1].parameters != parameters:
            return None  # a grown model has no measurements yet
        if not moved and not self._is_measured(measured, place, parameters):
            return None
        model = fitted(points)
        if model is None:
            return None
        limits, size = self.limits, self._limits.batch_size
        tried = max(point.workers * point.batch_size for point in points)
        largest_pass = max(point.pass_size for point in points)
        limits = BatchLimits(
            batch_size=size,
            max_batch_size=limits.max_batch_size,
            max_pass_size=min(GROWTH * largest_pass, limits.max_pass_size or GROWTH * largest_pass),
        )
        most = GROWTH * tried // size
        if not self._accumulates and limits.max_pass_size is not None:
            most = min(most, limits.max_pass_size * place.workers // size)
        batches = self._state.batches
        now = choice(model, noise, limits, place.nodes, place.workers, batches)
        found = best(model, noise, limits, place.nodes, place.workers, most)
        if len(points) == 1 and batches > 1:
            # A grown model: one size does not show the cost of a smaller one, so that has to be tried.
            found = choice(model, noise, limits, place.nodes, place.workers, batches // 2)
        elif found.goodput <= GAIN * now.goodput or found.batches == now.batches:
            return None
        changed = self._resize(found, found.goodput / now.goodput)
        share = limits.share(found.batches, place.workers)
        self._untested = 0 < self._state.fits < -(-share // found.passes)
        return replace(changed, untested=self._untested)

    def stepped(self, portion: Portion, world: int) -> bool:
        """Count the step's progress, and the examples that fitted into memory."""
        share = self._limits.share(portion.batches, world)
        fits = max(self._state.fits, -(-share // portion.passes))
        self._keep(fits=fits, progress=self._state.progress + self._gain(portion.batches))
        proved = self._untested and portion.full
        if portion.full:
            self._before, self._untested = self._state.batches, False
        return proved

    def out_of_memory(self, world: int) -> Resized | None:
        """Compute fewer examples in a pass: as many as have fitted, but no fewer than for the author's batch size.

        A size that was never trained with is given up.
        """
        state, limits = self._state, self.limits
        share = limits.share(state.batches, world)
        used, least = -(-share // limits.passes(state.batches, world)), limits.share(1, world)
        if used <= least:
            return None
        self._keep(pass_limit=max(least, state.fits if 0 < state.fits < used else used // 2))
        before, self._untested = self._before, False
        return self._resize(Choice(0.0, before, self._passes(before, world)), None)

    def measurable(self, portion: Portion) -> Portion:
        """Take the step in two passes at least, as Pollux does in all steps.

        Successive gradients, which are the other estimate of the noise, belong to different weights. At a high learning
        rate this makes the noise seem larger, which raises the rate, and so on. The step is no measurement of speed.
        """
        return replace(portion, passes=max(2, portion.passes), full=False) if self._accumulates else portion

    def worth(self, portion: Portion) -> float:
        """Return the step's number of batches: sizes change, and a step of more examples is no slower computation."""
        return float(portion.batches)

    def schedule_due(self, batches: int) -> bool:
        """Return whether the progress has reached the end of another epoch of the author's batch size."""
        reached = math.floor(self._state.progress / batches + 1e-6) > self._state.scheduled
        self._keep(scheduled=self._state.scheduled + reached)
        return reached

    def state(self) -> BatchState:
        """Return the state for a checkpoint.

        Before the first step of a new size, it holds the size before, as a limit: not every lack of memory raises an
        error here. The process may be killed, or a user's loop may end it.
        """
        if not self._untested:
            return self._state
        return self._state.model_copy(update={"batches": self._before, "pass_limit": self._state.fits})

    def load(self, state: BatchState | None) -> None:
        """Continue with the same size, reduced to the job's limits if they have become smaller."""
        state = state or BatchState()
        self._state = state.model_copy(update={"batches": min(state.batches, self._limits.most)})
        self._before, self._untested, self._place = self._state.batches, False, None

    # ---- within

    def _gain(self, batches: int) -> float:
        noise = self._state.noise
        return 1.0 if noise is None else gain(noise, self._limits.batch_size, batches)

    def _passes(self, batches: int, world: int) -> int:
        return self.limits.passes(batches, world) if self._accumulates else 1

    def _is_measured(self, measured: Measurements, place: WorkerPlacement, parameters: int) -> bool:
        share = self._limits.share(self._state.batches, place.workers)
        now = place.nodes, place.workers, share, parameters
        return any(
            (each.nodes, each.workers, each.batch_size, each.parameters) == now and each.steps >= LEAST_STEPS
            for each in measured.speeds
        )

    def _resize(self, found: Choice, expected: float | None) -> Resized:
        before = self.batch_size
        self._before = self._state.batches if expected is not None else found.batches
        self._keep(batches=found.batches)
        return Resized(before, self.batch_size, found.passes, expected)

    def _keep(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)


def batching_of(
    training: TrainingSpec, batch_size: int, optimizer: torch.optim.Optimizer, *, accumulates: bool = True
) -> Batching:
    """Return the strategy for a job whose loop has batches of `batch_size` examples."""
    limits = BatchLimits.of(training, batch_size)
    if limits is None:
        passes = training.accumulation if accumulates else 1
        return FixedBatching(training.elastic_batch or ElasticBatch.KEEP_GLOBAL, passes)
    # AdaScale's rule is for plain gradient descent. In a user's loop, a worker that is alone cannot compute a step in
    # passes, and takes the noise to be larger than it is: there, the square root is the safe choice.
    adaptive = not (accumulates and isinstance(optimizer, torch.optim.SGD))
    return GoodputBatching(limits, adaptive=adaptive, accumulates=accumulates)
