"""What is counted and told as Events when a job's status changes: once, whoever writes it, and never downwards."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.metrics import MetricType, family
from espalier_core.types.allocation import Allocation, Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_core.types.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
    TimeBudgetStatus,
)
from espalier_operator.kube.metrics.measurements import Owner, gpu_seconds, measurements
from espalier_operator.kube.objects.events import events
from operator_world.kube_objects import adaptation as grown

START = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = Owner(namespace="team", queue="research", base_gpus=2, gpus_per_worker=2, created_at=START.timestamp())
PLACE = ("team", "research")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def told(before: JobStatus | None, after: JobStatus, owner: Owner = OWNER) -> dict[tuple[str, ...], float]:
    """Return what is counted, by metric and labels."""
    return {
        (measurement.metric, *measurement.labels): measurement.amount
        for measurement in measurements(before, after, owner)
    }


def adaptation(decision: str = "a", **more: object) -> Adaptation:
    known = {"time": START, "action": "Deepen(block0)", "accuracy_before": 0.5, "seconds": 0.2, "probabilities": {}}
    return grown(**{"decision_id": decision, **known, **more})


def test_a_job_is_created_once() -> None:
    assert told(None, JobStatus()) == {("espalier_jobs_created_total", *PLACE): 1}
    assert told(JobStatus(), JobStatus()) == {}


@pytest.mark.parametrize("kind", [ConditionType.COMPLETE, ConditionType.FAILED])
def test_an_end_is_reported_with_its_reason(kind: ConditionType) -> None:
    condition = Condition(
        type=kind, status=ConditionStatus.TRUE, reason=Reason.BUDGET_EXHAUSTED, last_transition_time=at(9)
    )
    over = JobStatus(completion_time=at(9), conditions=(condition,))
    assert told(JobStatus(), over) == {("espalier_jobs_finished_total", *PLACE, kind, "BudgetExhausted"): 1}
    assert told(over, over) == {}


def test_waits_are_those_for_the_first_gpus_and_for_the_first_training() -> None:
    admitted = JobStatus(scheduling=SchedulingStatus(admitted_at=at(5)))
    assert told(JobStatus(), admitted) == {("espalier_queue_seconds", "research"): 5}
    placed = SchedulingStatus(admitted_at=at(5), attempts=(0,))
    training = JobStatus(scheduling=placed, start_time=at(8))
    assert told(JobStatus(scheduling=placed), training) == {("espalier_start_seconds", "research"): 3}
    waits_again = JobStatus(start_time=at(8), scheduling=SchedulingStatus(attempts=(1,)))
    assert told(training, waits_again) == {}
    again = JobStatus(start_time=at(8), scheduling=SchedulingStatus(admitted_at=at(60), attempts=(1,)))
    assert told(waits_again, again) == {}, "an admission after a loss is no wait in the queue for the first GPUs"


def test_lent_gpus_are_counted_as_gpus() -> None:
    lent = JobStatus(scheduling=SchedulingStatus(admitted_at=at(1), attempts=(0,), extra=3, granted_at=at(6)))
    before = JobStatus(scheduling=SchedulingStatus(admitted_at=at(1), attempts=(0,), extra=1))
    assert told(before, lent) == {("espalier_gpus_lent_total", *PLACE): 4}


def test_who_gives_back_what_is_about_to_go_has_lost_nothing() -> None:
    """A notice because of a node that departs has the reason of a GPU that is lost."""
    notice = StandingReclaim(extra=0, deadline=at(40), reason=Reason.GPU_LOST)
    allocation = Allocation(generation=4, reason=Reason.GPU_LOST)
    before = JobStatus(allocation=allocation, scheduling=SchedulingStatus(admitted_at=at(1), extra=1, reclaim=notice))
    given = JobStatus(allocation=allocation, scheduling=SchedulingStatus(admitted_at=at(1), changed_at=at(14)))
    assert told(before, given) == {("espalier_reclaims_total", *PLACE, "GPULost", "acknowledged"): 1}
    assert [event.reason for event in events(before, given)] == ["ReclaimAcknowledged"]


@pytest.mark.parametrize(
    ("reason", "preemptions", "outcome"),
    [
        (Reason.RECLAIM_ACKNOWLEDGED, 0, "acknowledged"),
        (Reason.RECLAIM_FORCED, 1, "forced"),
        (Reason.GPU_LOST, 1, "lost"),
    ],
)
def test_a_reclaim_is_timed_from_its_notice(reason: Reason, preemptions: int, outcome: str) -> None:
    notice = StandingReclaim(extra=0, deadline=at(40), reason=Reason.NEEDED_BY_OTHER_JOB)
    pending = Condition(
        type=ConditionType.RECLAIM_PENDING,
        status=ConditionStatus.TRUE,
        reason=Reason.NEEDED_BY_OTHER_JOB,
        last_transition_time=at(10),
    )
    before = JobStatus(
        conditions=(pending,), scheduling=SchedulingStatus(admitted_at=at(1), attempts=(0,), extra=1, reclaim=notice)
    )
    after = JobStatus(
        allocation=Allocation(generation=4, reason=reason),
        preemptions=preemptions,
        scheduling=SchedulingStatus(admitted_at=at(1), attempts=(0,), changed_at=at(14)),
    )
    found = told(before, after)
    assert found.pop(("espalier_preemptions_total", *PLACE), 0) == preemptions
    assert found == {
        ("espalier_reclaims_total", *PLACE, "NeededByOtherJob", outcome): 1,
        ("espalier_reclaim_seconds", outcome): 4,
    }


def test_an_adaptation_is_reported_when_it_is_made_and_its_gain_when_it_is_known() -> None:
    made = JobStatus(adaptations=(adaptation(),))
    assert told(JobStatus(), made) == {
        ("espalier_adaptations_total", *PLACE, "Deepen", "agent", "Grown"): 1,
        ("espalier_adaptation_seconds", "Grown"): 0.2,
    }
    known = JobStatus(adaptations=(adaptation(accuracy_after=0.75),))
    assert told(made, known) == {("espalier_adaptation_accuracy_change_ratio",): 0.25}
    assert told(known, known) == {}


@pytest.mark.parametrize("reason", [Reason.AGENT_UNAVAILABLE, Reason.ILLEGAL_ADVICE, Reason.ACTIONS_UNKNOWN])
def test_a_fallback_is_reported_with_what_kept_the_agent_from_deciding(reason: Reason) -> None:
    """Where there is no agent nothing kept it from deciding, and the rule after a reclaim asks none."""
    status, problem = JobStatus(adaptations=(fallback(reason),)), ("espalier_advice_problems_total", *PLACE, reason)
    assert told(JobStatus(), status)[problem] == 1
    without = told(JobStatus(), status, replace(OWNER, has_agent=False))
    assert problem not in without
    assert without["espalier_adaptations_total", *PLACE, "Nothing", "fallback", "Declined"] == 1
    ruled = adaptation(source=AdaptationSource.RECLAIM, reason=Reason.DISTILLED)
    assert not [name for name, *_ in told(JobStatus(), JobStatus(adaptations=(ruled,))) if "problems" in name]


def fallback(reason: Reason) -> Adaptation:
    return adaptation(
        source=AdaptationSource.FALLBACK, reason=reason, action="Nothing", result=AdaptationResult.DECLINED
    )


def test_actions_that_nobody_knows_are_one_series() -> None:
    many = tuple(adaptation(str(number), action=f"Strange{number}(x)") for number in range(20))
    found = Counter(measurement.labels for measurement in measurements(JobStatus(), JobStatus(adaptations=many), OWNER))
    assert found[(*PLACE, "other", "agent", "Grown")] == 20


budgets = st.builds(
    lambda used, gpus: TimeBudgetStatus(used_seconds=used, gpu_seconds_used=used * gpus),
    st.floats(0, 1e6),
    st.floats(0, 8),
)


@given(budgets)
def test_gpu_seconds_are_those_of_base_and_extra_together(budget: TimeBudgetStatus) -> None:
    parts = gpu_seconds(JobStatus(time_budget=budget), OWNER.base_gpus)
    assert all(value >= 0 for value in parts.values())
    assert sum(parts.values()) == pytest.approx(budget.gpu_seconds_used)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_counted_step_by_step_it_comes_to_the_same_as_at_once(steps: list[tuple[float, int, int]]) -> None:
    used = gpus = 0.0
    restarts = preemptions = 0
    statuses = [JobStatus()]
    for seconds, more_restarts, extra in steps:
        used, gpus = used + seconds, gpus + seconds * (OWNER.base_gpus + extra)
        restarts, preemptions = restarts + more_restarts, preemptions + extra
        budget = TimeBudgetStatus(used_seconds=used, gpu_seconds_used=gpus)
        statuses.append(JobStatus(time_budget=budget, restarts=restarts, preemptions=preemptions))
    counted: Counter[tuple[str, ...]] = Counter()
    for before, after in itertools.pairwise(statuses):
        for measurement in measurements(before, after, OWNER):
            assert measurement.amount > 0
            counted[measurement.metric, *measurement.labels] += measurement.amount
    at_once = told(statuses[0], statuses[-1])
    # What rounding leaves of a GPU-second may be counted by one and not by the other.
    assert dict.fromkeys(counted, 0.0) | at_once == pytest.approx(dict.fromkeys(at_once, 0.0) | counted, abs=1e-6)


@given(st.data())
def test_every_measurement_fits_its_metric(data: st.DataObject) -> None:
    statuses = [
        JobStatus(),
        JobStatus(adaptations=(adaptation(),), restarts=1, preemptions=1),
        JobStatus(scheduling=SchedulingStatus(admitted_at=at(3), extra=1, granted_at=at(4)), start_time=at(5)),
    ]
    before, after = data.draw(st.sampled_from([None, *statuses])), data.draw(st.sampled_from(statuses))
    for measurement in measurements(before, after, OWNER):
        about = family(measurement.metric)
        assert len(measurement.labels) == len(about.labels)
        assert about.type in (MetricType.COUNTER, MetricType.HISTOGRAM)


# ---- Events


def condition(kind: ConditionType, status: ConditionStatus, reason: Reason) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message="why", last_transition_time=START)


def running(*, reclaim: bool = False, preemptions: int = 0, restarts: int = 0) -> JobStatus:
    asked = StandingReclaim(extra=0, deadline=START + timedelta(seconds=30), reason=Reason.NEEDED_BY_OTHER_JOB)
    return JobStatus(
        scheduling=SchedulingStatus(admitted_at=START, reclaim=asked if reclaim else None),
        preemptions=preemptions,
        restarts=restarts,
    )


def noted(before: JobStatus | None, after: JobStatus) -> list[str]:
    return [note.reason for note in events(before, after)]


def test_an_admission_is_reported_once_with_what_was_granted() -> None:
    """The condition and the allocation have the same reason; the allocation says more."""
    granted = Allocation(generation=1, replicas=2, gpus=4, direction=Direction.UP, reason=Reason.GPUS_GRANTED)
    after = running().model_copy(
        update={
            "allocation": granted,
            "conditions": (condition(ConditionType.ADMITTED, ConditionStatus.TRUE, Reason.GPUS_GRANTED),),
        }
    )
    (note,) = events(None, after)
    assert (note.reason, note.message) == ("GPUsGranted", "its base GPUs were granted: 2 workers, 4 GPUs")


def test_the_end_of_a_reclaim_says_whether_force_was_needed() -> None:
    """Force is counted as a preemption; a leader that was lost meanwhile is another preemption, with a restart."""
    asked = running(reclaim=True)
    assert noted(asked, running()) == ["ReclaimAcknowledged"]
    assert noted(asked, running(preemptions=1)) == ["ReclaimForced"]
    assert noted(asked, running(preemptions=1, restarts=1)) == ["ReclaimAcknowledged", "Preempted"]
    assert noted(asked, running(reclaim=True)) == []


def test_nothing_is_reported_twice() -> None:
    """The same status again is no news."""
    waits = JobStatus(conditions=(condition(ConditionType.ADMITTED, ConditionStatus.FALSE, Reason.NO_FREE_GPU),))
    assert noted(None, waits) == ["NoFreeGPU"]
    assert noted(waits, waits) == []
