"""Courses: virtual time, copies that do not disturb each other, and growth that costs steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action, offered
from espalier_core.types.job import Insertion
from espalier_lab.growth.judge.case import CaseFile, JudgeCase
from espalier_lab.growth.judge.case_run import CaseRun, TrialSlice
from espalier_lab.growth.judge.deciding import OPERATIONS, Setting, chosen, decided


def case(name: str) -> JudgeCase:
    return next(one for one in CaseFile(str(Path(__file__).parent / "models.py"))() if one.name == name)


def test_a_course_that_was_copied_and_grown_goes_on_as_if_it_had_not_been() -> None:
    alone = CaseRun.begin(case("mlp/on a table"), 3)
    alone.advance(12)
    run = CaseRun.begin(case("mlp/on a table"), 3)
    run.advance(5)
    grown = run.grown(Action.deepen("0"))
    with torch.no_grad():
        inputs = run.case.test.inputs
        assert torch.allclose(grown.network.module(inputs), run.network.module(inputs), atol=1e-6)
    grown.advance(12)
    run.copied().advance(9)
    run.advance(12)
    assert run.steps == alone.steps == 12
    assert grown.steps < 12
    assert grown.cost > 1
    ours, theirs = run.network.module.state_dict(), alone.network.module.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_rate_falls_to_zero_within_a_slice() -> None:
    run = CaseRun.begin(case("values"), 0)
    part = TrialSlice(0.0, run.budget / 2)
    run.advance(part.ends, within=part)
    assert run.steps == 6
    assert run.network.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 6)


@pytest.mark.parametrize("name", ["mlp/on a table", "linear", "tokens", "values"])
def test_all_arms_of_a_case_are_decided_alike_for_the_same_seed(name: str) -> None:
    one = case(name)
    found = decided(one, 1, Setting(moments=(0.5,)))
    assert found == decided(one, 1, Setting(moments=(0.5,)))
    (moment,) = found.moments
    assert [arm.action for arm in moment.arms] == [Action.nothing(), *offered(found.architecture)]
    assert (name == "linear") == (found.request(moment) is None)


def test_a_model_that_has_grown_decides_again_and_more_workers_leave_it_more_steps() -> None:
    one, operations = case("mlp/on a table"), (*OPERATIONS, WIDEN.name)
    plain, grown, faster = (
        decided(one, 0, Setting((0.25, 0.5), operations, **way)) for way in ({}, {"grown": True}, {"speed": 2.0})
    )
    (before,) = grown.grown
    assert before in offered(plain.architecture)
    assert grown.architecture.parameters > plain.architecture.parameters
    assert [moment.share for moment in grown.moments] == [0.5]
    assert decided(one, 1, Setting((0.25, 0.5), operations, grown=True)).grown == grown.grown
    assert {arm.action.kind for arm in plain.moments[0].arms} == {"Nothing", "Deepen", "Widen"}
    usual, more = (record.request(record.moments[1]) for record in (plain, faster))
    assert (usual.time_left_seconds, usual.time_budget_seconds) == (6, 12)
    assert (more.time_left_seconds, more.time_budget_seconds) == (12, 18)
    assert faster.moments[0].validation_loss == plain.moments[0].validation_loss
    assert faster.moments[0].arms[0].losses != plain.moments[0].arms[0].losses


def test_a_model_that_cannot_grow_is_not_decided_about_again() -> None:
    assert decided(case("linear"), 0, Setting((0.25, 0.5), grown=True)).moments == ()


class Residual(nn.Module):
    """A block that can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.down(torch.relu(self.up(self.norm(rows))))  # type: ignore[no-any-return]


def residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(Residual()), nn.ReLU(), nn.Linear(6, 2))


def test_whole_blocks_are_inserted_in_each_way() -> None:
    setting = Setting((0.25, 0.5), inserted=(Insertion.SCALED, Insertion.UNFOLD), only="AddBlock")
    assert decided(case("mlp/on a table"), 0, setting).moments == ()  # it has no blocks
    one = replace(case("mlp/on a table"), module=residual)
    plain, found = decided(one, 0, Setting((0.25, 0.5))), decided(one, 0, setting)
    assert {arm.action.kind for arm in plain.moments[0].arms} == {"Nothing", "Deepen", "AddBlock"}
    for usual, moment in zip(plain.moments, found.moments, strict=True):
        nothing, exact = moment.arms
        assert (nothing.action.kind, exact.action.kind) == ("Nothing", "AddBlock")
        assert {nothing, exact} < set(usual.arms)
        assert [(each.insertion, each.arm.action) for each in moment.inserted] == [
            (Insertion.SCALED, exact.action),
            (Insertion.UNFOLD, exact.action),
        ]
        # A run of one block is continued by one, so all cost the same; and none trains like another.
        assert {each.arm.step_cost for each in moment.inserted} == {exact.step_cost}
        assert len({arm.losses for arm in (nothing, exact, *(each.arm for each in moment.inserted))}) == 4


def test_a_run_that_unfolds_begins_where_it_was_and_is_a_plain_one_in_the_end() -> None:
    run = CaseRun.begin(replace(case("mlp/on a table"), module=residual), 0, OPERATIONS)
    run.advance(6)
    action = next(each for each in offered(run.network.architecture) if each.kind == "AddBlock")  # type: ignore[arg-type]
    before = run.score(run.case.validation).loss
    scaled, unfolding = (run.grown(action, kind) for kind in (Insertion.SCALED, Insertion.UNFOLD))
    assert unfolding.score(run.case.validation).loss == pytest.approx(before, rel=1e-5)
    assert scaled.score(run.case.validation).loss != pytest.approx(before, rel=1e-5)
    assert unfolding.network.unfolds
    unfolding.copied().finish()
    assert unfolding.network.unfolds
    unfolding.finish()
    assert not unfolding.network.unfolds
    assert not scaled.network.unfolds


def test_of_many_growths_first_and_last_are_tried() -> None:
    growths = [Action.deepen(str(place)) for place in range(11)]
    assert [one.target for one in chosen(growths, 3)] == ["0", "5", "10"]
    assert chosen(growths, 20) == tuple(growths)
    assert chosen(growths, 1) == (growths[0],)
    widening = [Action.widen(str(place)) for place in range(5)]
    assert [str(one) for one in chosen([*growths, *widening], 2)] == [
        "Deepen(0)", "Deepen(10)", "Widen(0)", "Widen(4)"
    ]  # fmt: skip
