"""Runs of studies by the built-in trainer, in virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import TrainerPhase
from espalier_core.validation.reading import load_job
from espalier_lab.virtual_run import ChargedScheduler, FinishedRun, VirtualRun, undisturbed
from espalier_lab.virtual_time import VirtualScheduler
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.run.services import Services

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"
BUDGET = 0.2


def job() -> AdaptiveTrainingJob:
    return undisturbed(load_job(DIGITS), timeBudgetSeconds=BUDGET)


def trained(start: Checkpoint | None = None, stop_at: float = math.inf, seed: int = 0) -> FinishedRun:
    services = Services(VirtualScheduler(BUDGET, lambda architecture: 0.002))
    return VirtualRun(job=job(), seed=seed, services=services, start=start, stop_at=stop_at).train()


def test_a_run_that_continues_from_a_stopped_one_ends_as_the_whole_one() -> None:
    whole, stopped = trained(), trained(stop_at=0.07)
    assert stopped.result.phase is TrainerPhase.STOPPED
    assert stopped.checkpoint.state.used_seconds == pytest.approx(0.07)
    continued = trained(stopped.checkpoint)
    assert continued.result.phase is TrainerPhase.COMPLETED
    assert (continued.result.test_loss, continued.result.steps) == (whole.result.test_loss, whole.result.steps)
    assert trained(seed=1).result.test_loss != whole.result.test_loss


def test_what_is_charged_is_used_of_the_budget() -> None:
    clock = ChargedScheduler(BUDGET, lambda architecture: 0.002)
    run = VirtualRun(job=job(), seed=0, services=Services(clock, step_took=lambda seconds: clock.charge(0.002)))
    assert run.train().result.steps == pytest.approx(trained().result.steps / 2, abs=1)
