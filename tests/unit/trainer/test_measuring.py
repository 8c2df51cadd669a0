"""What a run measures of its steps, and what it reports of that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.measurements import MAX_CONFIGURATIONS, MAX_LOSS_POINTS, Measurements, Speed
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.measuring.speeds import (
    LEAST_STEPS,
    SHARE,
    WARM_UP_STEPS,
    WINDOW,
    Key,
    LossCurve,
    NoiseSampling,
    StepSpeeds,
)
from trainer_processes import ended, until

ALONE = (1, 1, 64, 1000, 1)
TWO = (1, 2, 32, 1000, 1)


def add(speeds: StepSpeeds, key: Key, steps: int, seconds: float, sync: float | None = None) -> None:
    for _ in range(steps):
        speeds.add(key, seconds, sync)


def test_steps_that_warm_up_are_not_measured():
    speeds = StepSpeeds()
    add(speeds, ALONE, WARM_UP_STEPS, 9.0)
    assert speeds.measured() == ()
    add(speeds, ALONE, 10, 0.5)
    speeds.changed()
    add(speeds, ALONE, WARM_UP_STEPS, 9.0)
    (found,) = speeds.measured()
    assert (found.steps, found.step_seconds, found.sync_seconds) == (10, 0.5, 0.0)


def test_a_pause_does_not_move_the_median():
    speeds = StepSpeeds()
    add(speeds, ALONE, WARM_UP_STEPS + 20, 0.5)
    add(speeds, ALONE, 1, 60.0)
    assert speeds.measured()[0].step_seconds == 0.5


def test_a_job_that_becomes_slower_is_known_to_be_slower():
    speeds = StepSpeeds()
    add(speeds, ALONE, WARM_UP_STEPS + 1000, 0.5)
    add(speeds, ALONE, WINDOW, 0.8)
    assert speeds.measured()[0].step_seconds == 0.8
    assert speeds.measured()[0].steps == 1000 + WINDOW


def test_workers_that_train_together_are_known_once_the_exchange_was_measured():
    speeds = StepSpeeds()
    add(speeds, TWO, WARM_UP_STEPS + 9, 0.5)
    assert speeds.measured() == ()
    add(speeds, TWO, 1, 0.5, 0.1)
    assert [(speed.workers, speed.sync_seconds) for speed in speeds.measured()] == [(2, 0.1)]


def test_what_a_checkpoint_kept_holds_until_it_is_measured_again():
    kept = Speed(nodes=1, workers=1, batch_size=64, parameters=1000, steps=7, step_seconds=3.0, sync_seconds=0.0)
    speeds = StepSpeeds((kept,))
    add(speeds, ALONE, WARM_UP_STEPS, 0.5)
    assert speeds.measured() == (kept,)
    add(speeds, ALONE, 1, 0.5)
    assert speeds.measured()[0].step_seconds == 0.5


def test_the_same_configuration_on_another_type_of_gpu_is_another():
    """A job that moves keeps what was measured where it was."""
    speeds = StepSpeeds(gpu_type="old")
    add(speeds, ALONE, WARM_UP_STEPS + 1, 3.0)
    moved = StepSpeeds(speeds.measured(), gpu_type="new")
    add(moved, ALONE, WARM_UP_STEPS + 1, 1.0)
    assert [(speed.gpu_type, speed.step_seconds) for speed in moved.measured()] == [("old", 3.0), ("new", 1.0)]
    assert moved.measured()[1].batch_size == 64


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 3)),
            st.floats(0, 1e9),
            st.none() | st.floats(0, 1e9),
            st.integers(1, 12),
        ),
        max_size=80,
    )
)
def test_whatever_is_measured_can_be_reported(added):
    speeds = StepSpeeds()
    for key, seconds, sync, times in added:
        add(speeds, key, times, seconds, sync)
    found = Measurements(speeds=speeds.measured())
    assert Measurements.model_validate_json(found.model_dump_json(by_alias=True)) == found
    assert len(found.speeds) <= MAX_CONFIGURATIONS
    assert all(speed.sync_seconds <= speed.step_seconds for speed in found.speeds)


@given(st.lists(st.tuples(st.floats(1e-4, 10), st.floats(0, 100)), min_size=1, max_size=3000))
def test_measuring_never_costs_more_than_its_share(steps):
    """Beyond what was earned it spends by how much a measurement is dearer than expected, and the first on credit."""
    sampling, time, spent, dearest = NoiseSampling(), 0.0, 0.0, 0.0
    for seconds, cost in steps:
        if sampling.due():
            sampling.paid(cost)
            spent, dearest = spent + cost, max(dearest, cost)
        time += seconds
        sampling.stepped(seconds)
    assert spent <= SHARE * time + dearest * (1 + 1e-9)


def test_cheap_measurements_are_made_every_few_steps_and_dear_ones_rarely():
    def count(cost: float) -> int:
        sampling, count = NoiseSampling(), 0
        for _ in range(10_000):
            if sampling.due():
                sampling.paid(cost)
                count += 1
            sampling.stepped(1.0)
        return count

    assert count(0.01) == 10_000 // LEAST_STEPS - 1
    assert 98 <= count(1.0) <= 100


@given(st.integers(0, 3000), st.integers(0, 20))
def test_the_curve_is_bounded_and_covers_the_run(steps, earlier):
    curve = LossCurve()
    for step in range(earlier):
        curve.add(step // 10, step, float(step))
    curve = LossCurve(curve.measured())
    for step in range(earlier, earlier + steps):
        curve.add(step // 10, step, float(step))
    points = curve.measured()
    assert len(points) <= MAX_LOSS_POINTS
    if steps + earlier >= 2:
        strides = {after.step - before.step for before, after in pairwise(points)}
        assert points[0].step == 0
        assert len(strides) == 1
        (stride,) = strides
        # The loss is the number of the step, so the mean over a point's steps is that of its middle.
        assert all(point.loss == pytest.approx(point.step + (stride - 1) / 2) for point in points)
        assert points[-1].step >= steps + earlier - 2 * stride


def test_a_loss_that_is_not_finite_is_left_out():
    curve = LossCurve()
    for step, loss in enumerate([1.0, float("nan"), float("inf"), 2.0]):
        curve.add(0, step, loss)
    assert [point.loss for point in curve.measured()] == [1.0, 2.0]


Runner = Callable[..., Any]


def test_a_run_reports_its_steps_noise_and_loss(run):
    done = run()
    found = done.reporter.report.measurements
    (speed,) = found.speeds
    assert (speed.nodes, speed.workers, speed.batch_size) == (1, 1, 64)
    assert speed.parameters == done.trainer.network.parameters
    assert speed.step_seconds > 0
    assert found.gradient.variance > 0
    assert found.losses[0].step == 0
    assert found.losses[-1].loss < found.losses[0].loss


def test_measuring_does_not_change_how_a_run_trains(run, monkeypatch):
    measured = run()
    monkeypatch.setattr("espalier_trainer.run.meter.RunMeter.begin", lambda meter: False)
    plain = run()
    assert plain.reporter.report.measurements.gradient is None
    plain.assert_same_weights(measured)


def test_a_run_that_resumes_knows_what_it_measured(run, tmp_path, stop_after):
    first = run(store=tmp_path, stop=stop_after(60)).reporter.report.measurements
    kept = CheckpointStore(tmp_path).load_latest()
    assert kept.state.measurements.losses == first.losses
    again = run(store=tmp_path).reporter.report.measurements
    assert again.losses[0] == kept.state.measurements.losses[0] or again.losses[0].step == 0
    assert again.gradient.samples > first.gradient.samples


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_report_both_configurations(workplace, make_job, nodes):
    training = {"elasticBatch": "keepGlobal", "schedule": {"name": "Constant"}}
    job = make_job(timeBudgetSeconds=3600, maxReplicas=2, adaptation={"mode": "Off"}, training=training)
    # The process knows the name of its node from its environment.
    name = "os.environ['ESPALIER_NODE'] = os.environ.get('ESPALIER_WORKER_ROLE', 'base')" if nodes > 1 else ""
    place = workplace(job, prelude=name)
    place.allocate(1)
    leader = place.start()
    place.start(0)

    def measured(condition: Callable[[Any], bool]) -> Any:
        until(lambda: place.has_report() and condition(place.report().measurements), place)
        return place.report().measurements

    alone = measured(lambda found: found.speeds and found.gradient and found.gradient.samples >= 2)
    assert [(speed.nodes, speed.workers, speed.batch_size) for speed in alone.speeds] == [(1, 1, 64)]
    place.allocate(2)
    enough = alone.gradient.samples + 1
    both = measured(lambda found: found.gradient.samples >= enough and found.speeds[1:])
    together = both.speeds[-1]
    assert (together.nodes, together.workers, together.batch_size) == (nodes, 2, 32)
    assert together.sync_seconds > 0
    assert both.gradient.variance > 0
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143
