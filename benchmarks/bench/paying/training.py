"""One run: an arm with a seed under a timeline, by real workers in virtual time; and what steps and pauses cost here.

Costs are measured by the same workers, in real time, before the runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import nn

from bench.paying.arms import Arm, Costs, ElasticClock, LayerCosts, TimedTeam, advisor_of, job_of
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_core.validation.reading import with_spec
from espalier_lab.extra_worker import ExtraWorker, await_worker
from espalier_lab.virtual_run import VirtualRun, as_built, data_of, deepened_from_scratch
from espalier_lab.virtual_time import ReplicaChange
from espalier_trainer.data import load_data
from espalier_trainer.growth.advisor import Advisor
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net import growth_points
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.run.journal import RunJournal
from espalier_trainer.run.services import Services, TeamMaker
from espalier_trainer.training.progress import TrainingResult


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs have in common."""

    job: AdaptiveTrainingJob
    policy: ElasticBatch


@dataclass(frozen=True, slots=True)
class Done:
    """A run that came to its end."""

    result: TrainingResult
    joint_steps: int
    """Steps by two workers."""


def train(
    setting: Setting,
    arm: Arm,
    seed: int,
    arrivals: Sequence[ReplicaChange],
    costs: Costs,
    extra: ExtraWorker,
    step_took: Callable[[float, TimedTeam | None], None] = lambda seconds, team: None,
    deep: Sequence[str] | None = None,
) -> Done:
    """Train. `step_took` receives the wall seconds of each step, in all and of the team.

    `deep` are the points at which `SCRATCH` has layers more; the first one, as often as the job may grow, if None.

    Raises `RuntimeError` where the run did not end with its budget.
    """
    job = job_of(setting.job, arm, setting.policy)
    first = points_of(setting.job)[0]
    layers = (first,) * job.spec.adaptation.max_adaptations if deep is None else deep

    def deepened(model: nn.Module) -> nn.Module:
        example = data_of(job.spec.training.dataset).example_input()
        return deepened_from_scratch(model, layers, example, job.spec.adaptation.described_insertion)

    clock = ElasticClock(job.spec.time_budget_seconds, costs.one.of, arrivals, joint_seconds=costs.two.of)
    joint = 0

    def took(seconds: float) -> None:
        nonlocal joint
        joint += clock.team is not None and clock.team.world > 1
        step_took(seconds, clock.team)

    with ExitStack() as stack:
        team: TeamMaker | None = None
        if arrivals and arm is not Arm.ALONE:
            team = _team(clock, costs, stack.enter_context(extra.following(job, seed)))
        advisor: Advisor | None = advisor_of(job, arm, first)
        run = VirtualRun(
            job=job,
            seed=seed,
            services=Services(clock, advisor=advisor, team=team, step_took=took),
            prepare=deepened if arm is Arm.SCRATCH else as_built,
        ).begin()
        if clock.team is not None:
            await_worker(clock.team)
        result = run.train().result
    if result.test_accuracy is None:
        raise RuntimeError(f"{arm}, seed {seed}: ended with {result.reason}: {result.message}")
    return Done(result, joint)


def points_of(job: AdaptiveTrainingJob) -> tuple[str, ...]:
    """Return the growth points of the starting model of a job, found once a process."""
    return _points(job.model_dump_json(by_alias=True, exclude_none=True))


@lru_cache(maxsize=1)
def _points(text: str) -> tuple[str, ...]:
    job = AdaptiveTrainingJob.model_validate_json(text)
    data = data_of(job.spec.training.dataset)
    start = build_model(job.spec.training.model, data.classes, data.example_input())
    return tuple(
        point.id for point in growth_points(start, data.example_input(), job.spec.adaptation.described_insertion)
    )


def _team(clock: ElasticClock, costs: Costs, place: Rendezvous) -> Callable[[RunJournal], TimedTeam]:
    device = torch.device("cpu")
    return lambda journal: TimedTeam(clock, costs, place, device, journal.warn, journal.workers_changed)


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
