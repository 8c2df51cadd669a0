"""Status and conditions from facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Metric, Report, TrainerPhase
from espalier_core.types.status import ConditionType, JobPhase
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import JobState
from espalier_operator.model import Ended, JobFacts, JobTerms, Reclaim

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = JobFacts(
    key="ns/one", terms=JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=100), submitted_at=0
)
ADMITTED = replace(WAITING, admitted_at=1.0, gpu_type="a")
TRAINING = replace(ADMITTED, leader_running=True, has_reported=True, training=True, trained=True, used_seconds=30)


def status_at(facts, state=None, previous=None, at=T0, **observed):
    return status_of(facts, state or JobState(), Observed(**observed), previous, at)


def told(status):
    return {str(c.type): (str(c.status), str(c.reason)) for c in status.conditions}


def test_a_job_that_evaluates_or_is_about_to_end_does_not_start_again():
    """Its leader trains no more; it stood at Starting until its pod had ended."""
    ends = replace(TRAINING, training=False, evaluating=True)
    before = status_at(TRAINING)
    status = status_at(ends, previous=before, at=T0 + timedelta(seconds=5))
    assert status.phase is JobPhase.EVALUATING
    assert told(status)["Running"] == told(before)["Running"]


def test_a_waiting_job_says_why():
    status = status_at(WAITING, refusal=Reason.TOO_LARGE, generation=3)
    assert told(status) == {"Admitted": ("False", "TooLarge"), "Running": ("False", "TooLarge")}
    assert status.conditions[0].message.startswith("it requests more GPUs than there are")
    assert (status.phase, status.observed_generation, status.start_time) == (JobPhase.PENDING, 3, None)


def test_a_program_has_no_condition_on_what_it_is_never_lent():
    terms = replace(ADMITTED.terms, program=True)
    before = status_at(ADMITTED, refusal=Reason.ADAPTATION_OFF)
    for previous in (None, before):
        assert "ExtraGPUsGranted" not in told(status_at(replace(ADMITTED, terms=terms), previous=previous))


def test_a_job_whose_workers_were_refused_says_so_before_the_next_plan():
    refused = replace(WAITING, hold_until=60.0, trouble=Reason.POD_REJECTED, last_failure="exceeded quota: q")
    status = status_at(refused)
    assert told(status) == {"Admitted": ("False", "PodRejected"), "Running": ("False", "PodRejected")}
    assert {condition.message for condition in status.conditions} == {"exceeded quota: q"}


def test_the_last_failure_is_told_until_the_job_trains_again():
    for training, message in ((False, "exit code 1"), (True, SENTENCES[Reason.RUNNING])):
        facts = replace(TRAINING, training=training, last_failure="exit code 1")
        status = status_at(facts)
        (running,) = (each for each in status.conditions if each.type == "Running")
        assert running.message == message


def test_the_life_of_a_job_in_conditions():
    status = status_at(ADMITTED)
    assert told(status) == {
        "Admitted": ("True", "GPUsGranted"),
        "Running": ("False", "Starting"),
        "ExtraGPUsGranted": ("False", "NoFreeGPU"),
    }
    later = T0 + timedelta(seconds=5)
    lent = replace(TRAINING, extra=1)
    report = Report(
        job="ns/one",
        incarnation="x",
        phase=TrainerPhase.TRAINING,
        epoch=2,
        depth=3,
        metrics=(Metric(name="accuracy", value=0.5),),
        updated_time=later,
    )
    state = JobState(admitted_at=0.0, extra=1, used_seconds=30)
    status = status_at(lent, state, status, later, report=report, refusal=Reason.AT_MAX_REPLICAS)
    assert told(status) == {
        "Admitted": ("True", "GPUsGranted"),
        "Running": ("True", "Running"),
        "ExtraGPUsGranted": ("True", "ExtraGPUsGranted"),
    }
    times = {c.type: c.last_transition_time for c in status.conditions}
    assert times[ConditionType.ADMITTED] == T0, "what has not changed keeps its time"
    assert times[ConditionType.RUNNING] == later
    assert (status.phase, status.replicas, status.training.epoch) == (JobPhase.RUNNING, 2, 2)
    assert status.time_budget.remaining_seconds == 70
    assert status.start_time == later

    reclaim = Reclaim(extra=0, deadline=9.0, reason=Reason.NEEDED_BY_OTHER_JOB)
    status = status_at(replace(lent, reclaim=reclaim), previous=status, at=later)
    assert told(status)["ReclaimPending"] == ("True", "NeededByOtherJob")
    assert status.training.epoch == 2, "without a new report the last one stands"

    end = T0 + timedelta(seconds=9)
    outcome = Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)
    over = replace(TRAINING, admitted_at=None, training=False, finished=True)
    status = status_at(over, JobState(outcome=outcome), status, end)
    assert told(status)["Complete"] == ("True", "BudgetExhausted")
    assert {c.status for c in status.conditions if c.type is not ConditionType.COMPLETE} == {"False"}
    assert (status.phase, status.completion_time, status.start_time) == (JobPhase.COMPLETE, end, later)
    again = status_at(over, JobState(outcome=outcome), status, end + timedelta(seconds=60))
    assert again == status, "nothing new, nothing written"


def test_lent_gpus_that_the_model_cannot_grow_into_are_explained():
    report = Report(job="ns/one", incarnation="x", cannot_grow="it has no growth point", updated_time=T0)
    status = status_at(replace(TRAINING, extra=1), report=report)
    granted = next(each for each in status.conditions if each.type is ConditionType.EXTRA_GPUS_GRANTED)
    assert granted.message == "1 extra worker; it has no growth point"
    status = status_at(TRAINING, report=report, refusal=Reason.ADAPTATION_OFF)
    refused = next(each for each in status.conditions if each.type is ConditionType.EXTRA_GPUS_GRANTED)
    assert refused.message == f"{SENTENCES[Reason.ADAPTATION_OFF]}; it has no growth point"


def test_a_leader_that_fails_before_it_has_a_model_does_not_take_back_what_others_have_trained():
    report = Report(job="ns/one", incarnation="x", phase=TrainerPhase.TRAINING, epoch=2, step=40, updated_time=T0)
    before = status_at(TRAINING, report=report)
    before = before.model_copy(update={"adaptation_count": 2})
    failed = Report(job="ns/one", incarnation="y", phase=TrainerPhase.FAILED, updated_time=T0)
    status = status_at(ADMITTED, previous=before, report=failed)
    assert (status.training.epoch, status.training.step, status.adaptation_count) == (2, 40, 2)


def test_numbers_that_no_api_server_takes_are_cut():
    """A trainer of any image reports them; one of them would keep the whole status from being written."""
    sizes = ("depth_before", "depth_after", "parameters_before", "parameters_after", "width_before", "width_after")
    numbers = ("generation", "evaluations", *sizes)
    large = Adaptation.model_validate(
        {"decision_id": "d", "time": T0, "used_seconds": 1.0, "trigger": "t", "action": "Nothing", "seconds": 0.1}
        | {"source": AdaptationSource.AGENT, "result": AdaptationResult.GROWN}
        | dict.fromkeys(numbers, 10**30)
    )
    report = Report(job="ns/one", incarnation="x", adaptations=(large,), updated_time=T0)
    [told] = status_at(TRAINING, report=report).adaptations
    assert {getattr(told, name) for name in numbers} == {2**53}
    unset = large.model_copy(update={"width_before": None, "evaluations": None})
    report = report.model_copy(update={"adaptations": (unset,)})
    [told] = status_at(TRAINING, report=report).adaptations
    assert (told.width_before, told.evaluations) == (None, None)


def test_a_failure_and_a_suspension():
    outcome = Ended(reason=Reason.CRASH_LOOP, failed=True, message="4 failures")
    status = status_at(replace(WAITING, finished=True), JobState(outcome=outcome))
    assert told(status)["Failed"] == ("True", "CrashLoop")
    assert status.phase is JobPhase.FAILED
    resting = replace(WAITING, terms=replace(WAITING.terms, suspend=True))
    status = status_at(resting)
    assert told(status)["Suspended"] == ("True", "Suspended")
    assert status.phase is JobPhase.SUSPENDED
