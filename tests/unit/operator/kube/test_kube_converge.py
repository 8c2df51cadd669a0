"""What is done so that the cluster becomes what is remembered: whole lists of steps, by rule."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobStatus
from espalier_operator.job.progress import turning_points
from espalier_operator.job.state import Grant, JobState, Observation
from espalier_operator.job.transitions import after
from espalier_operator.job.view import utc
from espalier_operator.kube.apply.steps import Annotate, CreatePod, DeleteJob, DeletePod, Step, steps
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import expires_at
from espalier_operator.kube.state.workers import extra_runs_by, sort_pods
from espalier_operator.model import Ended, Placement, Reclaim, Stopping, WorkerRole
from espalier_operator.model.actions import Admit, GrantExtra, Requeue
from operator_world.kube_looks import lost_but_on, status_at
from operator_world.kube_objects import EPOCH, kube_job, raw_worker, terminated

SETTINGS = KubeSettings(promise_seconds=20)
JOB = kube_job("one", {"minReplicas": 2, "maxReplicas": 5})
NOW = EPOCH
PROMISED = NOW + 20
BASE, EXTRA = WorkerRole.BASE, WorkerRole.EXTRA


def does(state: JobState, *actions: Any) -> JobState:
    for action in actions:
        state = after(state, action, JOB.terms, NOW, SETTINGS.timing)
    return state


ADMITTED = does(JobState(), Admit(job=JOB.key, gpu_type="a100"))
LENT = does(ADMITTED, GrantExtra(job=JOB.key, extra=2)).granting(4, Direction.UP, "", JOB.terms)
STARTED = replace(LENT, incarnations=("b0", "b1"))
"""Its base workers run; two extra ones were granted with generation 2."""
KEPT = replace(STARTED, promised_until=None)
OVER = replace(
    KEPT, extra=0, outcome=Ended(reason=Reason.COMPLETED, failed=False, message="well"), grant=Grant(generation=3)
)


def pod(
    role: WorkerRole,
    index: int,
    attempt: int = 0,
    *,
    uid: str = "",
    told: int | None = None,
    budget: float = JOB.terms.time_budget_seconds,
    **changes: Any,
) -> Pod:
    raw = raw_worker(JOB, index, attempt, role=role, uid=uid or f"{role[0]}{index}", **changes)
    if told is not None:
        document = {"allocation": {"generation": told}, "timeBudget": {"budgetSeconds": budget}}
        raw["metadata"]["annotations"] = {"espalier.dev/allocation": json.dumps(document)}
    return parse_pod(raw, SETTINGS)


def ended(role: WorkerRole, index: int, attempt: int = 0, at: float = EPOCH + 10, **changes: Any) -> Pod:
    return pod(role, index, attempt, phase="Failed", state=terminated(1, at), **changes)


LEADER, SECOND = pod(BASE, 0, told=2), pod(BASE, 1)
FIRST_EXTRA, SECOND_EXTRA = pod(EXTRA, 0, 2), pod(EXTRA, 1, 2)


ANYWHERE = Placement(base=dict.fromkeys(range(8)), extra=(None,) * 8)
"""kube-scheduler chooses the nodes of all workers."""


def status_with(state: JobState, pods: tuple[Pod, ...] = ()) -> JobStatus:
    return status_at(JOB, state, NOW, SETTINGS, sort_pods(JOB, state, pods))


def due_at(job: KubeJob, state: JobState, status: JobStatus, now: float) -> float | None:
    """When time alone will make more to do."""
    times = [*turning_points(state, Observation(), SETTINGS.timing), expires_at(job, status) or 0.0]
    return min((time for time in times if time > now), default=None)


def done(
    state: JobState, *pods: Pod, now: float = NOW, ready: tuple[str, ...] = ("node",), job: KubeJob = JOB
) -> list[Any]:
    """What is done, in short words."""
    there = sort_pods(job, state, pods, lost_but_on(ready, pods))
    found = steps(job, state, there, ANYWHERE, status_with(state, pods), now, SETTINGS)
    assert steps(job, state, there, ANYWHERE, status_with(state, pods), now, SETTINGS) == found
    return [in_words(step) for step in found]


def in_words(step: Step) -> str:
    match step:
        case CreatePod(manifest=manifest):
            return f"create {manifest['metadata']['name']}"
        case DeletePod(pod=pod):
            return f"delete {pod.name}"
        case Annotate(pod=pod, annotations=annotations):
            document = json.loads(annotations["espalier.dev/allocation"])
            return f"tell {pod.name} {document['allocation']['generation']} {document.get('stop', '')}".strip()
        case DeleteJob(uid=uid):
            return f"delete job {uid}"


# ---- base workers


def test_an_admitted_job_gets_its_base_workers_on_its_type():
    assert done(ADMITTED) == ["create one-base-0-0", "create one-base-1-0"]
    status = status_with(ADMITTED)
    first, second = steps(JOB, ADMITTED, sort_pods(JOB, ADMITTED, ()), ANYWHERE, status, NOW, SETTINGS)
    assert first == CreatePod(manifest=worker_pod(JOB, status, BASE, 0, 0, SETTINGS, "a100"))
    assert second == CreatePod(manifest=worker_pod(JOB, status, BASE, 1, 0, SETTINGS, "a100"))


AGAIN = replace(KEPT, extra=0, attempts=(1, 0), incarnations=("", "b1"))
"""Its leader ended, which was judged."""


@pytest.mark.parametrize(
    ("state", "pods", "expected"),
    [
        # Who is there is not made again, and the loss of one is judged first.
        (ADMITTED, (pod(BASE, 0, told=1), SECOND), []),
        (replace(ADMITTED, incarnations=("b0", "b1")), (), []),
        # A worker that was judged is made again beside what ended; if it is on its way out it is waited for,
        # unless its node is lost.
        (AGAIN, (ended(BASE, 0), SECOND), ["create one-base-0-1"]),
        (AGAIN, (pod(BASE, 0, deleted_at=NOW), SECOND), []),
        (AGAIN, (pod(BASE, 0), SECOND), ["delete one-base-0-0"]),
        (AGAIN, (pod(BASE, 0, node="gone"), SECOND), ["delete one-base-0-0", "create one-base-0-1"]),
        (AGAIN, (ended(BASE, 0, deleted_at=NOW), SECOND), ["create one-base-0-1"]),
        (AGAIN, (SECOND,), ["create one-base-0-1"]),
        # Nobody is started who is about to be ended.
        (replace(LENT, ended=Ended(reason=Reason.COMPLETED, failed=False)), (), []),
        (replace(LENT, stopping=Stopping(reason=Reason.SUSPENDED, deadline=NOW + 30)), (), []),
        # A job that is over ends what runs and keeps what has ended.
        (OVER, (ended(BASE, 0), SECOND), ["delete one-base-1-0"]),
        (OVER, (FIRST_EXTRA, pod(EXTRA, 1, 2, deleted_at=NOW)), ["delete one-extra-0-2"]),
        (OVER, (ended(BASE, 0), ended(BASE, 1)), []),
    ],
)
def test_who_is_made_and_who_is_ended(state, pods, expected):
    assert done(state, *pods) == expected


def test_extra_workers_that_a_node_refused_are_not_made_again_within_their_loan():
    """Three have ended, one more than pods are kept for their logs."""
    lent = replace(KEPT, extra=3, extra_generation=2, promised_until=NOW + 50)
    refused = [ended(EXTRA, index, 2) for index in range(3)]
    assert done(lent, LEADER, SECOND, *refused) == []
    later = done(replace(lent, promised_until=None), LEADER, SECOND, *refused)
    assert later == ["delete one-extra-0-2"]


def test_a_start_that_was_put_off():
    late = replace(KEPT, extra=0, attempts=(1, 0), incarnations=("", "b1"), not_before=NOW + 4)
    assert done(late, SECOND, now=NOW + 3.9) == []
    assert done(late, SECOND, now=NOW + 4) == ["create one-base-0-1"]
    assert due_at(JOB, late, status_with(late), NOW) == NOW + 4
    assert due_at(JOB, late, status_with(late), NOW + 4) is None


def test_a_job_that_waits_again_ends_what_runs_and_starts_with_other_names():
    waiting = does(STARTED, Requeue(job=JOB.key, reason=Reason.SUSPENDED))
    workers = (LEADER, SECOND, FIRST_EXTRA, ended(EXTRA, 1, 2))
    expected = ["delete one-base-0-0", "delete one-base-1-0", "delete one-extra-0-2"]
    assert sorted(done(waiting, *workers)) == expected
    again = does(waiting, Admit(job=JOB.key, gpu_type=""))
    terminating = (pod(BASE, 0, deleted_at=NOW), ended(BASE, 1, deleted_at=NOW))
    assert done(again, *terminating) == ["create one-base-1-1"]


def test_fewer_base_workers_than_there_were():
    """The API server refuses such a change of a running job; an operator must live through it all the same."""
    fewer = kube_job("one", {"minReplicas": 1, "maxReplicas": 5})
    assert done(replace(KEPT, extra=0), LEADER, SECOND, job=fewer) == ["delete one-base-1-0"]


def test_more_base_workers_than_there_were():
    more = kube_job("one", {"minReplicas": 3, "maxReplicas": 5})
    assert done(replace(KEPT, extra=0), LEADER, SECOND, job=more) == []
    assert done(replace(KEPT, extra=0).with_workers(3), LEADER, SECOND, job=more) == ["create one-base-2-0"]


# ---- extra workers


@pytest.mark.parametrize(
    ("state", "pods", "expected"),
    [
        (STARTED, (), ["create one-extra-0-2", "create one-extra-1-2"]),
        (STARTED, (FIRST_EXTRA,), ["create one-extra-1-2"]),
        (STARTED, (SECOND_EXTRA,), ["create one-extra-0-2"]),
        (STARTED, (FIRST_EXTRA, SECOND_EXTRA), []),
        (STARTED, (pod(EXTRA, 0, 1),), ["create one-extra-1-2"]),
        (KEPT, (FIRST_EXTRA,), []),
        (replace(STARTED, promised_until=NOW), (FIRST_EXTRA,), []),
        (replace(STARTED, extra=1), (FIRST_EXTRA, SECOND_EXTRA), ["delete one-extra-1-2"]),
        (replace(KEPT, extra=1), (SECOND_EXTRA, pod(EXTRA, 2, 2)), ["delete one-extra-2-2"]),
        (replace(KEPT, extra=0), (FIRST_EXTRA,), ["delete one-extra-0-2"]),
        # One that ended or is ending is not made again, and one on a lost node is taken away.
        (STARTED, (ended(EXTRA, 0, 2),), ["create one-extra-1-2"]),
        (STARTED, (pod(EXTRA, 0, 2, deleted_at=NOW),), ["create one-extra-1-2"]),
        (STARTED, (ended(EXTRA, 0, 2), SECOND_EXTRA), []),
        (STARTED, (pod(EXTRA, 0, 2, deleted_at=NOW), SECOND_EXTRA), []),
        (KEPT, (FIRST_EXTRA, pod(EXTRA, 1, 2, node="gone")), ["delete one-extra-1-2"]),
        # Nothing is made of what is being given back.
        (replace(STARTED, reclaim=Reclaim(extra=1, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB)), (), []),
    ],
)
def test_extra_workers_are_made_while_they_are_promised_and_given_back_from_the_end(state, pods, expected):
    assert done(state, LEADER, SECOND, *pods) == expected


def test_an_extra_worker_that_found_no_node_in_time_is_taken_away():
    unbound = pod(EXTRA, 1, 2, node=None, phase="Pending", state={})
    workers = (LEADER, SECOND, FIRST_EXTRA, unbound)
    assert done(STARTED, *workers, now=PROMISED - 1) == []
    assert due_at(JOB, STARTED, status_with(STARTED), NOW) == PROMISED
    assert done(STARTED, *workers, now=PROMISED) == ["delete one-extra-1-2"]


@pytest.mark.parametrize(("waiting", "patience"), [("ImagePullBackOff", PROMISED - NOW), ("ContainerCreating", 900.0)])
def test_an_extra_worker_that_has_its_gpus_and_does_not_start_is_taken_away(waiting, patience):
    """One that is known to fail sooner than one that still starts; by the operator's clock, from when it was lent."""
    stuck = pod(EXTRA, 1, 2, phase="Pending", state={"waiting": {"reason": waiting}})
    workers = (LEADER, SECOND, FIRST_EXTRA, stuck)
    assert done(KEPT, *workers, now=NOW + patience - 1) == []
    assert done(KEPT, *workers, now=NOW + patience) == ["delete one-extra-1-2"]
    assert extra_runs_by(stuck, JOB, KEPT, SETTINGS.timing) == NOW + patience
    assert extra_runs_by(FIRST_EXTRA, JOB, KEPT, SETTINGS.timing) is None


