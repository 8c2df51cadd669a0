"""The rules of trials, by properties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_api.trials import (
    NOTHING,
    RACE_ROUNDS,
    Round,
    confirmed,
    entrants,
    race_slices,
    slice_of,
    survivors,
    verdict_at,
)

SECONDS = st.floats(0, 1e6)
LOSSES = st.lists(st.one_of(st.floats(0, 10), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=8)


@given(SECONDS, SECONDS, st.floats(0.01, 0.99))
def test_a_slice_is_within_the_budget_and_its_rate_falls_to_zero(now: float, left: float, share: float) -> None:
    part = slice_of(now, now + left, share)
    assert now <= part.ends <= now + left + 1e-6
    assert part.rate(0.1, part.ends) == 0.0
    assert part.rate(0.1, part.begins) <= 0.1


@given(SECONDS, SECONDS)
def test_the_rounds_of_a_race_follow_each_other(now: float, left: float) -> None:
    parts = race_slices(now, now + left)
    assert parts[0].begins == now
    assert parts[-1].ends <= now + left
    assert all(one.ends == other.begins for one, other in itertools.pairwise(parts))


@given(SECONDS, SECONDS, st.integers(1, 6), st.integers(1, 6))
def test_more_gpus_never_make_a_verdict_later(now: float, left: float, arms: int, gpus: int) -> None:
    at = [verdict_at(now, now + left, share=0.1, arms=arms, gpus=count) for count in (gpus, gpus + 1)]
    assert now <= at[1] <= at[0] <= now + left


@given(LOSSES, st.integers(1, 8))
def test_survivors_are_the_smallest_losses(losses: list[float], keep: int) -> None:
    kept = survivors(losses, keep)
    assert len(kept) == min(keep, len(losses)) == len(set(kept))
    worst = max(losses[place] if math.isfinite(losses[place]) else math.inf for place in kept)
    others = [loss for place, loss in enumerate(losses) if place not in kept and math.isfinite(loss)]
    assert all(loss >= worst for loss in others)


def test_nothing_wins_ties_and_a_loss_that_is_no_number_never_does() -> None:
    assert not confirmed(0.5, 0.5)
    assert confirmed(0.5, 0.4)
    assert not confirmed(math.nan, math.nan)
    assert not confirmed(0.5, math.nan)
    assert confirmed(math.nan, 0.5)
    assert survivors([0.3, 0.3], 1) == (NOTHING,)


def test_the_best_race_and_one_gpu_tries_nothing() -> None:
    assert entrants([0.1, 0.7, 0.2], 3) == (1, 2)
    assert entrants([0.1], 1) == ()


def test_what_cannot_be_tried_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        slice_of(0, 1, 1.0)
    with pytest.raises(ValueError, match="a trial needs one of each"):
        verdict_at(0, 1, share=0.1, arms=1, gpus=0)
    with pytest.raises(ValueError, match="at most all of it"):
        race_slices(0, 1, (Round(0.7, 2), Round(0.4, 1)))
    assert sum(one.share for one in RACE_ROUNDS) < 1
