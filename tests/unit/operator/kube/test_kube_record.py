"""What is remembered of a job: kept whole by its status, changed by decisions, and by nothing twice."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.status import JobStatus, SchedulingStatus
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import Grant, JobState, Timing
from espalier_operator.job.transitions import after
from espalier_operator.job.view import state_of, utc
from espalier_operator.model import Ended, JobFacts, JobTerms, Reclaim, Stopping
from espalier_operator.model.actions import Admit, Fail, Finish, GrantExtra, NoticeReclaim, ReleaseExtra, Requeue
from espalier_operator.model.jobs import JobRecord
from operator_world.kube_objects import EPOCH
from operator_world.kube_strategies import actions, states

TIMING = Timing(promise=20)
TERMS = JobTerms(min_replicas=2, max_replicas=5, gpus_per_worker=2, time_budget_seconds=100)
NOW = EPOCH
J = "ns/one"


def status_with(state: JobState, previous: JobStatus | None = None) -> JobStatus:
    """The status that the operator writes of `state`."""
    facts = JobFacts(
        key=J,
        terms=TERMS,
        submitted_at=0.0,
        admitted_at=state.admitted_at,
        used_seconds=state.used_seconds,
        gpu_seconds_used=state.gpu_seconds_used,
    )
    return status_of(facts, state, Observed(), previous, datetime.fromtimestamp(NOW, UTC))


# ---- state and status


@given(states())
def test_a_status_keeps_all_of_a_state_but_a_verdict_not_drawn_yet(state):
    status = status_with(state)
    text = json.dumps(status.model_dump(mode="json", by_alias=True))
    kept = state_of(JobStatus.model_validate_json(text))
    assert kept == replace(state, ended=None)
    assert state_of(status) == kept


@given(states(), states())
def test_the_next_status_keeps_nothing_of_the_state_before(before, after_):
    """But an outcome, which is final."""
    previous = status_with(replace(before, outcome=None))
    assert state_of(status_with(after_, previous)) == replace(after_, ended=None)


@given(st.floats(0, 4 * EPOCH))
def test_a_time_kept_is_exact_to_the_microsecond_and_kept_again_is_the_same(seconds):
    kept = utc(seconds).timestamp()
    assert abs(kept - seconds) <= 1e-6
    assert utc(kept).timestamp() == kept


def test_every_field_of_the_scheduling_status_is_one_of_the_state_and_the_facts_share_what_both_have():
    own = {field.name for field in fields(JobState)}
    names = {"pod_uids": "incarnations", "avoided_nodes": "blames"}
    assert {names.get(name, name) for name in SchedulingStatus.model_fields} <= own
    shared = own & {field.name for field in fields(JobFacts)}
    assert shared == {field.name for field in fields(JobRecord)} | {"submitted_at"}


def test_a_job_without_status_is_new():
    assert state_of(None) == JobState() == state_of(JobStatus())


def test_room_for_workers_is_added_never_taken():
    state = JobState().with_workers(2)
    assert (state.attempts, state.incarnations) == ((0, 0), ("", ""))
    assert state.with_workers(1) is state
    state = state.with_worker(1, attempt=3, incarnation="u").with_workers(3)
    assert (state.attempts, state.incarnations) == ((0, 3, 0), ("", "u", ""))


def test_a_status_with_fewer_uids_than_attempts_is_taken_up():
    status = JobStatus.model_validate({"scheduling": {"attempts": [1, 2], "podUids": ["u"]}})
    assert state_of(status).incarnations == ("u", "")


# ---- decisions, by example


def does(state: JobState, action: object, now: float = NOW) -> JobState:
    return after(state, action, TERMS, now, TIMING)


ADMITTED = does(JobState(), Admit(job=J, gpu_type="a"))
PROMISED = does(ADMITTED, GrantExtra(job=J, extra=2), NOW + 1)
LENT = PROMISED.granting(4, Direction.UP, Reason.EXTRA_GPUS_GRANTED, TERMS)
"""The leader knows of them: they run."""
ASKED = does(LENT, NoticeReclaim(job=J, extra=1, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB))
RUNNING = replace(LENT, incarnations=("l", "w"), trained=True, used_seconds=40.0)


def granted(generation: int, replicas: int, direction: Direction, reason: Reason, deadline: float | None = None):
    return Grant(
        generation=generation,
        replicas=replicas,
        gpus=2 * replicas,
        direction=direction,
        reason=reason,
        deadline=deadline,
    )


def test_admission():
    expected = JobState(
        grant=granted(1, 2, Direction.UP, Reason.GPUS_GRANTED),
        admitted_at=NOW,
        gpu_type="a",
        counted_until=NOW,
        attempts=(0, 0),
        incarnations=("", ""),
    )
    assert does(JobState(), Admit(job=J, gpu_type="a")) == expected


def test_lending_promises_workers_of_which_the_leader_does_not_know_yet():
    expected = replace(
        ADMITTED, extra=2, extra_generation=2, granted_at=NOW + 1, changed_at=NOW + 1, promised_until=NOW + 21
    )
    assert does(ADMITTED, GrantExtra(job=J, extra=2), NOW + 1) == expected


@pytest.mark.parametrize("extra", [0, 1])
def test_workers_of_which_the_leader_does_not_know_are_taken_back_without_notice(extra):
    """And a later loan makes workers of other names, while the first may still be ending."""
    less = does(
        PROMISED, NoticeReclaim(job=J, extra=extra, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB), NOW + 2
    )
    promised_until = PROMISED.promised_until if extra else None
    assert less == replace(PROMISED, extra=extra, changed_at=NOW + 2, promised_until=promised_until)
    assert does(less, GrantExtra(job=J, extra=2), NOW + 3).extra_generation == 3


@pytest.mark.parametrize("known", [0, 1, 2])
def test_the_loss_of_workers_of_which_the_leader_does_not_know_is_no_news(known):
    told = PROMISED.granting(2 + known, Direction.UP, Reason.EXTRA_GPUS_GRANTED, TERMS)
    released = does(told, ReleaseExtra(job=J, extra=1, forced=True, reason=Reason.UNSCHEDULABLE), NOW + 31)
    assert released.grant == (told.grant if known < 2 else granted(3, 3, Direction.DOWN, Reason.UNSCHEDULABLE))


def test_a_notice_lowers_the_allocation_before_anything_is_taken():
    why, until = Reason.NEEDED_BY_OTHER_JOB, NOW + 30
    reclaim = Reclaim(extra=1, deadline=until, reason=why)
    noticed = does(LENT, NoticeReclaim(job=J, extra=1, deadline=until, reason=why))
    assert noticed == replace(LENT, grant=granted(3, 3, Direction.DOWN, why, until), reclaim=reclaim)


@pytest.mark.parametrize(
    ("forced", "reason", "preemptions"), [(False, Reason.RECLAIM_ACKNOWLEDGED, 0), (True, Reason.RECLAIM_FORCED, 1)]
)
def test_release_after_a_notice_says_nothing_new(forced, reason, preemptions):
    released = does(ASKED, ReleaseExtra(job=J, extra=1, forced=forced, reason=reason), NOW + 31)
    assert released == replace(ASKED, extra=1, reclaim=None, changed_at=NOW + 31, preemptions=preemptions)


@pytest.mark.parametrize(
    ("reason", "preemptions", "held"),
    [
        (Reason.GPU_LOST, 1, {"extra_losses": 1, "lend_after": NOW + 31 + TIMING.hold}),
        (Reason.UNSCHEDULABLE, 0, {"unplaced": 1, "hold_until": NOW + 31 + TIMING.hold}),
    ],
)
def test_release_of_what_is_gone_is_a_new_allocation(reason, preemptions, held):
    released = does(LENT, ReleaseExtra(job=J, extra=0, forced=True, reason=reason), NOW + 31)
    assert released == replace(
        LENT,
        grant=granted(3, 2, Direction.DOWN, reason),
        extra=0,
        changed_at=NOW + 31,
        promised_until=None,
        preemptions=preemptions,
        **held,
    )


def test_a_job_that_cannot_be_placed_is_held_back_longer_each_time():
    """At most an hour; what was said last is kept for people."""
    requeue = Requeue(job=J, reason=Reason.UNSCHEDULABLE, message="4 Insufficient cpu")
    state, waits = JobState(), []
    for _ in range(9):
        state = does(does(state, Admit(job=J, gpu_type="a")), requeue)
        waits.append((state.hold_until or 0.0) - NOW)
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    assert (state.unplaced, state.last_failure, state.admitted_at) == (9, "4 Insufficient cpu", None)


def test_a_job_whose_workers_kube_scheduler_has_put_on_a_node_that_goes_is_held_back():
    """It may choose the same one again; where the planner chooses, or the job has trained, it need not wait."""
    requeue = Requeue(job=J, reason=Reason.NODE_DEPARTING)
    tried = replace(ADMITTED, unplaced=1)
    assert does(tried, requeue).hold_until == NOW + 120.0
    assert does(ADMITTED, requeue).hold_until is None
    assert does(replace(tried, trained=True), requeue).hold_until is None


def test_a_job_whose_extra_workers_do_not_last_is_lent_some_less_and_less_often():
    """At most once an hour, until some that it was lent are given back in order, or have lasted for an hour."""
    state, waits = ADMITTED, []
    lost = ReleaseExtra(job=J, extra=0, forced=True, reason=Reason.GPU_LOST)
    for _ in range(9):
        state = does(does(state, GrantExtra(job=J, extra=2)), lost, NOW + 5)
        waits.append((state.lend_after or 0.0) - NOW - 5)
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    again = does(state, GrantExtra(job=J, extra=2))
    given = does(again, ReleaseExtra(job=J, extra=0, forced=False, reason=Reason.RECLAIM_ACKNOWLEDGED))
    assert given.extra_losses == 0
    assert does(again, lost, NOW + 3601).extra_losses == 1


def test_extra_workers_that_never_ran_were_not_taken_from_a_job():
    lent = does(ADMITTED, GrantExtra(job=J, extra=2))
    lost = does(lent, ReleaseExtra(job=J, extra=0, forced=True, reason=Reason.GPU_LOST))
    assert (lost.preemptions, lost.extra_losses) == (0, 1)


@pytest.mark.parametrize(
    "reason",
    [Reason.UNSCHEDULABLE, Reason.POD_REJECTED, Reason.IMAGE_PULL_FAILED, Reason.PRE_RUNNING_DEADLINE_EXCEEDED],
)
def test_a_job_that_could_not_use_what_it_was_granted_is_held_back(reason):
    assert does(RUNNING, Requeue(job=J, reason=reason)).hold_until == NOW + TIMING.hold


def test_what_is_left_of_a_promise_stands_after_a_release():
    released = does(LENT, ReleaseExtra(job=J, extra=1, forced=True, reason=Reason.GPU_LOST))
    assert released.promised_until == LENT.promised_until


def test_back_to_the_queue_keeps_the_budget_and_counts_attempts_on():
    requeued = does(RUNNING, Requeue(job=J, reason=Reason.SUSPENDED))
    assert requeued == replace(
        RUNNING,
        grant=granted(3, 0, Direction.DOWN, Reason.SUSPENDED),
        admitted_at=None,
        gpu_type=None,
        extra=0,
        promised_until=None,
        trained=False,
        attempts=(1, 1),
        incarnations=("", ""),
    )
    again = does(requeued, Admit(job=J, gpu_type="b"), NOW + 99)
    assert (again.attempts, again.used_seconds, again.grant.generation) == ((1, 1), 40.0, 4)
    assert (again.gpu_type, again.counted_until) == ("b", NOW + 99)


@pytest.mark.parametrize(
    ("state", "reason", "preemptions"),
    [
        (RUNNING, Reason.GPU_LOST, 1),
        (RUNNING, Reason.SUSPENDED, 0),
        (replace(RUNNING, incarnations=("", "w"), preemptions=1), Reason.GPU_LOST, 1),
        (ADMITTED, Reason.GPU_LOST, 0),
    ],
)
def test_one_loss_is_counted_once(state, reason, preemptions):
    """The loss of a leader is counted when it is seen; that the job waits again for it is the same loss."""
    assert does(state, Requeue(job=J, reason=reason)).preemptions == preemptions


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (
            Finish(job=J, reason=Reason.COMPLETED, message="well"),
            Ended(reason=Reason.COMPLETED, failed=False, message="well"),
        ),
        (
            Fail(job=J, reason=Reason.CRASH_LOOP),
            Ended(reason=Reason.CRASH_LOOP, failed=True, message=SENTENCES[Reason.CRASH_LOOP]),
        ),
    ],
)
def test_an_end_is_final(action, outcome):
    over = does(replace(ASKED, stopping=Stopping(reason=Reason.SUSPENDED, deadline=NOW)), action)
    assert (over.outcome, over.extra, over.reclaim, over.stopping) == (outcome, 0, None, None)
    assert over.grant.replicas == 0
    for later in (
        Fail(job=J, reason=Reason.TRAINER_FAILED),
        Requeue(job=J, reason=Reason.GPU_LOST),
        Admit(job=J, gpu_type=""),
    ):
        assert does(over, later) == over


# ---- decisions, in general


@given(states(), actions(), st.floats(0, 100))
def test_a_decision_twice_is_the_decision_once(state, action, later):
    """A failed write has it planned again, and it may be a moment later."""
    once = does(state, action)
    assert does(once, action, NOW + later) == once


@given(states(), actions())
def test_generations_rise_by_one_with_the_allocation_and_never_fall(state, action):
    changed = does(state, action)
    rise = changed.grant.generation - state.grant.generation
    assert rise == (changed.grant != state.grant)
    assert rise in (0, 1)
    if changed.grant.replicas != state.grant.replicas:
        assert rise == 1


@given(states(), actions())
def test_decisions_leave_budgets_and_what_was_counted_alone(state, action):
    changed = does(state, action)
    assert (changed.used_seconds, changed.gpu_seconds_used) == (state.used_seconds, state.gpu_seconds_used)
    assert (changed.failures, changed.restarts) == (state.failures, state.restarts)
    assert state.preemptions <= changed.preemptions <= state.preemptions + 1
    assert len(changed.attempts) == len(changed.incarnations)
    assert all(new >= old for new, old in zip(changed.attempts, state.attempts, strict=False))
