"""One run: an arm with a seed under a timeline, trained by real workers in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_lab.extra_worker import ExtraWorker, await_worker
from espalier_lab.virtual_run import VirtualRun, as_built, data_of, deepened_from_scratch
from espalier_trainer.growth.advisor import Advisor
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net import growth_points
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.run.journal import RunJournal
from espalier_trainer.run.services import Services, TeamMaker
from espalier_trainer.signals.scheduler import ReplicaChange
from espalier_trainer.training.progress import TrainingResult
from paying.arms import Arm, advisor_of, job_of
from paying.costs import Costs, ElasticClock, TimedTeam

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


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
        return deepened_from_scratch(model, layers, example, job.spec.adaptation.insertion)

    clock = ElasticClock(
        job.spec.time_budget_seconds,
        costs.one.of,
        arrivals,
        joint_seconds=costs.two.of,
    )
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
    return tuple(point.id for point in growth_points(start, data.example_input(), job.spec.adaptation.insertion))


def prepare_process() -> None:
    """Let this process compute with one thread, and talk on the loopback interface alone."""
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)


def _team(clock: ElasticClock, costs: Costs, place: Rendezvous) -> Callable[[RunJournal], TimedTeam]:
    device = torch.device("cpu")
    return lambda journal: TimedTeam(clock, costs, place, device, journal.warn, journal.workers_changed)
