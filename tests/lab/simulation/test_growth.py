"""Jobs of traces that grow: their curves from outcome tables, and what loans gain them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_agent.data import carried_tables
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.simulator.growth import GrowingJob, GrowthCurve, growth_curve, growth_curves
from espalier_lab.simulator.jobs import FixedJob, SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_operator.policies.settings import configured
from small_simulations import figures, refusal

CURVE = GrowthCurve(model="m", moments=(0.2, 0.6), gains=((0.0, 0.1, 0.3), (0.0, 0.05, 0.1)), waits=(0.1, 0.2))


def table(adapt_from: float, accuracies: dict[tuple[int, ...], tuple[float, ...]]) -> OutcomeTable:
    """Two growths or nothing, one decision, a budget of 10 s; the decision is made 1 s after the loan."""
    count = len(next(iter(accuracies)))
    sequences = [
        {
            "actions": list(actions),
            "accuracy": sum(found) / len(found),
            "accuracies": list(found),
            "time_left_s": [9.0 - adapt_from - place for place in range(count)],
        }
        for actions, found in accuracies.items()
    ]
    document = {
        "source": "made by hand",
        "model": "m",
        "scenario": f"{adapt_from}",
        "time_budget_s": 10.0,
        "adapt_from_s": adapt_from,
        "actions": ["deepen a", "deepen b", "do nothing"],
        "decisions_per_episode": count,
        "sequences": sequences,
        "seeds": [0, 1],
    }
    return OutcomeTable.model_validate_json(json.dumps(document))


def test_what_is_best_is_chosen_by_other_seeds_than_those_it_is_judged_by() -> None:
    """By seed 0 `a` is best (.9) and gets .5 with seed 1; by seed 1 `b` is best (.8) and gets .6 with seed 0."""
    curve = growth_curve([table(2.0, {(0,): (0.9, 0.5), (1,): (0.6, 0.8), (2,): (0.4, 0.4)})])
    assert (curve.moments, curve.waits) == ((0.2,), pytest.approx((0.1,)))
    assert curve.gains[0] == pytest.approx((0.0, (0.1 + 0.2) / 2))


def test_decisions_that_are_not_made_are_decisions_for_nothing() -> None:
    best = dict.fromkeys(product(range(3), repeat=2), (0.5, 0.5))
    curve = growth_curve([table(2.0, best | {(0, 2): (0.6, 0.6), (0, 1): (0.8, 0.8)})])
    assert curve.gains[0] == pytest.approx((0.0, 0.1, 0.3))
    assert curve.waits == pytest.approx((0.1, 0.2))


@given(st.floats(0, 1), st.integers(0, 2))
def test_between_moments_the_gain_is_between_theirs_and_at_the_end_there_is_none(moment: float, decisions: int) -> None:
    low, high = sorted((CURVE.gains[0][decisions], CURVE.gains[1][decisions]))
    found = CURVE.gain(moment, decisions)
    assert 0 <= found <= high + 1e-12
    if moment <= 0.6:
        assert found >= low - 1e-12
    assert CURVE.gain(1.0, decisions) == 0
    assert CURVE.gain(0.4, 2) == pytest.approx(0.2)


def test_tables_of_one_seed_tell_nothing_that_could_be_judged() -> None:
    assert growth_curves(carried_tables("lamelas")) == {}
    with pytest.raises(ValueError, match="cnn1 early: needs two seeds"):
        growth_curve([each for each in carried_tables("lamelas") if each.model == "cnn1"])
    with pytest.raises(ValueError, match="tables of one model"):
        growth_curve([*carried_tables("digits"), *carried_tables("cifar8")])


def test_the_tables_that_the_agent_carries_say_that_growing_early_gains_accuracy() -> None:
    digits = growth_curves(carried_tables("digits"))["digits"]
    assert digits.gain(0.35, 3) > 0.1
    assert digits.gain(0.35, 3) > digits.gain(0.95, 3) > 0
    assert digits.gain(0.35, 0) == 0


def simulated(*jobs: SimulatedJob, gpus: int, latency: str | None = None) -> Sequence[SimulatedJob]:
    nodes = (SimulatedNode("n", gpus),)
    if latency is None:
        Rounds(jobs, nodes, configured("fair")).run()
    else:
        Planned(jobs, nodes, configured("fair"), LATENCIES[latency]).run()
    return jobs


@pytest.mark.parametrize("latency", [None, "none", "realistic"])
def test_a_job_gains_by_the_gpu_that_is_lent_to_it_and_takes_no_less_time(latency: str | None) -> None:
    alone = GrowingJob("a", 0.0, 2, 3000.0, CURVE)
    simulated(alone, gpus=2, latency=latency)
    assert (alone.first_lent_at, alone.decisions, alone.accuracy_gained) == (None, 0, 0.0)
    lent = GrowingJob("a", 0.0, 2, 3000.0, CURVE)
    simulated(lent, gpus=3, latency=latency)
    assert lent.first_lent_at < 0.1
    assert (lent.decisions, lent.accuracy_gained) == (2, pytest.approx(0.3))
    assert lent.completed_at == alone.completed_at


@pytest.mark.parametrize("latency", [None, "none", "realistic"])
def test_a_gpu_that_comes_late_or_goes_early_gains_less(latency: str | None) -> None:
    """The other job has the third GPU for the first half, or from the fifth minute on."""
    late, first = GrowingJob("late", 0.0, 2, 3000.0, CURVE), FixedJob("f", 0.0, 1, 1500.0)
    simulated(late, first, gpus=3, latency=latency)
    assert 0.4 < late.first_lent_at < 0.6
    assert late.accuracy_gained == pytest.approx(CURVE.gain(late.first_lent_at, 2))
    short, then = GrowingJob("short", 0.0, 2, 3000.0, CURVE), FixedJob("t", 500.0, 1, 9000.0)
    simulated(short, then, gpus=3, latency=latency)
    assert short.decisions == 1, "lent for 15 % of its budget"
    assert 0.05 <= short.accuracy_gained <= 0.1


def test_a_column_of_a_trace_names_the_model_by_which_a_job_grows(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("num_gpus,growth,duration,timestamp\n1,digits,3000,0\n1,,3000,0\n")
    (found,) = figures(trace, "--cluster", "1x4")["runs"]
    assert found["accuracyGained"] > 0.1
    assert found["notApplicable"] == {}
    trace.write_text(trace.read_text().replace("digits", "resnet"))
    assert f"{trace}:2: growth: is 'resnet'; growth was measured of cifar8, digits" in refusal(
        trace, "--cluster", "1x4"
    )


def test_generated_jobs_grow_in_part_and_are_the_same_otherwise() -> None:
    trace = "generate:poisson:jobs=30,sigma=1"
    (still,), (grown,) = (figures(trace + growing, "--cluster", "2x8")["runs"] for growing in ("", ",growing=0.5"))
    assert still["accuracyGained"] is None
    assert grown["accuracyGained"] > 0
    assert grown["averageJctSeconds"] == pytest.approx(still["averageJctSeconds"], rel=0.01)
    assert "growing: 2 is not between 0 and 1" in refusal(trace + ",growing=2", "--cluster", "2x8")
