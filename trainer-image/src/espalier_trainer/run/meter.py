"""Measurements of a run by its leader. They never change how the run trains."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch

from espalier_core.types.measurements import MAX_SCORES, Bid, GrowthForecast, Measurements, ScorePoint
from espalier_trainer.elastic.membership import ONE, Portion
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.measuring.gradients import Noise, Stopwatch, Successive
from espalier_trainer.measuring.speeds import LossCurve, NoiseSampling, StepSpeeds
from espalier_trainer.net2net.modules import device_of
from espalier_trainer.training.network import Network

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Number of nodes and workers that compute a step."""

    nodes: int = 1
    workers: int = 1


class RunMeter:
    """Measurements by the training loop. Not thread-safe."""

    def __init__(self, network: Network, gpu_type: str = "") -> None:
        self._parameters, self._gpu_type = network.parameters, gpu_type
        self._speeds, self._noise, self._losses = StepSpeeds(gpu_type=gpu_type), Noise(), LossCurve()
        self._sampling, self._successive = NoiseSampling(), Successive()
        self.growth: GrowthForecast | None = None
        """The agent's forecast of growing, set by the run; None if unknown."""
        self.bids: tuple[Bid, ...] = ()
        """The worth of the next GPUs, set by the run; empty if unknown."""
        self._scores: list[ScorePoint] = []
        self._alone_cost = 0.0
        """Seconds spent on the first of two successive gradients."""
        self._joint: StepResult | None = None
        self._measured = self._off = False
        """Whether this step's noise is measured; whether there was too little memory for that."""

    def restore(self, measurements: Measurements) -> None:
        """Continue from the measurements of a checkpoint."""
        if not measurements.is_empty:
            self._speeds = StepSpeeds(measurements.speeds, gpu_type=self._gpu_type)
            self._noise = Noise(measurements.gradient)
            self._losses = LossCurve(measurements.losses)
            self._scores = list(measurements.scores)

    def network_changed(self, network: Network) -> None:
        """Record a change of the trained network, to which the noise and the curve of scores belong."""
        parameters = network.parameters
        if parameters != self._parameters:
            self._noise, self._scores = Noise(), self._scores[-1:]
        self._parameters = parameters
        self._speeds.changed()
        self._successive.forget()

    def begin(self, *, may: bool = True) -> bool:
        """Begin a step; return whether its gradient noise is measured, which `may` be forbidden."""
        self._joint = None
        self._measured = may and not self._off and (self._successive.waits or self._sampling.due())
        return self._measured

    @property
    def soon(self) -> bool:
        """Whether the gradient noise must be measured in the step after the current one."""
        return not self._off and not self._measured and (self._successive.waits or self._sampling.due(after=1))

    def look(self, joint: StepResult, network: Network) -> None:
        """Measure the computed step while its gradients exist."""
        self._joint = joint
        if not self._measured:
            return
        if joint.norms is not None:
            self._successive.forget()
            self._noise.add(joint.norms)
            self._sampling.paid(joint.norms_seconds)
        elif not joint.seconds or len(joint.seconds) == 1:
            self._look_alone(joint, network)
        else:
            self._sampling.paid(joint.norms_seconds)  # fewer than two members had examples

    def stepped(
        self, place: WorkerPlacement, seconds: float, epoch: int, step: int, loss: float, portion: Portion = ONE
    ) -> None:
        """Count a step that was taken in `seconds`, with number `step` in epoch `epoch`.

        A step cut short by the end of the epoch does not measure speed.
        """
        self._sampling.stepped(seconds)
        self._losses.add(epoch, step, loss)
        joint = self._joint
        if joint is None or joint.examples <= 0 or not portion.full:
            return
        examples = -(-joint.examples // place.workers)
        key = place.nodes, place.workers, examples, self._parameters, portion.passes
        self._speeds.add(key, seconds, joint.sync_seconds)

    def validated(self, work: float, value: float) -> None:
        """Record the score of an evaluation after `work` epochs."""
        if not math.isfinite(value):
            return
        self._scores = [point for point in self._scores if point.work < work]
        if len(self._scores) == MAX_SCORES:
            self._scores = self._scores[1::2]
        self._scores.append(ScorePoint(work=work, value=value))

    def measured(self) -> Measurements:
        """Return the measurements so far."""
        return Measurements(
            speeds=self._speeds.measured(),
            gradient=self._noise.measured(),
            losses=self._losses.measured(),
            growth=self.growth,
            scores=tuple(self._scores),
            bids=self.bids,
        )

    def _look_alone(self, joint: StepResult, network: Network) -> None:
        first = not self._successive.waits
        watch = Stopwatch(device_of(network.module))
        try:
            with watch:
                norms = self._successive.look(network.module, joint.examples, joint.scale)
        except torch.OutOfMemoryError:
            logger.info("the gradient noise is no longer measured: not enough memory")
            self._successive.forget()
            self._off = True
            return
        if first:
            self._alone_cost = watch.seconds
            return
        self._sampling.paid(self._alone_cost + watch.seconds)
        if norms is not None:
            self._noise.add(norms)
