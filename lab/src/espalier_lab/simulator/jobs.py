"""Simulated jobs and their progress with their workers, in seconds of simulated time throughout."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Final

from espalier_core.estimates.goodput import adascale_gain
from espalier_core.types.measurements import Bid
from espalier_lab.simulator.holdings import HeldSpan, hold
from espalier_lab.simulator.profiles import Application
from espalier_operator.policies.view import SpeedModel

NODE_GPUS: Final = 4
"""Workers per node if nodes are not given."""
RESTART_SECONDS: Final = 30.0
"""Seconds for which a job does not train after a change of its workers (Qiao et al., OSDI 2021, 5.3)."""
_ROUNDING: Final = 1e-8


class SimulatedJob(ABC):
    """A job of a trace, and its state."""

    def __init__(self, name: str, submitted_at: float, workers: int, most: int) -> None:
        """Take its author's request, and the maximum number of workers with which it can train; one GPU per worker."""
        self.name, self.submitted_at = name, submitted_at
        self.origin = ""
        """File, line and field of its number of workers, for errors."""
        self.requested, self.most_workers = workers, max(workers, most)
        self.least_workers = 1
        """Minimum number of workers with which it trains, if the policy chooses their number."""
        self.priority = 0
        self.preemptible: bool | None = None
        """Whether it yields its base GPUs; None: as all jobs of the simulation."""
        self.placement: tuple[int, ...] = ()
        """Number of its workers on each of its nodes."""
        self.workers = 0
        self.gpu_type: str | None = None
        """Type of its GPUs; irrelevant if all are alike."""
        self.runs_on: tuple[str, ...] = ()
        """Types of GPU on which it can run; empty: all."""
        self.pause_seconds = RESTART_SECONDS
        """Seconds for which it does not train after a change of its workers."""
        self.idle_gpus = 0
        """GPUs that it holds in addition, for workers that start or save a checkpoint."""
        self.start_seconds = 0.0
        """Seconds from its submission until it would train on an idle cluster."""
        self.ideal: tuple[int, ...] = ()
        """Its workers on each node of the idle cluster, as its author asked for them; empty: four per node."""
        self.service = 0.0
        """GPU-seconds held so far."""
        self.held: list[HeldSpan] = []
        self.restarts = -1
        self.evictions = 0
        """Number of times that it lost all its workers before completion."""
        self.preemptions = 0
        """Number of times that it lost workers, some or all, before completion."""
        self.completed_at: float | None = None
        self._pause = 0.0

    @property
    def speed_model(self) -> SpeedModel | None:
        """Its true speed, for policies that use it; None if the trace does not have it."""
        return None

    @property
    def bids(self) -> tuple[Bid, ...]:
        """What its next GPUs are worth to it; empty: it does not say."""
        return ()

    def place(self, placement: tuple[int, ...]) -> None:
        """Give it exactly these workers from now on."""
        self.evictions += self.workers > 0 and not placement
        self.preemptions += sum(placement) < self.workers
        self.placement, self.workers = placement, sum(placement)
        if placement:
            self.restarts += 1
            self._pause = self.pause_seconds
            self._placed()

    def isolated_seconds(self, contention: float, gpus: int) -> float:
        """Return its duration with 1 / `contention` of all GPUs, in turns if these are fewer than it needs.

        This includes its start.
        """
        return self.start_seconds + self.seconds_alone() * max(1.0, self.requested * contention / gpus)

    @abstractmethod
    def seconds_alone(self) -> float:
        """Return its whole duration as its author asked for it. Raise `TraceError`."""

    def advance(self, now: float, seconds: float) -> bool:
        """Let `seconds` pass from `now` on; return whether something changed that a policy could know."""
        if not self.workers:
            self.service += hold(self.held, now, now + seconds, self.idle_gpus)
            return False
        pause = min(self._pause, seconds)
        self._pause -= pause
        before = self.completed_at
        changed = self._train(now + pause, seconds - pause)
        end = now + seconds if self.completed_at is before or self.completed_at is None else self.completed_at
        self.service += hold(self.held, now, end, self.workers + self.idle_gpus)
        return changed

    def _placed(self) -> None:
        """Prepare for other workers; nothing by default."""
        return

    @abstractmethod
    def _train(self, now: float, seconds: float) -> bool:
        """Train for `seconds`, or until completion; return whether a policy could know about progress."""


class FixedJob(SimulatedJob):
    """A job that runs for a fixed time with the requested workers, and proportionally longer with fewer."""

    def __init__(self, name: str, submitted_at: float, workers: int, duration: float) -> None:
        super().__init__(name, submitted_at, workers, workers)
        self._left = self._duration = duration

    def seconds_alone(self) -> float:
        """Return its duration."""
        return self._duration

    def _speed(self) -> float:
        """Return the seconds of its duration that pass per second."""
        return self.workers / self.requested

    def _train(self, now: float, seconds: float) -> bool:
        speed = self._speed()
        if self._left > seconds * speed:
            self._left -= seconds * speed
            return False
        self.completed_at = now + self._left / speed
        return True


