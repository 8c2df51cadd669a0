"""What the next GPU is worth to a job, by its curve, its speed and its agent's forecast."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.estimates.bids import LEAST_POINTS, Bidder, bids_of, learning_curve, speedup_by
from espalier_core.estimates.goodput import StepTime, WorkSpeed
from espalier_core.types.measurements import MAX_BIDS, Bid, BidUse, GrowthForecast, ScorePoint
from espalier_core.types.task import ACCURACY, BITS_PER_CHARACTER, Measure

FORECAST = GrowthForecast(gain=0.02, low=-0.01, high=0.05, seconds=50.0)


def evaluations(
    floor: float = 0.1, scale: float = 0.6, power: float = 0.6, count: int = 20, noise: float = 0.0, seed: int = 0
) -> tuple[ScorePoint, ...]:
    """Return accuracies whose errors follow a power law."""
    random = Random(seed)
    return tuple(
        ScorePoint(work=epoch, value=1 - floor - scale * epoch**-power + random.gauss(0, noise))
        for epoch in range(1, count + 1)
    )


def standing(scores: tuple[ScorePoint, ...] = evaluations(), measure: Measure = ACCURACY, **changes: object) -> Bidder:
    """Return a job with 100 s left, in which one worker trains 20 more epochs, and perfect speedup."""
    facts: dict[str, object] = {
        **{"measure": measure, "scores": scores, "work": 20.0, "seconds_left": 100.0, "epoch_seconds": 5.0},
        **{"base": 1, "most": 4, "tried": 2, "speedup": float},
    }
    return Bidder(**(facts | changes))  # type: ignore[arg-type]


def of(bids: tuple[Bid, ...], use: BidUse) -> list[Bid]:
    return [bid for bid in bids if bid.use is use]


def test_a_worker_is_worth_the_rest_of_the_curve_that_it_lets_the_job_reach() -> None:
    second, third, _ = of(bids_of(standing()), BidUse.WORKER)
    lacks = 0.1 + 0.6 * 40**-0.6
    assert second.gain == pytest.approx(0.6 * (40**-0.6 - 60**-0.6) / lacks, rel=0.3)
    assert second.low <= second.gain <= second.high
    assert 0 < third.gain < second.gain
    assert (second.workers, second.seconds) == (2, 100.0)
    assert second.rate == pytest.approx(second.gain / 100)


def test_a_speed_that_nobody_has_measured_may_gain_nothing() -> None:
    second, third, _ = of(bids_of(standing()), BidUse.WORKER)
    assert second.low > 0
    assert third.low == 0


def test_workers_gain_nothing_where_they_do_not_train_or_the_curve_is_flat_or_unknown() -> None:
    assert not of(bids_of(standing(speedup=None)), BidUse.WORKER)
    assert not of(bids_of(standing(evaluations(count=LEAST_POINTS - 1))), BidUse.WORKER)
    flat = evaluations(scale=0.0, noise=0.01)
    assert all(abs(bid.gain) < 0.03 for bid in of(bids_of(standing(flat)), BidUse.WORKER))
    assert all(bid.gain == 0 for bid in of(bids_of(standing(speedup=lambda workers: 1.0)), BidUse.WORKER))


def test_a_growth_is_worth_the_share_of_what_the_job_will_lack() -> None:
    (bid,) = of(bids_of(standing(forecast=FORECAST)), BidUse.GROWTH)
    assert bid.gain == pytest.approx(0.02 / (0.1 + 0.6 * 40**-0.6), rel=0.1)
    assert bid.low < 0 < bid.high
    assert bid.seconds == 50


def test_a_trial_is_worth_more_than_its_forecast_the_less_is_known() -> None:
    def worth(low: float, high: float, deviation: float) -> float:
        forecast = GrowthForecast(gain=0.02, low=low, high=high, seconds=50.0)
        (bid,) = of(bids_of(standing(forecast=forecast, trial=deviation)), BidUse.TRIAL)
        return bid.gain

    (grown,) = of(bids_of(standing(forecast=FORECAST)), BidUse.GROWTH)
    assert worth(0.02, 0.02, 0.04) == pytest.approx(grown.gain)
    assert worth(-0.01, 0.05, 0.04) > grown.gain
    assert worth(-0.06, 0.1, 0.04) > worth(-0.01, 0.05, 0.04)
    assert worth(-0.06, 0.1, 0.2) < worth(-0.06, 0.1, 0.04)


def test_nothing_is_named_once_it_is_known_what_growing_gains() -> None:
    none = GrowthForecast(gain=0.0, low=0.0, high=0.0, seconds=0.0)
    assert not of(bids_of(standing()), BidUse.NOTHING)
    assert [bid.use for bid in bids_of(standing(forecast=none, speedup=None))] == [BidUse.NOTHING]
    assert [bid.use for bid in bids_of(standing(forecast=FORECAST, seconds_left=0.0))] == [BidUse.NOTHING]
    assert [bid.use for bid in bids_of(standing(most=1))] == [BidUse.NOTHING]
    assert [bid.use for bid in bids_of(standing((), forecast=none))] == [BidUse.NOTHING], "it has no scores"
    assert not bids_of(standing((), forecast=FORECAST))


def test_bits_per_character_saved_follow_from_the_gain_in_probability() -> None:
    scores = tuple(ScorePoint(work=point.work, value=1 + point.value) for point in evaluations(scale=-0.4))
    forecast = GrowthForecast(gain=2**-1.5 - 2 ** -scores[-1].value, low=0.0, high=0.1, seconds=50.0)
    (bid,) = of(bids_of(standing(scores, BITS_PER_CHARACTER, forecast=forecast)), BidUse.GROWTH)
    assert bid.gain == pytest.approx((scores[-1].value - 1.5) / scores[-1].value, rel=0.1)


def test_workers_that_enlarge_the_batch_add_less_the_less_noise_there_is() -> None:
    speeds = tuple(
        StepTime(nodes=1, workers=workers, batch_size=32, step_seconds=0.1, sync_seconds=0.0) for workers in (1, 2)
    )

    def twice(noise_scale: float | None) -> float:
        return speedup_by(WorkSpeed(speeds=speeds, base=1, scales_batch=True, noise_scale=noise_scale), 1.0)(2)

    assert twice(None) == pytest.approx(2.0)
    assert twice(32.0) == pytest.approx(2 * 64 / 96)
    assert twice(1e6) == pytest.approx(2.0, rel=0.01)


@given(
    values=st.lists(st.floats(-2, 3), max_size=40),
    left=st.floats(0, 1e6),
    epoch_seconds=st.floats(0, 1e4),
    most=st.integers(1, 100),
    speed=st.floats(0, 100),
    gain=st.floats(-1, 1),
    trial=st.none() | st.floats(0, 1),
    measure=st.sampled_from([ACCURACY, BITS_PER_CHARACTER]),
)
def test_any_facts_give_few_and_finite_bids(
    values: list[float],
    left: float,
    epoch_seconds: float,
    most: int,
    speed: float,
    gain: float,
    trial: float | None,
    measure: Measure,
) -> None:
    scores = tuple(ScorePoint(work=place + 1, value=value) for place, value in enumerate(values))
    forecast = GrowthForecast(gain=gain, low=min(gain, 0.0), high=max(gain, 0.0), seconds=left)
    job = standing(
        scores[-32:],
        measure,
        work=float(len(values)),
        seconds_left=left,
        epoch_seconds=epoch_seconds,
        most=most,
        speedup=lambda workers: 1 + speed * (workers - 1),
        forecast=forecast,
        trial=trial,
    )
    bids = bids_of(job)
    assert len(bids) <= MAX_BIDS
    assert all(bid.low <= bid.gain <= bid.high and math.isfinite(bid.rate) for bid in bids)


def test_four_of_five_curves_are_within_their_intervals() -> None:
    """For curves of the assumed form, with the noise of some hundred validation examples."""
    inside = 0
    for seed in range(60):
        random = Random(seed)
        floor, scale, power = random.uniform(0, 0.3), random.uniform(0.2, 0.6), random.uniform(0.3, 1.2)
        curve = learning_curve(evaluations(floor, scale, power, noise=0.01, seed=seed), ACCURACY)
        gain, truth = curve.gain(40, 80), scale * (40**-power - 80**-power)
        inside += gain.low <= truth <= gain.high
    assert 42 <= inside <= 58
