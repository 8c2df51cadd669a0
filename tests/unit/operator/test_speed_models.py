"""What policies expect of jobs: the fit recovers what generated the measurements, and priors stand in for the rest."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.base import YEAR_SECONDS
from espalier_core.estimates.goodput import BatchLimits, StepTime, Throughput, fitted, solved
from espalier_operator.model import JobFacts, JobTerms, Node, Rules, Snapshot
from espalier_operator.policies.decisions import decided
from espalier_operator.policies.marginal import OptimusPolicy
from espalier_operator.policies.speed_models import MeasuredSpeedModel, speed_models_of

TRUE = Throughput(
    alpha_compute=0.05,
    beta_compute=0.002,
    alpha_local=0.03,
    beta_local=0.002,
    alpha_nodes=0.12,
    beta_nodes=0.01,
    gamma=1.0,
)


def measured(true: Throughput, nodes: int, workers: int, batch: int, noise: float = 1.0) -> StepTime:
    step = true.step_seconds(nodes, workers, batch)
    return StepTime(
        nodes=nodes,
        workers=workers,
        batch_size=batch,
        step_seconds=noise * step,
        sync_seconds=noise * (step - true.compute_seconds(batch)),
    )


PLACES = [(1, 1, 128), (1, 2, 64), (1, 4, 32), (2, 2, 64), (2, 8, 16), (3, 12, 12)]


def is_close(points: tuple[StepTime, ...], true: Throughput, places: Iterable[tuple[int, int]], rel: float) -> bool:
    """Return whether what is fitted to the points predicts the times of a step in these places."""
    found = fitted(points)
    return all(
        found.step_seconds(nodes, workers, 128 / workers)
        == pytest.approx(true.step_seconds(nodes, workers, 128 / workers), rel=rel)
        for nodes, workers in places
    )


def test_the_fit_recovers_the_model_that_made_the_measurements() -> None:
    points = tuple(measured(TRUE, *place) for place in PLACES)
    assert is_close(points, TRUE, ((1, 1), (1, 3), (1, 4), (2, 4), (2, 6), (4, 16)), rel=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_measurements_that_vary_by_five_percent_give_a_model_that_is_off_by_fifteen_at_most(seed: int) -> None:
    chance = random.Random(seed)
    points = tuple(measured(TRUE, *place, noise=math.exp(chance.gauss(0, 0.05))) for place in PLACES)
    assert is_close(points, TRUE, ((1, 1), (1, 3), (2, 4), (2, 8)), rel=0.15)


def test_an_exchange_that_is_partly_hidden_is_predicted_too() -> None:
    true = replace(TRUE, gamma=3.0, alpha_local=0.1)
    points = tuple(measured(true, *place) for place in PLACES)
    assert is_close(points, true, ((1, 2), (1, 3), (1, 4)), rel=0.1)


TIMES = st.floats(0, YEAR_SECONDS, exclude_min=True)
POINTS = st.builds(
    lambda nodes, more, batch, step, part: StepTime(
        nodes=nodes, workers=nodes + more, batch_size=batch, step_seconds=step, sync_seconds=step * part
    ),
    st.integers(1, 100),
    st.integers(0, 1000),
    st.integers(1, 10**6) | st.just(2**53),
    TIMES | st.just(5e-324),
    st.floats(0, 1),
)


@given(st.lists(POINTS, max_size=16), st.integers(1, 10**4), st.integers(1, 100))
def test_whatever_a_tenant_reports_the_prediction_is_a_positive_number(
    points: list[StepTime], workers: int, per_node: int
) -> None:
    facts = job("a", *points)
    speed_model = MeasuredSpeedModel(job=facts, gpus_per_node=per_node)
    assert 0 < speed_model.step_seconds(workers) < math.inf
    assert 0 <= speed_model.remaining_steps < math.inf


def test_a_fit_is_kept() -> None:
    points = tuple(measured(TRUE, nodes, workers, 128 // workers, 1.01) for nodes, workers, _ in PLACES * 2)
    fitted(points)
    hits = fitted.cache_info().hits
    fitted(points)
    assert fitted.cache_info().hits == hits + 1


def test_equations_are_solved() -> None:
    assert solved([[0.0, 2.0], [3.0, 1.0]], [4.0, 5.0]) == pytest.approx([1.0, 2.0])


# ---- outlooks of jobs


def job(name: str, *points: StepTime, **terms: object) -> JobFacts:
    asked = {"min_replicas": 1, "max_replicas": 8, "time_budget_seconds": 1000, "trains_together": True} | terms
    return JobFacts(key=f"ns/{name}", terms=JobTerms(**asked), submitted_at=0.0, used_seconds=400, speeds=points)


def test_what_was_never_measured_scales_perfectly() -> None:
    speed_model = MeasuredSpeedModel(job=job("a"), gpus_per_node=8)
    assert speed_model.step_seconds(1) / speed_model.step_seconds(4) == 4
    assert speed_model.remaining_steps * speed_model.step_seconds(1) == pytest.approx(600)
    alone = MeasuredSpeedModel(job=job("a", measured(TRUE, 1, 1, 128)), gpus_per_node=8)
    assert alone.step_seconds(1) == pytest.approx(TRUE.step_seconds(1, 1, 128), rel=0.01)
    # The half of a step that does not depend on the batch is not shared.
    assert alone.step_seconds(8) == pytest.approx(alone.step_seconds(1) * (1 + 1 / 8) / 2, rel=0.01)
    assert alone.remaining_steps == pytest.approx(600 / TRUE.step_seconds(1, 1, 128), rel=0.01)


def test_workers_that_do_not_fit_on_a_node_exchange_between_nodes() -> None:
    points = tuple(measured(TRUE, *place) for place in PLACES)
    speed_model = MeasuredSpeedModel(job=job("a", *points), gpus_per_node=4)
    assert speed_model.step_seconds(4) == pytest.approx(TRUE.step_seconds(1, 4, 12 * 12 / 4), rel=0.05)
    assert speed_model.step_seconds(8) == pytest.approx(TRUE.step_seconds(2, 8, 12 * 12 / 8), rel=0.05)


def test_what_was_measured_holds_where_the_model_cannot_follow() -> None:
    """Workers that share cores: with half of the batch each computes for twice as long."""
    alone = StepTime(nodes=1, workers=1, batch_size=64, step_seconds=0.002, sync_seconds=0.0)
    two = StepTime(nodes=1, workers=2, batch_size=32, step_seconds=0.008, sync_seconds=0.004)
    speed_model = MeasuredSpeedModel(job=job("a", alone, two), gpus_per_node=8)
    assert speed_model.step_seconds(1) == pytest.approx(0.002)
    assert speed_model.step_seconds(2) == pytest.approx(0.008)
    assert speed_model.step_seconds(3) > speed_model.step_seconds(1)


def test_a_step_of_more_examples_counts_as_more_steps() -> None:
    points = (measured(TRUE, 1, 1, 64), measured(TRUE, 1, 2, 64))
    speed_model = MeasuredSpeedModel(job=job("a", *points, scales_batch=True), gpus_per_node=8)
    assert speed_model.step_seconds(2) == pytest.approx(TRUE.step_seconds(1, 2, 64) / 2, rel=0.05)


LIMITS = BatchLimits(batch_size=128, max_batch_size=8192)


def test_where_the_trainer_chooses_the_batch_size_workers_are_worth_more() -> None:
    """With a fixed batch, what workers exchange outweighs what they share; with a larger one, it does not."""
    points = tuple(measured(TRUE, *place) for place in PLACES)
    facts = replace(job("a", *points), noise_scale=4096.0)
    chooses = replace(facts, terms=replace(facts.terms, batch_limits=LIMITS))
    fixed, goodput = (MeasuredSpeedModel(job=each, gpus_per_node=8) for each in (facts, chooses))
    assert goodput.goodput(1, 8) / goodput.goodput(1, 1) > 2 * fixed.goodput(1, 8) / fixed.goodput(1, 1)
    assert goodput.remaining_steps * goodput.step_seconds(1) == pytest.approx(600)
    unknown = MeasuredSpeedModel(job=replace(chooses, noise_scale=None), gpus_per_node=8)
    assert unknown.goodput(1, 8) == fixed.goodput(1, 8)


@given(st.lists(POINTS, min_size=1, max_size=8), st.integers(1, 10**4), st.floats(0, 1e300))
def test_whatever_noise_a_tenant_reports_the_prediction_is_a_positive_number(
    points: list[StepTime], workers: int, noise: float
) -> None:
    facts = replace(job("a", *points, batch_limits=LIMITS), noise_scale=noise)
    speed_model = MeasuredSpeedModel(job=facts, gpus_per_node=8)
    assert 0 < speed_model.step_seconds(workers) < math.inf
    assert 0 < speed_model.goodput(1, workers) < math.inf


def test_a_snapshot_keeps_the_limits_of_batch_sizes() -> None:
    facts = replace(job("a", batch_limits=LIMITS), noise_scale=10.0)
    snapshot = Snapshot(taken_at=0.0, jobs=(facts,))
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_job_whose_extra_workers_do_not_train_has_no_outlook() -> None:
    node = Node(name="n", gpu_type="a", allocatable=8)
    jobs = [job("a"), job("b", trains_together=False)]
    assert list(speed_models_of(Snapshot(taken_at=0.0, nodes=(node,)), jobs, 0.0)) == ["ns/a"]


def test_optimus_lends_by_what_was_measured() -> None:
    """Of two jobs that are equal but for the exchange of gradients, the one with the cheap exchange gets more."""
    cheap, dear = replace(TRUE, alpha_local=0.001, beta_local=0.0001), replace(TRUE, alpha_local=0.3, beta_local=0.05)
    jobs = tuple(
        replace(
            job(name, *(measured(true, 1, workers, 128 // workers) for workers in (1, 2, 4))),
            admitted_at=0.0,
            training=True,
        )
        for name, true in (("cheap", cheap), ("dear", dear))
    )
    node = Node(name="n", gpu_type="a", allocatable=8)
    snapshot = Snapshot(taken_at=0.0, nodes=(node,), jobs=jobs, rules=Rules(policy="optimus"))
    shares = {share.job: share.workers for share in decided(OptimusPolicy(), snapshot, jobs, 0.0).shares}
    assert shares == {"ns/cheap": 7, "ns/dear": 1}
