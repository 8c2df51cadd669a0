"""Statuses and Events that an API server takes, whatever a leader reports; and what they keep of earlier ones."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from espalier_core.base import YEAR_SECONDS
from espalier_core.types.measurements import GradientNoise, LossPoint, Measurements, Speed, merged
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult, Metric, Report, TrainerPhase
from espalier_core.types.status import ConditionType, JobStatus
from espalier_operator.job.conditions import MAX_METRICS, Observed, status_of, status_of_invalid
from espalier_operator.job.state import JobState
from espalier_operator.job.transitions import MAX_MESSAGE
from espalier_operator.kube.objects.events import LONGEST_MESSAGE, EventObject, events
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import solid
from espalier_operator.kube.state.workers import sort_pods
from espalier_operator.model import Ended, JobFacts, JobTerms
from operator_world.kube_looks import look, observed, status_at
from operator_world.kube_objects import EPOCH, adaptation, kube_job, raw_worker, report

T0 = datetime(2027, 1, 15, 8, tzinfo=UTC)
FACTS = JobFacts(
    key="ns/one",
    terms=JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=100),
    submitted_at=0,
    admitted_at=EPOCH,
    leader_running=True,
    has_reported=True,
    training=True,
    trained=True,
)
CRD = YAML(typ="safe", pure=True).load(Path(__file__).parents[4] / "crds" / "adaptivetrainingjobs.espalier.dev.yaml")
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
INT64 = 2**63 - 1


def grown(number: int, result: AdaptationResult = AdaptationResult.GROWN, **changes: Any) -> Adaptation:
    """An adaptation with the decision id `d<number>`."""
    plain = adaptation(decision_id=f"d{number}", time=T0 + timedelta(seconds=number), result=result)
    return plain.model_copy(update=changes)


def status_with(said: Report | None, before: JobStatus | None = None, **facts: Any) -> JobStatus:
    known = Measurements() if before is None else before.measurements
    measured = None if said is None else merged(known, said.measurements)
    given = Observed(report=said, measured=measured)
    return status_of(replace(FACTS, **facts), JobState(admitted_at=EPOCH), given, before, T0)


def ids(status: JobStatus) -> list[str]:
    return [entry.decision_id for entry in status.adaptations]


# ---- adaptations outlive leaders


def test_adaptations_are_not_forgotten_while_the_next_leader_starts():
    before = status_with(report("a", adaptations=(grown(1), grown(2))))
    assert (ids(before), before.adaptation_count) == (["d1", "d2"], 2)
    starting = status_with(report("b", TrainerPhase.STARTING), before)
    assert (ids(starting), starting.adaptation_count) == (["d1", "d2"], 2)
    assert events(before, starting) == ()
    resumed = status_with(report("b", adaptations=(grown(1), grown(2), grown(3))), starting)
    assert (ids(resumed), resumed.adaptation_count) == (["d1", "d2", "d3"], 3)
    assert [note.reason for note in events(starting, resumed)] == ["AdaptationGrown"]


def test_a_leader_that_found_no_checkpoint_begins_to_count_again_and_history_stays():
    before = status_with(report("a", adaptations=(grown(1), grown(2))))
    again = status_with(report("b", adaptations=(grown(3),)), before)
    assert (ids(again), again.adaptation_count) == (["d1", "d2", "d3"], 1)
    none = status_with(report("b", TrainerPhase.TRAINING), before)
    assert (ids(none), none.adaptation_count) == (["d1", "d2"], 0)


def test_an_adaptation_that_is_reported_again_is_brought_up_to_date_and_the_last_twenty_kept():
    before = status_with(report("a", adaptations=tuple(grown(number) for number in range(20))))
    undone = grown(19, AdaptationResult.FAILED, message="out of memory")
    after = status_with(report("a", adaptations=(*map(grown, range(19)), undone, grown(20))), before)
    assert ids(after) == [f"d{number}" for number in range(1, 21)]
    assert after.adaptations[-2].result is AdaptationResult.FAILED
    assert after.adaptation_count == 20


# ---- measurements outlive leaders


def speed(workers: int, seconds: float = 1.0, parameters: int = 10) -> Speed:
    return Speed(
        nodes=1, workers=workers, batch_size=8, parameters=parameters, steps=20, step_seconds=seconds, sync_seconds=0.0
    )


def measured(*speeds: Speed, **others: Any) -> Report:
    return report("a", measurements=Measurements(speeds=speeds, **others))


def test_what_was_measured_is_kept_while_the_next_leader_measures_again():
    noise, curve = GradientNoise(squared_norm=1, variance=2, samples=3), (LossPoint(epoch=0, step=0, loss=2.0),)
    before = status_with(measured(speed(1), speed(2), gradient=noise, losses=curve))
    starting = status_with(report("b", TrainerPhase.STARTING), before)
    assert starting.measurements == before.measurements
    after = status_with(measured(speed(1, 5.0)), starting)
    assert [(each.workers, each.step_seconds) for each in after.measurements.speeds] == [(2, 1.0), (1, 5.0)]
    assert (after.measurements.gradient, after.measurements.losses) == (noise, curve)


def test_the_sixteen_configurations_that_were_used_last_are_kept():
    before = status_with(measured(*(speed(workers) for workers in range(1, 17))))
    after = status_with(measured(speed(99)), before)
    assert [each.workers for each in after.measurements.speeds] == [*range(2, 17), 99]


@pytest.mark.parametrize(("seconds", "moves"), [(1.04, False), (1.06, True), (0.94, True)])
def test_figures_are_written_again_only_when_they_have_moved(seconds, moves):
    before = status_with(measured(speed(1)))
    after = status_with(measured(speed(1, seconds)), before)
    assert (after.measurements != before.measurements) is moves


def test_a_change_of_figures_alone_can_wait():
    """They are written as progress is, and never for their own sake."""
    before = status_with(measured(speed(1)))
    assert solid(status_with(measured(speed(1, 9.0)), before)) == solid(before)


# ---- whatever is reported

TEXTS = st.text(max_size=3) | st.sampled_from(("x" * 10_000, "\ud83d", "\x00", "é" * 5000))
NUMBERS = st.integers(0, 9) | st.sampled_from((INT64, 10**40))
FIGURES = st.floats(0, 9) | st.sampled_from((1e308, 5e-324))
MOMENTS = st.sampled_from((T0, datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)))


COUNTS = st.integers(1, 9) | st.just(2**53)
DURATIONS = st.floats(0, 9, exclude_min=True) | st.sampled_from((YEAR_SECONDS, 5e-324))
SPEEDS = st.builds(
    lambda **figures: Speed(**figures),  # of the class itself the aliases would be drawn too
    nodes=COUNTS,
    workers=COUNTS,
    batch_size=COUNTS,
    parameters=COUNTS,
    steps=COUNTS,
    step_seconds=DURATIONS,
    sync_seconds=DURATIONS,
)
POINTS = st.builds(lambda **figures: LossPoint(**figures), epoch=COUNTS, step=COUNTS, loss=FIGURES)
MEASUREMENTS = st.builds(
    lambda **lists: Measurements(**lists),
    speeds=st.lists(SPEEDS, max_size=16).map(tuple),
    gradient=st.none()
    | st.builds(lambda **figures: GradientNoise(**figures), squared_norm=FIGURES, variance=FIGURES, samples=COUNTS),
    losses=st.lists(POINTS, max_size=64).map(tuple),
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    entries = st.builds(
        grown,
        st.integers(0, 40),
        message=TEXTS,
        policy=TEXTS,
        action=TEXTS,
        trigger=TEXTS,
        depth_before=NUMBERS,
        parameters_after=NUMBERS,
        seconds=FIGURES,
        probabilities=st.dictionaries(TEXTS, FIGURES, max_size=3),
        time=MOMENTS,
    )
    return Report(
        job="ns/one",
        incarnation="leader",
        acknowledged_generation=draw(NUMBERS),
        phase=draw(st.sampled_from(TrainerPhase)),
        reason=draw(st.none() | st.sampled_from(Reason)),
        message=draw(TEXTS),
        epoch=draw(NUMBERS),
        step=draw(NUMBERS),
        used_seconds=draw(FIGURES),
        metrics=tuple(Metric(name=name, value=1.0) for name in draw(st.lists(TEXTS, max_size=3))),
        depth=draw(NUMBERS),
        parameters=draw(NUMBERS),
        adaptations=tuple(draw(st.lists(entries, max_size=4))),
        measurements=draw(MEASUREMENTS),
        updated_time=draw(MOMENTS),
        last_checkpoint_time=draw(st.none() | MOMENTS),
    )


def numbers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers_in(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers_in(item)]
    return [value] if isinstance(value, int) else []


@given(reports())
def test_whatever_a_leader_reports_makes_a_status_that_the_api_server_takes(said):
    """An image is its owner's; what it writes must not keep the operator from writing."""
    job, settings = kube_job(), KubeSettings()
    pod = parse_pod(raw_worker(job, uid="leader"), settings)
    state = JobState(admitted_at=EPOCH, counted_until=EPOCH, attempts=(0,), incarnations=("leader",))
    state = look(job, state, observed(job, state, [pod], said), EPOCH + 5, settings)
    status = status_at(job, state, EPOCH + 5, settings, sort_pods(job, state, [pod]), said)
    body = json.loads(json.dumps(status.model_dump(mode="json", by_alias=True, exclude_none=True)))
    jsonschema.Draft4Validator(SCHEMA).validate(body)
    assert all(abs(number) <= INT64 for number in numbers_in(body))
    assert len(json.dumps(body)) < 200_000
    for note in events(None, status):
        assert 0 < len(note.message) <= LONGEST_MESSAGE
        assert note.reason


