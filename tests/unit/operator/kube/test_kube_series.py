"""The figures of what is there: they add up, and go with what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.metrics import FAMILIES, LABELS, Exporter, family
from espalier_core.types.measurements import Bid, BidUse, GradientNoise, GrowthForecast, Measurements, Speed
from espalier_core.types.reasons import Reason
from espalier_core.types.report import WORKERS_METRIC, Adaptation, AdaptationSource, Metric
from espalier_core.types.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    JobStatus,
    SchedulingStatus,
    TimeBudgetStatus,
    TrainingStatus,
)
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import JobState
from espalier_operator.kube.metrics.measurements import Owner
from espalier_operator.kube.metrics.series import SCRAPED, LiveJob, gpus_of, series_of
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.policies.view import Share
from operator_world.kube_objects import adaptation

NOW = 1_000.0
FORECAST = GrowthForecast(gain=0.02, low=0.01, high=0.03, seconds=40.0)
TIME = datetime.fromtimestamp(NOW - 10, UTC)


def facts(name: str, **more: object) -> JobFacts:
    terms = JobTerms(min_replicas=2, max_replicas=4, gpus_per_worker=2, time_budget_seconds=100)
    return JobFacts(key=f"team/{name}", terms=terms, submitted_at=0.0, **more)


def live(name: str, status: JobStatus, known: JobFacts | None) -> LiveJob:
    owner = Owner(namespace="team", queue="default", base_gpus=4, gpus_per_worker=2, created_at=NOW - 60)
    return LiveJob(owner=owner, name=name, status=status, facts=known)


def of_one(status: JobStatus, known: JobFacts | None = None, now: float = NOW) -> Mapping[str, Any]:
    """Return the series of one job."""
    return series_of([live("one", status, known or facts("one"))], Snapshot(taken_at=now), now)


def test_a_job_that_trains() -> None:
    status = JobStatus(
        phase=JobPhase.RUNNING,
        time_budget=TimeBudgetStatus(used_seconds=10, remaining_seconds=90, gpu_seconds_used=50),
        training=TrainingStatus(epoch=3, step=300, depth=5, parameters=99, metrics=(Metric(name="loss", value=0.5),)),
        restarts=1,
        adaptation_count=2,
        scheduling=SchedulingStatus(admitted_at=TIME, gpu_type="a", extra=1),
    )
    made = of_one(status, facts("one", admitted_at=NOW - 10, extra=1))
    place = ("team", "one")
    assert made["espalier_jobs"] == {("team", "default", "Running"): 1}
    assert made["espalier_jobs_waiting"] == {}
    assert made["espalier_job_info"] == {(*place, "default", "a", "Running"): 1}
    assert made["espalier_job_gpus"] == {(*place, "base"): 4, (*place, "extra"): 2}
    assert made["espalier_job_gpu_seconds_total"] == {(*place, "base"): 40, (*place, "extra"): 10}
    assert made["espalier_job_metric"] == {(*place, "loss"): 0.5}
    figures = {"time_used_seconds_total": 10, "time_budget_seconds": 100, "steps_total": 300, "depth": 5}
    for name, value in figures.items():
        assert made[f"espalier_job_{name}"] == {place: value}


def decision(number: int, action: str, probabilities: dict[str, float]) -> Adaptation:
    source = AdaptationSource.AGENT if probabilities else AdaptationSource.FALLBACK
    return adaptation(decision_id=f"d-{number}", action=action, source=source, probabilities=probabilities)


def test_the_last_decision_is_reported_with_what_else_it_could_have_been() -> None:
    """A choice of an earlier decision is forgotten, and a fallback has no probabilities."""
    made = (
        decision(1, "Deepen(a)", {"Deepen(a)": 0.75, "Nothing": 0.25}),
        decision(2, "Nothing", {"Deepen(b)": 0.5, "Nothing": 0.5}),
        decision(3, "Deepen(a)", {}),
    )

    def told(count: int) -> object:
        return of_one(JobStatus(adaptations=made[:count])).get("espalier_job_decision_probability_ratio")

    assert told(0) is None
    assert told(1) == {("team", "one", "Deepen(a)", "yes"): 0.75, ("team", "one", "Nothing", "no"): 0.25}
    assert told(2) == {("team", "one", "Deepen(b)", "no"): 0.5, ("team", "one", "Nothing", "yes"): 0.5}
    assert told(3) == {}


def test_measured_figures_have_one_series_a_job() -> None:
    """Of the configurations the last; a noise scale that is not known has none."""
    speeds = tuple(
        Speed(nodes=1, workers=workers, batch_size=8, parameters=9, steps=5, step_seconds=1 / workers, sync_seconds=0)
        for workers in (1, 2)
    )
    hidden, known = (GradientNoise(squared_norm=norm, variance=8, samples=1) for norm in (0, 2))
    for gradient, scale in ((None, None), (hidden, None), (known, {("team", "one"): 4})):
        made = of_one(JobStatus(measurements=Measurements(speeds=speeds, gradient=gradient)))
        assert made["espalier_job_step_seconds"] == {("team", "one"): 0.5}
        assert made.get("espalier_job_gradient_noise_scale") == scale


@pytest.mark.parametrize(("growth", "gain"), [(None, None), (FORECAST, {("team", "one"): 0.02})])
def test_what_growing_would_gain_is_shown_where_it_is_known(growth: GrowthForecast | None, gain: object) -> None:
    assert of_one(JobStatus(measurements=Measurements(growth=growth))).get("espalier_job_expected_gain") == gain


def test_bids_for_the_next_gpu_are_shown_by_use() -> None:
    bids = (
        Bid(use=BidUse.WORKER, workers=2, gain=0.2, low=0.0, high=0.3, seconds=100),
        Bid(use=BidUse.WORKER, workers=3, gain=0.1, low=0.0, high=0.3, seconds=100),
        Bid(use=BidUse.GROWTH, workers=2, gain=0.3, low=0.0, high=0.3, seconds=50),
    )
    per_gpu = {("team", "one", "Worker"): 0.0005, ("team", "one", "Growth"): 0.003}
    assert of_one(JobStatus(measurements=Measurements(bids=bids)))["espalier_job_bid_ratio"] == per_gpu


def test_who_trains_together_is_reported_while_the_job_runs() -> None:
    """A job whose leader trains alone reports no such figure."""

    def told(*figures: Metric, **over: object) -> object:
        return of_one(JobStatus(training=TrainingStatus(metrics=figures), **over)).get("espalier_job_workers")

    workers = (Metric(name="train_loss", value=0.5), Metric(name=WORKERS_METRIC, value=3))
    assert told(*workers) == {("team", "one"): 3}
    assert not told(workers[0])
    assert told(*workers, completion_time=TIME) == {("team", "one"): 0}


def test_a_job_that_waits_says_for_what_and_for_how_long() -> None:
    refused = Condition(
        type=ConditionType.ADMITTED, status=ConditionStatus.FALSE, reason=Reason.NO_FREE_GPU, last_transition_time=TIME
    )
    made = of_one(JobStatus(conditions=(refused,)))
    assert made["espalier_jobs_waiting"] == {("team", "default", "NoFreeGPU"): 1}
    assert made["espalier_job_waiting_seconds"] == {("team", "one", "NoFreeGPU"): 10}
    assert made["espalier_gpus_waited_for"] == {("default",): 4}
    assert "espalier_job_depth" not in made, "nothing is known of its model"


def test_a_job_has_waited_since_it_last_began_to() -> None:
    """Not since it was created, if it trained or was suspended in between."""
    waits = facts("one")
    suspended = replace(waits, terms=replace(waits.terms, suspend=True))
    trains = replace(waits, admitted_at=0.0)
    status: JobStatus | None = None

    def told(now: float, job: JobFacts) -> list[float]:
        nonlocal status
        at = datetime.fromtimestamp(now, UTC)
        state = JobState(admitted_at=job.admitted_at)
        status = status_of(job, state, Observed(), status, at)
        return list(of_one(status, job, now).get("espalier_job_waiting_seconds", {}).values())

    day = 86_400.0
    assert told(0.0, suspended) == []
    assert told(day, suspended) == []
    assert told(day + 10, waits) == [0], "it was resumed"
    assert told(day + 30, waits) == [20]
    assert told(day + 40, trains) == []
    assert told(2 * day, waits) == [0], "it was preempted"
    assert told(2 * day + 15, waits) == [15]
    assert told(2 * day + 20, suspended) == []
    assert told(2 * day + 30, waits) == [0]


def test_how_much_a_program_has_done_is_a_series_once_it_says_so() -> None:
    said = JobStatus(training=TrainingStatus(step=5, done_percentage=40))
    jobs = live("one", said, facts("one")), live("two", JobStatus(), facts("two"))
    made = series_of(jobs, Snapshot(taken_at=NOW), NOW)
    assert made["espalier_job_done_ratio"] == {("team", "one"): 0.4}


def test_steps_are_a_series_where_they_are_known() -> None:
    """A trainer takes steps from the start; a program may never say how many, and what is not known is not 0."""
    known = facts("one")
    program = replace(known, terms=replace(known.terms, program=True))

    def told(step: int, of: JobFacts) -> object:
        return of_one(JobStatus(training=TrainingStatus(epoch=2, step=step)), of).get("espalier_job_steps_total")

    assert told(0, known) == {("team", "one"): 0}, "one that hangs before its first step is to be seen"
    assert told(0, program) is None
    assert told(5, program) == {("team", "one"): 5}


def test_a_job_that_is_over_holds_nothing() -> None:
    status = JobStatus(phase=JobPhase.COMPLETE, completion_time=TIME, scheduling=SchedulingStatus(admitted_at=TIME))
    made = of_one(status, facts("one", admitted_at=NOW - 10, finished=True))
    assert set(made["espalier_job_gpus"].values()) == {0}
    assert made["espalier_jobs_waiting"] == {}


def test_before_the_first_plan_there_is_nothing_to_tell() -> None:
    assert series_of([live("one", JobStatus(), None)], None, NOW) == {}


def test_all_labels_fit_and_nothing_else_is_scraped() -> None:
    status = JobStatus(
        training=TrainingStatus(depth=1, metrics=(Metric(name="loss", value=0.5),)),
        adaptations=(decision(1, "Nothing", {"Nothing": 1.0}),),
    )
    worker = Worker(name="w", job=None, role=WorkerRole.FOREIGN, node="n", gpus=1, state=WorkerState.RUNNING)
    snapshot = Snapshot(taken_at=NOW, nodes=(Node(name="n", gpu_type="a", allocatable=2),), workers=(worker,))
    for metric, values in series_of([live("one", status, facts("one"))], snapshot, NOW).items():
        assert metric in SCRAPED
        assert all(len(labels) == len(family(metric).labels) for labels in values)
    operators = {each.name for each in FAMILIES if each.exporter is Exporter.OPERATOR}
    assert set(SCRAPED) <= operators


def test_each_quota_is_reported_with_what_is_held_of_it() -> None:
    queues = (
        QueueLimits(name="a", quotas=(Quota(gpu_type="x", nominal=3), Quota(nominal=5))),
        QueueLimits(name="free"),
        QueueLimits(name="unused", quotas=(Quota(nominal=1),)),
    )
    terms = JobTerms(min_replicas=2, max_replicas=2, queue="a", time_budget_seconds=100.0)
    one = JobFacts(key="team/one", terms=terms, submitted_at=0.0, admitted_at=1.0, gpu_type="x")
    more = replace(terms, min_replicas=4)
    jobs = (
        one,
        replace(one, key="team/two", terms=more, gpu_type="y"),
        replace(one, key="team/over", finished=True),
        replace(one, key="team/waits", admitted_at=None),
    )
    made = series_of([], Snapshot(taken_at=NOW, jobs=jobs, queues=queues), NOW)
    assert made["espalier_queue_nominal_gpus"] == {("a", "x"): 3, ("a", ""): 5, ("unused", ""): 1}
    assert made["espalier_queue_gpus"] == {("a", "x"): 2, ("a", ""): 4, ("unused", ""): 0}


nodes = st.builds(
    Node,
    name=st.sampled_from(["a", "b", "c"]),
    gpu_type=st.sampled_from(["", "x"]),
    allocatable=st.integers(0, 8),
    ready=st.booleans(),
    schedulable=st.booleans(),
)
workers = st.builds(
    Worker,
    name=st.text(min_size=1, max_size=3),
    job=st.none(),
    role=st.sampled_from(WorkerRole),
    node=st.sampled_from([None, "a", "b", "c", "gone"]),
    gpus=st.integers(1, 4),
    state=st.sampled_from(WorkerState),
)


@given(st.lists(nodes, max_size=3, unique_by=lambda node: node.name), st.lists(workers, max_size=6))
def test_every_gpu_is_in_one_state(some: list[Node], held: list[Worker]) -> None:
    made = gpus_of(Snapshot(taken_at=NOW, nodes=tuple(some), workers=tuple(held)))
    for gpu_type in {node.gpu_type for node in some}:
        mine = [node for node in some if node.gpu_type == gpu_type]
        want = sum(
            max(node.allocatable, sum(worker.gpus for worker in held if worker.node == node.name)) for node in mine
        )
        assert sum(value for labels, value in made.items() if labels[0] == gpu_type) == want
    assert all(value >= 0 for value in made.values())


def test_the_catalogue_names_follow_the_conventions() -> None:
    names = [each.name for each in FAMILIES]
    assert len(names) == len(set(names))
    for each in FAMILIES:
        assert each.name.startswith("espalier_")
        assert each.name.endswith("_total") == (each.type == "counter"), each.name
        assert bool(each.buckets) == (each.type == "histogram"), each.name
        assert list(each.buckets) == sorted(each.buckets)
        assert each.help.endswith("."), each.name
        assert not set(each.labels) & {"job", "instance", "pod", "le", "quantile"}, each.name
        assert all(label in LABELS for label in each.labels), each.name


def test_a_job_s_place_and_share_are_shown() -> None:
    shares = (Share(job="team/one", workers=2, spare=1, gpu_type="a100"), Share(job="team/two", workers=0))
    made = series_of([], Snapshot(taken_at=NOW), NOW, shares)
    assert made["espalier_job_policy_place"] == {("team", "one"): 1, ("team", "two"): 2}
    assert made["espalier_job_share_workers"] == {
        ("team", "one", "share", "a100"): 2,
        ("team", "one", "spare", "a100"): 1,
        ("team", "two", "share", ""): 0,
        ("team", "two", "spare", ""): 0,
    }
    assert "espalier_job_policy_place" not in series_of([], Snapshot(taken_at=NOW), NOW)
