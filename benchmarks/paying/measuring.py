"""Measures what steps and pauses cost on this machine: by the same workers, in real time, before the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.validation.reading import with_spec
from espalier_lab.extra_worker import ExtraWorker
from espalier_trainer.data import load_data
from espalier_trainer.signals.scheduler import ReplicaChange
from paying.arms import Arm
from paying.costs import Costs, LayerCosts, TimedTeam
from paying.training import Setting, points_of, train

STEPS = 100
CHANGES = 5
_FREE = Costs(one=LayerCosts(base=1.0, added={}), two=LayerCosts(base=1.0, added={}), join_s=0, leave_s=0, growth_s=0)
"""Time is counted in steps while it is measured."""


@dataclass
class _Gaps:
    """The wall seconds of steps by one worker or two."""

    alike: list[float] = field(default_factory=list)
    """By as many workers as the step before."""
    joins: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    growths: list[float] = field(default_factory=list)
    _world: int = 1
    _growths: int = 0

    def took(self, seconds: float, team: TimedTeam | None) -> None:
        """Put a gap where it belongs."""
        world = 1 if team is None else team.world
        growths = 0 if team is None else team.growths
        if growths > self._growths:
            self.growths.append(seconds)
        elif world != self._world:
            (self.joins if world > self._world else self.leaves).append(seconds)
        else:
            self.alike.append(seconds)
        self._world, self._growths = world, growths


def measure(setting: Setting, extra: ExtraWorker, rounds: int) -> Costs:
    """Return the costs of the job's model and of its growth, for one worker and two."""
    job = setting.job
    points = points_of(job)
    one, two = (_layers(setting, extra, points, workers, rounds) for workers in (1, 2))
    changes = _changes(setting, extra)
    return Costs(
        one=one,
        two=two,
        # A gap has its own step in it.
        join_s=max(0.0, statistics.median(changes.joins) - two.base),
        leave_s=max(0.0, statistics.median(changes.leaves) - one.base),
        growth_s=max(0.0, statistics.median(changes.growths) - two.base),
    )


def _layers(setting: Setting, extra: ExtraWorker, points: Sequence[str], workers: int, rounds: int) -> LayerCosts:
    """Return the seconds of a step with this number of workers, including the training loop's own part.

    The models take turns, and of the rounds' medians the fastest counts: what else the machine does makes it slower.
    """
    counted = Setting(_short(setting.job, STEPS + 1), setting.policy)
    arrivals = (ReplicaChange(0, workers),) if workers > 1 else ()
    fastest = dict.fromkeys(["", *points], math.inf)
    for _ in range(rounds):
        for point in fastest:
            gaps = _Gaps()
            train(counted, Arm.SCRATCH, 0, arrivals, _FREE, extra, gaps.took, deep=(point,) if point else ())
            fastest[point] = min(fastest[point], statistics.median(gaps.alike))
    base = fastest.pop("")
    return LayerCosts(base=base, added={point: max(0.0, each - base) for point, each in fastest.items()})


def _changes(setting: Setting, extra: ExtraWorker) -> _Gaps:
    """Return the gaps at joins and leaves, and at growths by two workers."""
    gaps = _Gaps()
    arrivals = tuple(ReplicaChange(20 * (index + 1), 2 - index % 2) for index in range(2 * CHANGES))
    counted = Setting(_short(setting.job, 20 * (2 * CHANGES + 2)), setting.policy)
    train(counted, Arm.ELASTIC, 0, arrivals, _FREE, extra, gaps.took)
    epoch = len(load_data(setting.job.spec.training.dataset).train) // setting.job.spec.training.batch_size
    grown = Setting(
        _short(setting.job, (epoch + 1) * (setting.job.spec.adaptation.max_adaptations + 1)), setting.policy
    )
    train(grown, Arm.FIXED, 0, (ReplicaChange(0, 2),), _FREE, extra, gaps.took)
    return gaps


def _short(job: AdaptiveTrainingJob, steps: int) -> AdaptiveTrainingJob:
    return with_spec(job, timeBudgetSeconds=float(steps))
