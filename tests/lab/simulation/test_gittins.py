"""The Gittins index, beside its definition, and the order that it makes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.policies.tiresias import GittinsPolicy, gittins_index
from espalier_operator.policies.view import Candidate, View

SAMPLES = st.lists(st.integers(1, 1000).map(float), max_size=12).map(sorted)


def by_definition(samples: list[float], attained: float, delta: float) -> float:
    """Return P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]."""
    rest = [sample - attained for sample in samples if sample > attained]
    if not rest:
        return 0.0
    ends = sum(each <= delta for each in rest) / len(rest)
    return ends / (sum(min(each, delta) for each in rest) / len(rest))


@given(SAMPLES, st.integers(0, 1000).map(float))
def test_it_is_the_supremum_over_all_times(samples: list[float], attained: float) -> None:
    found = gittins_index(samples, attained)
    tried = [by_definition(samples, attained, delta) for delta in range(1, 1001)]
    assert math.isclose(found, max(tried), rel_tol=1e-9)


def test_a_job_goes_first_where_most_end_soon() -> None:
    """Most end after 100 GPU-seconds, the others after 1,000: who has passed 100 waits until 100 are left."""
    known = {f"e{index}": service for index, service in enumerate([100.0] * 9 + [1000.0])}
    jobs = tuple(
        Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=1, service=service, workers=1)
        for key, service in (("past", 500.0), ("new", 0.0), ("about", 900.0))
    )
    policy = GittinsPolicy(quantum=50.0)
    decision = policy.decide(View(now=0.0, gpus=1, jobs=jobs, ended=known))
    assert [share.job for share in decision.shares] == ["about", "new", "past"]
    assert decision.until == 50.0
    again = policy.decide(View(now=50.0, gpus=1, jobs=jobs, ended=known, memory=decision.memory))
    assert again.memory["ended"] == decision.memory["ended"], "each job counts once"


def test_without_ended_jobs_who_was_served_least_goes_first() -> None:
    jobs = tuple(
        Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=2, service=service)
        for key, service in (("much", 50_000.0), ("little", 20_000.0), ("none", 0.0))
    )
    shares = GittinsPolicy().decide(View(now=0.0, gpus=1, jobs=jobs)).shares
    assert [(share.job, share.spare) for share in shares] == [("none", 1), ("little", 1), ("much", 1)]


def test_a_quantum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="quantum: 0 is invalid; must be above 0"):
        GittinsPolicy(quantum=0.0)