class ProfiledJob(SimulatedJob):
    """A job of a measured application with a global batch size, as in the simulator of the Pollux artifact."""

    def __init__(self, name: str, submitted_at: float, workers: int, batch: int, application: Application) -> None:
        # ncf was measured on one worker only (the artifact limits it too).
        most = 1 if application.name == "ncf" else max(1, batch // application.min_local)
        super().__init__(name, submitted_at, workers, most)
        self.application, self.batch = application, batch
        self.epoch, self._progress = 0, 0.0
        self._goodput, self._epoch_ends = 0.0, application.progress_after(1)
        self._remaining = self._count_remaining()
        self._known: dict[int, float] = {}
        self._tried = 0

    @property
    def speed_model(self) -> SpeedModel:
        """Its true speed and its remaining work: Optimus+Oracle of the Pollux paper."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Steps until the last epoch is complete; 1 in that epoch."""
        return self._remaining

    @property
    def tried_workers(self) -> int:
        """Maximum number of workers that it has had."""
        return self._tried

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the goodput in this epoch, in initial steps per second; nodes as for `step_seconds`."""
        return self._gain(self.batch) / self.step_seconds(workers)

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step with `workers` workers, four per node."""
        known = self._known.get(workers)
        if known is None:
            placement = _on_nodes_of_four(workers)
            local, accumulations = self._split(workers, always=workers == 1)
            step, sync = self.application.times(placement, local)
            known = self._known[workers] = step + (step - sync) * accumulations
        return known

    def seconds_alone(self) -> float:
        """Return its training time with its workers at their places on the idle cluster."""
        alone = ProfiledJob(self.name, 0.0, self.requested, self.batch, self.application)
        alone.place(self.ideal or _on_nodes_of_four(self.requested))
        alone._train(0.0, math.inf)
        return alone.completed_at or 0.0

    def _count_remaining(self) -> float:
        last = self.application.epochs - 1
        if last <= self.epoch:
            return 1.0
        return self.application.iterations(self.batch, last) - self.application.iterations(self.batch, self.epoch)

    def _split(self, workers: int, *, always: bool) -> tuple[int, int]:
        """Return the examples of a worker in a forward pass, and the accumulation steps before the last pass."""
        application = self.application
        local = math.ceil(self.batch / workers - _ROUNDING)
        accumulations = math.ceil(local / application.max_local - _ROUNDING) - 1
        if always:
            accumulations = max(1, accumulations)
        atomic = math.ceil(local / (accumulations + 1) - _ROUNDING)
        return min(atomic, int(application.max_batch / (workers * (accumulations + 1)))), accumulations

    def _placed(self) -> None:
        self._tried = max(self._tried, self.workers)
        self._configure()
        self._measure()

    def _configure(self) -> None:
        """Compute the seconds of a step, and its examples."""
        application = self.application
        local, accumulations = self._split(
            self.workers, always=self.workers == 1 and self.batch > application.initial_batch
        )
        step, sync = application.times(self.placement, local)
        self._step = step + (step - sync) * accumulations
        self._trained_batch = self.workers * local * (accumulations + 1)

    def _measure(self) -> None:
        """Compute the goodput in this epoch: steps of the initial batch size per second."""
        self._goodput = self._gain(self._trained_batch) / self._step

    def _gain(self, batch: int) -> float:
        """Return the value of a step in this epoch, in steps of the initial batch size (AdaScale's gain)."""
        scale = batch / self.application.initial_batch
        square, variance = self.application.gradient(batch, self.epoch)
        return adascale_gain(square, variance, scale)

    def _train(self, now: float, seconds: float) -> bool:
        if self._progress + self._goodput * seconds < self._epoch_ends:
            self._progress += self._goodput * seconds
            return False
        changed = False
        while seconds > 0 and self.completed_at is None:
            if self._progress + self._goodput * seconds < self._epoch_ends:
                self._progress += self._goodput * seconds
                break
            changed = True
            self.epoch += 1
            passed = round((self._epoch_ends - self._progress) / self._goodput)
            self._progress = self._epoch_ends
            now, seconds = now + passed, seconds - passed
            if self.epoch == self.application.epochs:
                self.completed_at = now
                break
            self._epoch_ends = self.application.progress_after(self.epoch + 1)
            self._remaining = self._count_remaining()
            self._measure()
        return changed


def _on_nodes_of_four(workers: int) -> tuple[int, ...]:
    """Return the workers on each of as few nodes as possible."""
    full, rest = divmod(workers, NODE_GPUS)
    return (NODE_GPUS,) * full + ((rest,) if rest else ())
