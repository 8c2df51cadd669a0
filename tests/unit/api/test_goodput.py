"""Which batch size makes the most progress a second: facts that hold for all measurements."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from espalier_core.base import YEAR_SECONDS
from espalier_core.estimates.goodput import (
    BatchLimits,
    StepTime,
    Throughput,
    adascale_gain,
    best,
    candidates,
    choice,
    fitted,
    gain,
)
from espalier_core.types.measurements import GradientNoise

SECONDS = st.floats(1e-6, 1e3)
MODELS = st.builds(
    Throughput,
    alpha_compute=SECONDS,
    beta_compute=SECONDS,
    alpha_local=SECONDS,
    beta_local=SECONDS,
    gamma=st.floats(1, 10),
)
NOISES = st.builds(
    lambda **figures: GradientNoise(**figures),  # of the class itself the aliases would be drawn too
    squared_norm=st.floats(0, 1e300),
    variance=st.floats(0, 1e300),
    samples=st.integers(1, 100),
)
LIMITS = st.builds(
    BatchLimits,
    batch_size=st.integers(1, 4096),
    max_batch_size=st.integers(1, 10**6),
    max_pass_size=st.none() | st.integers(1, 10**4),
)
ALONE = {"nodes": 1, "workers": 1, "sync_seconds": 0.0}


@given(NOISES, st.integers(1, 10**5), st.integers(1, 10**5))
def test_a_larger_step_is_worth_between_one_and_its_size(noise: GradientNoise, size: int, scale: int) -> None:
    assert 1 <= gain(noise, size, scale) <= scale


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e4), st.floats(1, 1e4))
def test_more_examples_are_never_worth_less_and_each_is_never_worth_more(
    norm: float, variance: float, one: float, other: float
) -> None:
    smaller, larger = sorted((one, other))
    below, above = adascale_gain(norm, variance, smaller), adascale_gain(norm, variance, larger)
    assert above >= below * (1 - 1e-9)
    assert above / larger <= below / smaller * (1 + 1e-9)


@given(st.floats(1e-3, 1e6), st.floats(0, 1e6), st.integers(1, 4096), st.integers(1, 1000))
def test_the_gain_is_the_size_times_pollux_efficiency(norm: float, variance: float, size: int, scale: int) -> None:
    noise = GradientNoise(squared_norm=norm, variance=variance, samples=1)
    scale_of_noise = noise.noise_scale
    efficiency = (scale_of_noise + size) / (scale_of_noise + size * scale)
    assert gain(noise, size, scale) == pytest.approx(scale * efficiency, rel=1e-6)


@given(MODELS, NOISES, LIMITS, st.integers(1, 4), st.integers(1, 64), st.none() | st.integers(1, 100))
def test_the_choice_is_within_the_limits_and_no_worse_than_the_authors(
    model: Throughput, noise: GradientNoise, limits: BatchLimits, nodes: int, workers: int, most: int | None
) -> None:
    found = best(model, noise, limits, nodes, workers, most)
    assert found.batches == 1 or found.batches * limits.batch_size <= limits.max_batch_size
    assert found.batches <= (most or found.batches)
    assert limits.max_pass_size is None or limits.share(found.batches, workers) <= found.passes * limits.max_pass_size
    assert found.goodput >= choice(model, noise, limits, nodes, workers, 1).goodput > 0


@given(MODELS, LIMITS, st.integers(1, 8))
def test_without_noise_the_authors_size_is_best_and_noise_never_makes_it_smaller(
    model: Throughput, limits: BatchLimits, workers: int
) -> None:
    quiet = GradientNoise(squared_norm=1.0, variance=0.0, samples=1)
    assert best(model, quiet, limits, 1, workers).batches == 1
    sizes = [
        best(model, GradientNoise(squared_norm=1.0, variance=each, samples=1), limits, 1, workers).batches
        for each in (1e2, 1e4, 1e6)
    ]
    assert sizes == sorted(sizes)


@given(st.integers(1, 10**6))
def test_sizes_that_are_compared_reach_from_one_to_the_largest(most: int) -> None:
    found = candidates(most)
    assert (found[0], found[-1]) == (1, most)
    assert len(found) <= 50
    assert list(found) == sorted(set(found))


def test_a_size_that_hides_the_overhead_of_a_step_is_chosen_and_one_that_wastes_examples_is_not() -> None:
    """A step of 10 ms and 0.1 ms an example: 64 examples in 16.4 ms, 1,024 in 112 ms."""
    model = Throughput(alpha_compute=0.01, beta_compute=0.0001)
    limits = BatchLimits(batch_size=64, max_batch_size=4096)
    noisy = GradientNoise(squared_norm=1.0, variance=500.0, samples=1)
    found = best(model, noisy, limits, 1, 1)
    by_hand = {s: s * (500 + 64) / (500 + 64 * s) / (0.01 + 0.0064 * s) for s in candidates(64)}
    assert found.batches == max(by_hand, key=by_hand.__getitem__)
    assert 1 < found.batches < 64


@given(st.integers(1, 6), st.floats(1e-4, 1), st.floats(1e-6, 1e-2))
def test_the_fit_knows_that_passes_repeat_what_a_step_costs(passes: int, alpha: float, beta: float) -> None:
    assume(alpha / 30 < beta * 64 < 30 * alpha)
    true = Throughput(alpha_compute=alpha, beta_compute=beta)
    points = tuple(
        StepTime(**ALONE, batch_size=size, passes=parts, step_seconds=true.step_seconds(1, 1, size, parts))
        for size, parts in ((64, 1), (128, 1), (128 * passes, passes))
    )
    found = fitted(points)
    assert found.step_seconds(1, 1, 512, passes) == pytest.approx(true.step_seconds(1, 1, 512, passes), rel=0.05)
    assert true.step_seconds(1, 1, 512, passes) == pytest.approx(passes * alpha + 512 * beta)


@given(st.floats(0, YEAR_SECONDS, exclude_min=True), st.integers(1, 2**53), NOISES, LIMITS)
def test_whatever_a_tenant_reports_the_goodput_is_a_number(
    seconds: float, size: int, noise: GradientNoise, limits: BatchLimits
) -> None:
    model = fitted((StepTime(**ALONE, batch_size=size, step_seconds=seconds),))
    assert 0 < best(model, noise, limits, 1, 4).goodput < math.inf
