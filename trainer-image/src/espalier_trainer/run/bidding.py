"""The bids of a run: what the next GPU is worth to it, by `espalier_core.estimates.bids`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from espalier_core.estimates.bids import Bidder, bids_of, speedup_by
from espalier_core.estimates.gains import EVIDENCE
from espalier_core.estimates.goodput import BatchLimits, WorkSpeed, on_type, step_times
from espalier_core.types.job import ElasticBatch, Trials
from espalier_core.types.measurements import Bid
from espalier_core.types.task import ACCURACY, score_in, task_by

if TYPE_CHECKING:
    from espalier_trainer.run.run import Run

SHARE: Final = 0.01
"""Maximum share of the run's time for the computation of bids."""


class Bidding:
    """Computes the bids of a run at the beginnings of epochs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns wall seconds, by which the cost of bids is limited."""
        self._clock = clock
        self._due = float("-inf")
        self._newest: tuple[Bid, ...] = ()

    def look(self, run: Run, trials: Trials, epoch_seconds: float) -> tuple[Bid, ...]:
        """Return the newest bids of a run that tries its growths by `trials`; they are computed again if it is time.

        `epoch_seconds` is how long an epoch takes; 0 while that is not known.
        """
        now = self._clock()
        if epoch_seconds > 0 and now >= self._due:
            self._newest = self._bids(run, trials, epoch_seconds)
            self._due = now + (self._clock() - now) / SHARE
        return self._newest

    def _bids(self, run: Run, trials: Trials, epoch_seconds: float) -> tuple[Bid, ...]:
        measured, training = run.meter.measured(), run.job.spec.training
        score, base = score_in(run.progress.metrics, "validation"), run.scheduler.base_replicas()
        evidence = EVIDENCE[task_by(run.progress.metrics)]
        kind = Trials.RACE if trials is Trials.AUTO else trials
        times = step_times(measured)
        times = on_type(times, times[-1].gpu_type) if times else ()
        speedup: Callable[[int], float] | None = None
        if training.elastic_batch is not None:
            speed = WorkSpeed(
                speeds=times,
                base=base,
                scales_batch=training.elastic_batch is ElasticBatch.SCALE_LINEAR,
                limits=BatchLimits.of(training),
                noise_scale=None if measured.gradient is None else measured.gradient.noise_scale,
            )
            speedup = speedup_by(speed, times[-1].nodes / times[-1].workers if times else 0.0)
            epoch_seconds *= max(speedup(times[-1].workers), 1e-9) if times else 1.0
        return bids_of(
            Bidder(
                measure=ACCURACY if score is None else score.by,
                scores=measured.scores,
                work=run.progress.epoch,
                seconds_left=run.scheduler.time_left(),
                epoch_seconds=epoch_seconds,
                base=base,
                most=run.job.spec.max_replicas,
                tried=max((point.workers for point in times), default=1),
                speedup=speedup,
                forecast=measured.growth,
                trial=None if kind not in evidence else evidence[kind].deviation,
            )
        )