# ---- what is left over


def test_the_newest_two_that_ended_are_kept_for_their_logs():
    old = [ended(BASE, 0, attempt, at=EPOCH + 10 * attempt, uid=f"old{attempt}") for attempt in range(4)]
    now_running = replace(KEPT, extra=0, attempts=(4, 0), incarnations=("b0", "b1"))
    workers = (pod(BASE, 0, 4, told=2), SECOND, *reversed(old), ended(EXTRA, 0, 2, at=EPOCH + 35))
    assert done(now_running, *workers) == ["delete one-base-0-0", "delete one-base-0-1", "delete one-base-0-2"]


def test_a_job_is_removed_after_its_ttl():
    job = kube_job("one", {"minReplicas": 2, "maxReplicas": 5, "ttlSecondsAfterFinished": 60})
    status = status_with(OVER)
    assert status.completion_time == utc(NOW)
    assert due_at(job, OVER, status, NOW) == NOW + 60
    assert done(OVER, job=job, now=NOW + 59) == []
    assert done(OVER, job=job, now=NOW + 60) == ["delete job uid-1"]
    assert due_at(JOB, OVER, status, NOW) is None
    assert done(OVER, now=(utc(NOW) + timedelta(days=999)).timestamp()) == []


# ---- what the leader is told


def test_the_leader_learns_of_each_change_once():
    workers = (SECOND, FIRST_EXTRA, SECOND_EXTRA)
    assert done(STARTED, LEADER, *workers) == []
    assert done(STARTED, pod(BASE, 0, told=1), *workers) == ["tell one-base-0-0 2"]
    assert done(STARTED, pod(BASE, 0), *workers) == ["tell one-base-0-0 2"], "somebody took the annotation off"
    assert done(STARTED, pod(BASE, 0, told=2, budget=1), *workers) == ["tell one-base-0-0 2"], "its budget has changed"
    stopping = replace(STARTED, stopping=Stopping(reason=Reason.SUSPENDED, deadline=NOW + 30))
    assert done(stopping, LEADER, *workers) == ["tell one-base-0-0 2 Suspended"]
    assert done(stopping, ended(BASE, 0), *workers) == []
    unbound = pod(BASE, 1, node=None)
    assert done(stopping, LEADER, unbound) == ["delete one-base-1-0", "tell one-base-0-0 2 Suspended"]
