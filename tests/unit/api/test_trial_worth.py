"""The worth of a trial: what finding out may gain, and when it does not pay."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espalier_core.estimates.gains import EVIDENCE, SHARES, SPREAD, Belief
from espalier_core.estimates.trial_worth import TrialWorth, expected_best, preposterior, trial_worth
from espalier_core.types.adaptation import Trials
from espalier_core.types.task import Task

means = st.floats(-0.2, 0.2)
deviations = st.floats(0, 0.2)
beliefs = st.lists(st.builds(Belief, means, deviations), min_size=1, max_size=4)
errors = st.floats(0, 1)
ROUNDED = 1e-4


def worth(growths: list[Belief], error: float, lent: float = 0.0, delay: float = 0.0) -> TrialWorth:
    return trial_worth(Trials.RACE, 1, growths, Task.CLASSIFICATION, error, lent=lent, delay=delay)


@given(beliefs, errors)
@example([Belief(0.125, 7.6e-112), Belief(-0.125, 0.125)], 1.0)
def test_finding_out_is_worth_nothing_or_more_and_at_most_what_knowing_all_is_worth(growths, error):
    found, perfect = worth(growths, error).information, worth(growths, 0.0).information
    assert -ROUNDED <= found <= perfect + ROUNDED


@given(beliefs, errors, errors)
def test_more_evidence_is_never_worth_less(growths, one, other):
    less, more = sorted([one, other], reverse=True)
    assert worth(growths, more).information >= worth(growths, less).information - ROUNDED


@given(beliefs, errors, st.builds(Belief, means, deviations))
def test_another_growth_on_trial_never_lowers_the_best_that_is_expected(growths, error, another):
    def best(of: list[Belief]) -> float:
        return expected_best([(one.mean, preposterior(one.deviation, error)) for one in of])

    assert best([*growths, another]) >= best(growths) - ROUNDED


@given(st.lists(means, min_size=1, max_size=4), errors, st.floats(0, 4), st.floats(0, 0.5))
def test_what_is_certain_is_not_tried(found, error, lent, delay):
    assert not worth([Belief(mean, 0.0) for mean in found], error, lent, delay).pays


@given(beliefs, errors, st.floats(0, 4), st.floats(0, 0.5))
def test_a_trial_that_lends_or_delays_more_is_not_worth_more(growths, error, lent, delay):
    free, dear = worth(growths, error), worth(growths, error, lent, delay)
    assert dear.information <= free.information + ROUNDED
    assert dear.cost >= free.cost


@pytest.mark.parametrize("growths", [[(0.01, 0.03)], [(0.01, 0.03), (-0.02, 0.05)], [(0.05, 0.0), (0.04, 0.02)], []])
def test_the_best_that_is_expected_is_the_mean_over_draws(growths):
    chance = random.Random(7)
    drawn = [max((0.0, *(chance.gauss(mean, deviation) for mean, deviation in growths))) for _ in range(40_000)]
    assert expected_best(growths) == pytest.approx(math.fsum(drawn) / len(drawn), abs=5e-4)


@pytest.mark.parametrize("task", Task)
def test_a_race_of_a_growth_that_nobody_knows_pays_and_one_that_is_bad_for_sure_does_not(task):
    error, spread = EVIDENCE[task][Trials.RACE].deviation, SPREAD[task]
    options = {"lent": SHARES[Trials.RACE], "delay": 0.0}
    assert trial_worth(Trials.RACE, 1, [Belief.of(None, task)], task, error, **options).pays
    assert not trial_worth(Trials.RACE, 1, [Belief(-3 * spread, spread)], task, error, **options).pays
