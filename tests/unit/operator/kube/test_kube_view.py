"""What the planner is told of pods and states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job.state import Grant, JobState, LeaderWatch
from espalier_operator.job.view import Trouble, memory_of, promise_of
from espalier_operator.kube.apply.steps import CreatePod, DeletePod, steps
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import JobPods, foreign_worker, sort_pods, trouble_of, workers_of
from espalier_operator.model import (
    NOWHERE,
    Ended,
    JobFacts,
    Promise,
    Reclaim,
    Stopping,
    Worker,
    WorkerRole,
    WorkerState,
)
from operator_world.kube_looks import facts_of, lost_but_on
from operator_world.kube_objects import (
    EPOCH,
    GPU,
    kube_job,
    raw_stranger,
    raw_worker,
    report,
    terminated,
    unschedulable,
    waiting_for,
)

SETTINGS = KubeSettings(start_up_allowance_seconds=120)
JOB = kube_job("one", {"minReplicas": 2, "maxReplicas": 4})
STATE = JobState(
    submitted_at=EPOCH, admitted_at=EPOCH, gpu_type="a", attempts=(0, 0), incarnations=("b0", "b1"), extra=1
)
PENDING, RUNNING, TERMINATING = WorkerState.PENDING, WorkerState.RUNNING, WorkerState.TERMINATING


def pod(role: WorkerRole, index: int, attempt: int = 0, **changes: Any):
    return parse_pod(raw_worker(JOB, index, attempt, role=role, uid=f"{role[0]}{index}", **changes), SETTINGS)


def pods_of(*pods: Any, state: JobState = STATE) -> JobPods:
    return sort_pods(JOB, state, pods, lost_but_on(("node",), pods))


def worker(
    name: str, role: WorkerRole, index: int, state: WorkerState = RUNNING, node: str | None = "node", gpus: int = 1
):
    return Worker(name=f"ns/{name}", job="ns/one", role=role, index=index, node=node, gpus=gpus, state=state)


BASE, EXTRA = WorkerRole.BASE, WorkerRole.EXTRA
LEADER, SECOND = pod(BASE, 0), pod(BASE, 1)


def test_workers_in_the_order_in_which_they_are_kept():
    unbound = pod(BASE, 1, phase="Pending", node=None, state={})
    extras = pod(EXTRA, 3, 5), pod(EXTRA, 1, 2)
    assert list(workers_of(JOB.key, pods_of(LEADER, unbound, *extras), STATE)) == [
        worker("one-base-0-0", BASE, 0),
        worker("one-base-1-0", BASE, 1, PENDING, None),
        worker("one-extra-1-2", EXTRA, 0),
        worker("one-extra-3-5", EXTRA, 1),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phase": "Pending", "state": {}}, PENDING),
        ({"deleted_at": EPOCH}, TERMINATING),
        ({"node": "gone"}, TERMINATING),
        ({"phase": "Unknown"}, PENDING),
    ],
)
def test_a_worker_holds_its_gpus_until_it_has_ended(changes, expected):
    found = list(workers_of(JOB.key, pods_of(pod(BASE, 0, **changes), SECOND), STATE))
    assert replace(found[0], leaves_at=None) == worker("one-base-0-0", BASE, 0, expected, changes.get("node", "node"))
    assert (found[0].leaves_at is not None) == ("deleted_at" in changes)


def test_those_of_earlier_attempts_are_on_their_way_out():
    state = replace(STATE, attempts=(1, 0))
    found = list(
        workers_of(JOB.key, pods_of(pod(BASE, 0), SECOND, pod(EXTRA, 0, deleted_at=EPOCH), state=state), state)
    )
    assert [replace(each, leaves_at=None) for each in found] == [
        worker("one-base-1-0", BASE, 1),
        worker("one-base-0-0", BASE, 0, TERMINATING),
        worker("one-extra-0-0", EXTRA, 0, TERMINATING),
    ]


def test_who_has_ended_holds_nothing_and_keeps_its_place_until_that_is_judged():
    done = {"phase": "Succeeded", "state": terminated(0)}
    ended = pods_of(pod(BASE, 0, **done), pod(BASE, 1, **done), pod(EXTRA, 0, **done))
    assert list(workers_of(JOB.key, ended, STATE)) == [
        worker("one-base-0-0", BASE, 0, gpus=0),
        worker("one-base-1-0", BASE, 1, gpus=0),
    ]
    completed = replace(STATE, completed_workers=(1,))
    assert list(workers_of(JOB.key, ended, completed)) == [worker("one-base-0-0", BASE, 0, gpus=0)]
    over = replace(STATE, outcome=Ended(reason=Reason.COMPLETED, failed=False))
    assert not list(workers_of(JOB.key, ended, over))


def test_a_completed_worker_whose_side_cars_run_on_is_about_to_go():
    state, pods = replace(STATE, completed_workers=(1,)), pods_of(LEADER, pod(BASE, 1, state=terminated(0)))
    assert list(workers_of(JOB.key, pods, state)) == [
        worker("one-base-0-0", BASE, 0),
        worker("one-base-1-0", BASE, 1, TERMINATING),
    ]
    taken = steps(JOB, state, pods, NOWHERE, memory_of(state, JOB.terms), EPOCH, SETTINGS)
    assert [step.pod.index for step in taken if isinstance(step, DeletePod)] == [1]
    assert not any(isinstance(step, CreatePod) for step in taken)
    needed = facts_of(JOB, state, EPOCH, SETTINGS, pods)
    assert (needed.terms.min_replicas, needed.base_gpus, needed.base_indexes) == (1, 1, [0])


# ---- pods of others


def other(*, owned: bool = False, only_on: str | None = None, gpus: str = "1", **changes: Any) -> Worker | None:
    raw = raw_worker(JOB, **changes) if owned else raw_stranger("other", {"limits": {GPU: gpus}}, **changes)
    if only_on is not None:
        raw["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": only_on}
    return foreign_worker(parse_pod(raw, SETTINGS))


WAITS = {"phase": "Pending", "node": None, "state": {}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("node", RUNNING, None)),
        ({"deleted_at": EPOCH}, ("node", TERMINATING, None)),
        ({**WAITS}, (None, PENDING, None)),
        ({**WAITS, "only_on": "a"}, (None, PENDING, "a")),
        ({**WAITS, "gates": ["g"]}, None),
        ({**WAITS, "deleted_at": EPOCH}, None),
        ({"phase": "Succeeded", "state": terminated(0)}, None),
        ({"gpus": "0"}, None),
        ({"owned": True}, ("node", RUNNING, None)),
        ({**WAITS, "owned": True}, None),
    ],
)
def test_pods_of_others_hold_gpus_or_want_them(changes, expected):
    """And so do workers whose job is gone, but that those want nothing any more."""
    found = other(**changes)
    assert (None if found is None else (found.node, found.state, found.gpu_type)) == expected
    assert found is None or (found.role, found.job, found.gpus) == (WorkerRole.FOREIGN, None, 1)


# ---- facts of a job


def test_the_facts_of_a_job_that_trains():
    reclaim = Reclaim(extra=0, deadline=EPOCH + 9, reason=Reason.NEEDED_BY_OTHER_JOB)
    stopping = Stopping(reason=Reason.SUSPENDED, deadline=EPOCH + 9)
    state = replace(
        STATE,
        grant=Grant(generation=4),
        reclaim=reclaim,
        stopping=stopping,
        granted_at=1.0,
        changed_at=2.0,
        used_seconds=3.0,
        gpu_seconds_used=4.0,
        trained=True,
        failures=1,
        last_failure="boom",
        preemptions=2,
    )
    said = report("b0", TrainerPhase.EVALUATING, acknowledged_generation=3)
    idle = facts_of(JOB, state, EPOCH, SETTINGS, pods_of(LEADER), said.model_copy(update={"grows": False}))
    assert not idle.terms.adapts
    assert facts_of(JOB, state, EPOCH + 5, SETTINGS, pods_of(LEADER, SECOND), said) == JobFacts(
        key="ns/one",
        terms=JOB.terms,
        submitted_at=EPOCH,
        admitted_at=EPOCH,
        gpu_type="a",
        generation=4,
        acknowledged_generation=3,
        extra=1,
        reclaim=reclaim,
        granted_at=1.0,
        changed_at=2.0,
        leader_running=True,
        has_reported=True,
        training=True,
        evaluating=True,
        trained=True,
        used_seconds=3.0,
        gpu_seconds_used=4.0,
        counted_until=EPOCH + 5,
        failures=1,
        last_failure="boom",
        preemptions=2,
        stopping=stopping,
        if_forced=Ended(
            reason=Reason.BUDGET_ENFORCED,
            failed=True,
            message="its trainer did not report its end; the last report, after 0 s of 100 s, is of step 0 "
            "(Evaluating)",
        ),
    )


def test_a_job_that_is_over_is_finished_to_the_planner():
    over = replace(STATE, outcome=Ended(reason=Reason.COMPLETED, failed=False))
    assert facts_of(JOB, over, EPOCH, SETTINGS).finished
    assert not facts_of(JOB, STATE, EPOCH, SETTINGS).finished
    ended = Ended(reason=Reason.COMPLETED, failed=False)
    assert facts_of(JOB, replace(STATE, ended=ended), EPOCH, SETTINGS).ended == ended


def test_a_report_of_an_earlier_leader_acknowledges_but_says_nothing_of_this_one():
    said = report("earlier", TrainerPhase.TRAINING, acknowledged_generation=10**9)
    state = replace(STATE, grant=Grant(generation=4))
    facts = facts_of(JOB, state, EPOCH + 5, SETTINGS, pods_of(LEADER, SECOND), said)
    assert (facts.acknowledged_generation, facts.has_reported, facts.training) == (4, False, False)


def test_a_silent_leader_trains_but_has_not_reported():
    watched = replace(STATE, watch=LeaderWatch(incarnation="b0", since=EPOCH))
    facts = facts_of(JOB, watched, EPOCH + 120, SETTINGS, pods_of(LEADER, SECOND))
    assert (facts.leader_running, facts.has_reported, facts.training) == (True, False, True)
    assert not facts_of(JOB, watched, EPOCH + 119, SETTINGS, pods_of(LEADER, SECOND)).training


@pytest.mark.parametrize(
    "leader",
    [pod(BASE, 0, phase="Pending", state={}), pod(BASE, 0, node="gone"), pod(BASE, 0, state=terminated(0)), None],
)
def test_a_leader_that_does_not_run(leader):
    pods = [SECOND] if leader is None else [leader, SECOND]
    facts = facts_of(JOB, STATE, EPOCH + 500, SETTINGS, pods_of(*pods), report("b0"))
    assert (facts.leader_running, facts.training) == (False, False)


def test_what_keeps_workers_from_starting():
    pulls = pod(BASE, 1, phase="Pending", state=waiting_for("ErrImagePull", "no such image"))
    waits = pod(BASE, 0, phase="Pending", node=None, state={}, conditions=[unschedulable()])
    assert trouble_of(pods_of(LEADER, SECOND)) is None
    assert trouble_of(pods_of(LEADER, pulls)) == Trouble(
        reason=Reason.IMAGE_PULL_FAILED, message="ErrImagePull: no such image"
    )
    facts = facts_of(JOB, STATE, EPOCH, SETTINGS, pods_of(waits, SECOND))
    assert (facts.trouble, facts.last_failure) == (Reason.UNSCHEDULABLE, SENTENCES[Reason.UNSCHEDULABLE])
    facts = facts_of(JOB, STATE, EPOCH, SETTINGS, pods_of(waits, pulls))
    assert facts.trouble is Reason.IMAGE_PULL_FAILED, "that worker holds GPUs"
    rejected = Trouble(reason=Reason.POD_REJECTED, message="exceeded quota")
    facts = facts_of(JOB, STATE, EPOCH, SETTINGS, pods_of(waits, pulls), rejected=rejected)
    assert (facts.trouble, facts.last_failure) == (Reason.POD_REJECTED, "exceeded quota")


def test_a_promise_stands_while_it_is_remembered_and_something_is_lent():
    promised = replace(STATE, promised_until=EPOCH + 20)
    assert promise_of(JOB.key, promised) == Promise(job="ns/one", extra=1, expires_at=EPOCH + 20)
    assert promise_of(JOB.key, STATE) is None
    assert promise_of(JOB.key, replace(promised, extra=0)) is None
