"""Budget accounting: how often it is read does not matter, and where a budget ends that a person changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.job.progress import BudgetMeter, Leader, look
from espalier_operator.job.state import JobState, Observation, Timing
from espalier_operator.job.view import facts_of
from espalier_operator.local.settings import resumed
from espalier_operator.model import Ended, JobTerms, Rules
from espalier_operator.planner.lifecycle import ending

ABSENT, STARTING = Leader.ABSENT, Leader.STARTING


def run(*steps: tuple[float, Leader, int], allowance: float = 10.0) -> BudgetMeter:
    """Return the account after steps of (seconds, leader, GPUs)."""
    meter, now = BudgetMeter().advance(0.0, ABSENT, 0, allowance), 0.0
    for seconds, leader, gpus in steps:
        now += seconds
        meter = meter.advance(now, leader, gpus, allowance)
    return meter


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_how_often_it_is_read_does_not_matter(parts):
    steps = [(20 / parts, STARTING, 1)] * parts
    assert run(*steps).used_seconds == pytest.approx(20)


# ---- a budget that a person changes


def looked(state: JobState, budget: float) -> JobState:
    """Return the state after a look at a job without workers."""
    return look(
        state, Observation(), JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=budget), 1e6, Timing()
    )


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1, 100)), min_size=1))
def test_a_budget_ends_where_it_says_or_where_it_was_lowered(steps: list[tuple[float, float]]) -> None:
    """It is not over before the leader can have heard of it, and one that is over is stretched by raising it alone."""
    state = JobState()
    for seconds, budget in steps:
        before = state.budget_end_seconds
        state = looked(replace(state, used_seconds=state.used_seconds + seconds), budget)
        end = state.budget_end_seconds
        assert end is not None
        assert budget <= end <= max(budget, state.used_seconds)
        if before is not None:
            assert end >= min(before, state.used_seconds)
            assert end <= max(before, budget)
        assert looked(state, budget) == state


def test_a_failed_job_that_is_taken_up_with_less_than_it_has_used_still_evaluates() -> None:
    """By the command of one machine, which accepts another budget then: its leader starts, and ends in order."""
    failed = Ended(reason=Reason.TRAINER_FAILED, failed=True)
    state = replace(looked(JobState(used_seconds=50.0), 100), attempts=(1,), incarnations=("",), outcome=failed)
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=20.0)
    state = look(resumed(state, terms), Observation(), terms, 1e6, Timing())
    assert ending(facts_of("one", state, Observation(), terms, 1e6, Timing()), 1e6, Rules()) is None