def test_the_largest_report_is_cut_down():
    chances = {f"Deepen({number})": 0.1 for number in range(5000)}
    entries = tuple(grown(number, message="m" * 9000, probabilities=chances) for number in range(100))
    metrics = tuple(Metric(name=f"m{number}", value=1.0) for number in range(5000))
    status = status_with(report("a", adaptations=entries, metrics=metrics))
    assert len(json.dumps(status.model_dump(mode="json", by_alias=True))) < 120_000
    assert len(status.training.metrics) == MAX_METRICS
    assert status.adaptation_count == 100


@pytest.mark.parametrize("facts", [{"training": False, "last_failure": "x" * 10**6}, {"extra": 1}])
def test_messages_are_cut_down(facts):
    last = grown(1, reason=Reason.AGENT_UNAVAILABLE, message="x" * 10**6)
    status = status_with(report("a", adaptations=(last,)), **facts)
    assert max(len(condition.message) for condition in status.conditions) == MAX_MESSAGE
    outcome = Ended(reason=Reason.CRASH_LOOP, failed=True, message="x" * 10**6)
    over = status_of(replace(FACTS, finished=True), JobState(outcome=outcome), Observed(), None, T0)
    assert max(len(condition.message) for condition in over.conditions) == MAX_MESSAGE


# ---- a specification that cannot be run


def test_an_invalid_job_says_so_once_and_keeps_what_is_known():
    before = status_with(report("a", adaptations=(grown(1),)))
    status = status_of_invalid(7, ("spec.a: is wrong", "spec.b: too"), before, T0 + timedelta(seconds=9))
    admitted = status.conditions[0]
    assert (admitted.type, admitted.reason, admitted.observed_generation) == (
        ConditionType.ADMITTED,
        Reason.INVALID_SPEC,
        7,
    )
    assert admitted.message == "spec.a: is wrong; spec.b: too"
    assert (status.observed_generation, status.adaptations) == (7, before.adaptations)
    again = status_of_invalid(7, ("spec.a: is wrong", "spec.b: too"), status, T0 + timedelta(seconds=99))
    assert again == status
    fresh = status_of_invalid(1, ("x" * 10**6,), None, T0)
    assert len(fresh.conditions[0].message) == MAX_MESSAGE
    assert events(before, status) == (
        EventObject(reason="InvalidSpec", message="spec.a: is wrong; spec.b: too", warning=True),
    )
