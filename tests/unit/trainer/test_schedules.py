"""Each schedule against its closed form."""

from __future__ import annotations

import json

import pytest
import torch

from espalier_core.types.job import ScheduleSpec
from espalier_trainer.errors import ScheduleError
from espalier_trainer.optimizers.schedules import Moment, build_schedule

BUDGET = 20.0


def _at(used: float) -> Moment:
    return Moment(used, BUDGET)


def _schedule(name: str, **fields):
    return build_schedule(ScheduleSpec(name=name, **fields), 0.1)


@pytest.mark.parametrize(("used", "rate"), [(0, 0.1), (5, 0.075), (10, 0.05), (19, 0.005), (20, 0.0), (25, 0.0)])
def test_budget_linear_falls_to_zero_at_the_deadline(used, rate):
    assert _schedule("BudgetLinear").rate(_at(used)) == pytest.approx(rate)


def test_budget_linear_restarted_falls_to_zero_at_the_same_deadline():
    schedule = _schedule("BudgetLinear")
    schedule.restart(_at(12))
    assert [schedule.rate(_at(used)) for used in (12, 14, 16, 20)] == pytest.approx([0.1, 0.075, 0.05, 0.0])
    schedule.restart(_at(20))
    assert schedule.rate(_at(20)) == 0.0


def test_exponential_decays_by_the_epoch_and_begins_again_on_restart():
    schedule = _schedule("Exponential", decay=0.9)
    for epoch in range(5):
        assert schedule.rate(_at(epoch)) == pytest.approx(0.1 * 0.9**epoch)
        schedule.epoch_finished(None)
    schedule.restart(_at(5))
    assert schedule.rate(_at(5)) == 0.1
    schedule.epoch_finished(None)
    assert schedule.rate(_at(6)) == pytest.approx(0.09)


def test_constant_is_constant():
    schedule = _schedule("Constant")
    schedule.epoch_finished(None)
    schedule.restart(_at(3))
    assert schedule.rate(_at(4)) == 0.1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("StepLR", {"step_size": 2, "gamma": 0.5}),
        ("CosineAnnealingLR", {"T_max": 6}),
        ("OneCycleLR", {"max_lr": 0.3, "total_steps": 12}),
        ("LinearLR", {}),
    ],
)
def test_torch_scheduler_gives_torchs_rates(name, options):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    expected = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    schedule = _schedule(f"torch:{name}", options=options)
    first = schedule.rate(_at(0))
    for _ in range(8):
        assert schedule.rate(_at(0)) == optimizer.param_groups[0]["lr"]
        schedule.epoch_finished(None)
        optimizer.step()
        expected.step()
    schedule.restart(_at(8))
    assert schedule.rate(_at(8)) == first


def test_plateau_scheduler_reads_the_validation_loss():
    schedule = _schedule("torch:ReduceLROnPlateau", options={"patience": 1, "factor": 0.5})
    for loss in (1.0, None, 0.9, 0.95, 0.96):
        schedule.epoch_finished(loss)
    assert schedule.rate(_at(0)) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("BudgetLinear", {}),
        ("Exponential", {"decay": 0.8}),
        ("Constant", {}),
        ("torch:ReduceLROnPlateau", {"options": {"patience": 0}}),
        ("torch:StepLR", {"options": {"step_size": 3}}),
    ],
)
def test_state_survives_json(name, fields):
    schedule = _schedule(name, **fields)
    schedule.epoch_finished(1.0)
    schedule.restart(_at(4.1))
    for loss in (1.0, 0.5, None, 2.0):
        schedule.epoch_finished(loss)
    other = _schedule(name, **fields)
    other.load_state(json.loads(json.dumps(schedule.state())))
    for used in (5, 9):
        assert other.rate(_at(used)) == schedule.rate(_at(used))
        schedule.epoch_finished(3.0)
        other.epoch_finished(3.0)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("torch:CosineAnealingLR", {}, "did you mean torch:CosineAnnealingLR"),
        ("torch:Optimizer", {}, "torch has no scheduler 'Optimizer'"),
        ("torch:StepLR", {}, "its options: step_size, gamma, last_epoch"),
        ("torch:StepLR", {"step": 3}, "training.schedule.options"),
        ("torch:LambdaLR", {"lr_lambda": "x"}, "training.schedule"),
        ("torch:StepLR", {"step_size": 0}, "modulo by zero"),
        ("torch:ExponentialLR", {"gamma": "0.9"}, "its options: gamma"),
    ],
)
def test_wrong_schedules_say_what_is_allowed(name, options, said):
    with pytest.raises(ScheduleError, match=r"training\.schedule") as error:
        _schedule(name, options=options)
    assert said in str(error.value)


def test_scheduler_past_its_last_step_keeps_its_last_rate_and_says_so_once(caplog):
    schedule = _schedule("torch:OneCycleLR", options={"max_lr": 0.3, "total_steps": 2})
    first = schedule.rate(_at(0))
    for _ in range(2):
        schedule.epoch_finished(None)
    last = schedule.rate(_at(0))
    for _ in range(3):
        schedule.epoch_finished(None)
        assert schedule.rate(_at(0)) == last
    assert caplog.text.count("has ended") == 1
    schedule.restart(_at(5))
    assert schedule.rate(_at(5)) == first
    schedule.epoch_finished(None)
    assert schedule.rate(_at(5)) != first
