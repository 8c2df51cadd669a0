"""The rule by which a smaller model is tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_trainer.distillation import ShrinkFacts, ShrinkRule, decide
from espalier_trainer.distillation.decision import better

SECONDS = st.floats(1e-4, 10)
FACTS = st.builds(
    ShrinkFacts,
    time_left=st.floats(0, 1e4),
    large=SECONDS,
    before=st.none() | SECONDS,
    sizes=st.lists(st.none() | SECONDS, max_size=4).map(tuple),
    comparing=st.floats(0, 10),
)


@pytest.mark.parametrize(
    ("facts", "reason", "size"),
    [
        (ShrinkFacts(100, 0.12, 0.10, (0.05,)), Reason.STILL_CARRIED, None),
        (ShrinkFacts(100, 0.40, 0.10, (0.35, 0.33)), Reason.NOT_CHEAPER, None),
        (ShrinkFacts(100, 0.40, 0.10, ()), Reason.NOT_CHEAPER, None),
        (ShrinkFacts(39, 0.40, 0.10, (0.20,)), Reason.TOO_LATE_TO_DISTIL, None),
        (ShrinkFacts(41, 0.40, 0.10, (0.20,)), Reason.DISTILLING, 0),
        (ShrinkFacts(41, 0.40, 0.10, (0.20,), comparing=1), Reason.TOO_LATE_TO_DISTIL, None),
        (ShrinkFacts(500, 0.40, 0.10, (0.20, 0.12, 0.09)), Reason.DISTILLING, 1),
        (ShrinkFacts(500, 0.40, 0.10, (0.30, 0.20)), Reason.DISTILLING, 1),
        (ShrinkFacts(500, 0.40, None, (None,)), Reason.DISTILLING, 0),
    ],
)
def test_cases(facts: ShrinkFacts, reason: Reason, size: int | None) -> None:
    verdict = decide(facts)
    assert (verdict.reason, verdict.size) == (reason, size)


@given(FACTS)
def test_a_trial_leaves_most_of_the_time_and_has_the_steps_to_teach(facts: ShrinkFacts) -> None:
    rule = ShrinkRule()
    verdict = decide(facts, rule)
    assert (verdict.size is None) == (verdict.reason is not Reason.DISTILLING)
    if verdict.size is not None:
        step = facts.sizes[verdict.size] or facts.large
        assert verdict.seconds <= rule.share * facts.time_left
        assert verdict.seconds - facts.comparing >= rule.least_steps * step * (1 - 1e-9)
        assert facts.large >= rule.cheaper * step or facts.sizes[verdict.size] is None


@given(FACTS, st.sampled_from([2.0**power for power in range(-6, 7)]))
def test_the_unit_of_time_does_not_matter(facts: ShrinkFacts, factor: float) -> None:
    # A power of two: floating-point sums and products then scale exactly.
    assume(facts.time_left == 0 or facts.time_left > 1e-3)
    scaled = ShrinkFacts(
        facts.time_left * factor,
        facts.large * factor,
        None if facts.before is None else facts.before * factor,
        tuple(None if each is None else each * factor for each in facts.sizes),
        facts.comparing * factor,
    )
    ours, theirs = decide(facts), decide(scaled)
    assert (ours.size, ours.reason) == (theirs.size, theirs.reason)


@given(FACTS, st.floats(0, 1e4))
def test_more_time_left_never_speaks_against_it(facts: ShrinkFacts, more: float) -> None:
    if decide(facts).size is not None:
        assert decide(replace(facts, time_left=facts.time_left + more)).size is not None


@given(FACTS, st.floats(0.1, 1))
def test_a_cheaper_size_never_speaks_against_it(facts: ShrinkFacts, factor: float) -> None:
    tried = decide(facts).size
    if tried is not None:
        cheaper = tuple(each * factor if at == tried and each else each for at, each in enumerate(facts.sizes))
        assert decide(replace(facts, sizes=cheaper)).size is not None


SHARES = st.floats(0, 1)


@given(SHARES, SHARES, st.integers(1, 100_000))
def test_only_one_that_is_ahead_is_kept_and_more_examples_never_speak_against_it(
    smaller: float, larger: float, examples: int
) -> None:
    if better(smaller, larger, examples):
        assert smaller > larger
        assert not better(larger, smaller, examples)
        assert better(smaller, larger, 4 * examples)


@pytest.mark.parametrize(
    ("smaller", "examples", "kept"), [(0.80, 100, False), (0.85, 100, False), (0.86, 100, True), (0.81, 10_000, True)]
)
def test_ahead_is_more_than_a_standard_error(smaller: float, examples: int, kept: bool) -> None:
    assert better(smaller, 0.80, examples) is kept


@given(FACTS)
def test_nothing_is_tried_where_the_gpus_left_are_as_fast(facts: ShrinkFacts) -> None:
    assert decide(replace(facts, before=facts.large)).size is None
    assert decide(replace(facts, time_left=0.0)).size is None
