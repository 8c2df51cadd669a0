"""Scores: which is better, what agents learn from them, and the fields that hold them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_core.types.task import MEASURE_OF, MEASURES, Score, Task, score_in

MEASURE_NAMES = st.sampled_from(sorted(MEASURES))


def test_every_task_has_a_measure():
    assert set(MEASURE_OF) == set(Task)
    assert {measure.name for measure in MEASURE_OF.values()} == set(MEASURES)


@given(MEASURE_NAMES, st.floats(0, 1), st.floats(0, 1))
def test_the_better_of_two_is_ahead_and_has_more_quality(name, first, second):
    one, other = Score(measure=name, value=first), Score(measure=name, value=second)
    assert one.ahead_of(other) == -other.ahead_of(one)
    if one.ahead_of(other) > 0:
        assert one.quality >= other.quality
        assert (first > second) == MEASURES[name].higher_is_better


@pytest.mark.parametrize(
    ("name", "value", "quality"),
    [
        ("accuracy", 0.9, 0.9),
        ("accuracy", 1.5, None),
        ("r2", -3.0, 0.0),
        ("r2", 0.4, 0.4),
        ("bits_per_character", 0.0, 1.0),
        ("bits_per_character", 2.0, 0.25),
        ("bits_per_character", -1.0, None),
    ],
)
def test_quality_is_between_0_and_1(name, value, quality):
    assert Score(measure=name, value=value).quality == quality


def test_scores_of_two_measures_are_not_compared():
    with pytest.raises(ValueError, match=r"^r2 and accuracy cannot be compared; compare jobs of one task$"):
        Score(measure="r2", value=0.1).ahead_of(Score(measure="accuracy", value=0.2))


def test_a_measure_of_a_newer_version_can_be_shown():
    assert str(Score(measure="word_error", value=0.5)) == "word error 0.5000"


def test_the_score_is_found_among_figures():
    figures = {"validation_loss": 1.0, "validation_bits_per_character": 2.0, "test_r2": float("nan")}
    assert score_in(figures, "validation") == Score(measure="bits_per_character", value=2.0)
    assert score_in(figures, "test") is None


@pytest.mark.parametrize(("measure", "after", "gained"), [("accuracy", 0.75, 0.25), ("bits_per_character", 0.25, 0.25)])
def test_an_adaptation_says_what_was_gained_whatever_the_measure(measure, after, gained):
    before = {"accuracy_before": 0.5} if measure == "accuracy" else {"score_before": Score(measure=measure, value=0.5)}
    adaptation = Adaptation(
        decision_id="d",
        time=datetime.now(UTC),
        used_seconds=0,
        trigger="",
        generation=0,
        action="Nothing",
        source=AdaptationSource.AGENT,
        result=AdaptationResult.GROWN,
        depth_before=1,
        depth_after=2,
        parameters_before=1,
        parameters_after=2,
        seconds=0,
        **before,
    )
    assert adaptation.gained is None
    done = adaptation.followed_by(Score(measure=measure, value=after))
    assert done.gained == gained
    assert Adaptation.model_validate_json(done.model_dump_json(by_alias=True)) == done
    assert (done.accuracy_after is None) == (measure != "accuracy")
