"""Courses: virtual time, copies that do not disturb each other, and growth that costs steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from espalier_api.advice import Action, offered
from espalier_cli.judge.case import Case, CaseFile
from espalier_cli.judge.course import Course, Slice
from espalier_cli.judge.deciding import Setting, chosen, decided


def case(name: str) -> Case:
    return next(one for one in CaseFile(str(Path(__file__).parent / "models.py"))() if one.name == name)


def test_a_course_that_was_copied_and_grown_goes_on_as_if_it_had_not_been() -> None:
    alone = Course.begin(case("mlp/on a table"), 3)
    alone.advance(12)
    course = Course.begin(case("mlp/on a table"), 3)
    course.advance(5)
    grown = course.grown(Action.deepen("0"))
    with torch.no_grad():
        inputs = course.case.test.inputs
        assert torch.allclose(grown.network.module(inputs), course.network.module(inputs), atol=1e-6)
    grown.advance(12)
    course.copied().advance(9)
    course.advance(12)
    assert course.steps == alone.steps == 12
    assert grown.steps < 12
    assert grown.cost > 1
    ours, theirs = course.network.module.state_dict(), alone.network.module.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_rate_falls_to_zero_within_a_slice() -> None:
    course = Course.begin(case("values"), 0)
    part = Slice(0.0, course.budget / 2)
    course.advance(part.ends, within=part)
    assert course.steps == 6
    assert course.network.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 6)


@pytest.mark.parametrize("name", ["mlp/on a table", "linear", "tokens", "values"])
def test_all_arms_of_a_case_are_decided_alike_for_the_same_seed(name: str) -> None:
    one = case(name)
    found = decided(one, 1, Setting(moments=(0.5,)))
    assert found == decided(one, 1, Setting(moments=(0.5,)))
    (moment,) = found.moments
    assert found.architecture is not None
    assert [arm.action for arm in moment.arms] == [Action.nothing(), *offered(found.architecture)]
    assert (name == "linear") == (found.request(moment) is None)


def test_of_many_growths_first_and_last_are_tried() -> None:
    growths = [Action.deepen(str(place)) for place in range(11)]
    assert [one.target for one in chosen(growths, 3)] == ["0", "5", "10"]
    assert chosen(growths, 20) == tuple(growths)
    assert chosen(growths, 1) == (growths[0],)
