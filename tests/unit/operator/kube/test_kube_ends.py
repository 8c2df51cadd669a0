"""What the end of a worker means: every exit code, every last word, every deed from outside."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job.progress import turning_points
from espalier_operator.job.state import JobState
from espalier_operator.job.transitions import after
from espalier_operator.job.view import Trouble, memory_of, state_of
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.progress import counted
from espalier_operator.kube.state.workers import JobPods, observation_of, sort_pods
from espalier_operator.model import Blame, Ended, Stopping, WorkerRole
from espalier_operator.model.actions import Fail, Requeue
from espalier_operator.planner.lifecycle import ending
from operator_world.kube_looks import facts_of, look, observed
from operator_world.kube_objects import (
    EPOCH,
    kube_job,
    raw_worker,
    report,
    terminated,
    time_at,
    unschedulable,
    waiting_for,
)

SETTINGS = KubeSettings(restart_seconds=1, max_restart_seconds=60, start_up_allowance_seconds=120)
JOB = kube_job("one", {"minReplicas": 2, "maxReplicas": 4})
ENDED_AT = EPOCH + 10
NOW = EPOCH + 20
"""Long enough after the end that no report is waited for."""
STATE = JobState(
    admitted_at=EPOCH,
    counted_until=EPOCH + 9,
    attempts=(4, 0),
    incarnations=("leader", "worker"),
    used_seconds=5.0,
    trained=True,
)
STOPPING = Stopping(reason=Reason.SUSPENDED, deadline=EPOCH + 100)
TRAINING, EVALUATING, COMPLETED = TrainerPhase.TRAINING, TrainerPhase.EVALUATING, TrainerPhase.COMPLETED
STOPPED, FAILED, STARTING = TrainerPhase.STOPPED, TrainerPhase.FAILED, TrainerPhase.STARTING


def leader(phase: str = "Running", *, deleting: bool = False, **changes: Any) -> dict[str, Any]:
    deleted_at = ENDED_AT if deleting else None
    return raw_worker(JOB, 0, 4, uid="leader", phase=phase, deleted_at=deleted_at, **changes)


def worker(phase: str = "Running", *, deleting: bool = False, **changes: Any) -> dict[str, Any]:
    return raw_worker(JOB, 1, 0, uid="worker", phase=phase, deleted_at=ENDED_AT if deleting else None, **changes)


def ended(code: int, **changes: Any) -> dict[str, Any]:
    return leader("Succeeded" if code == 0 else "Failed", state=terminated(code, ENDED_AT), **changes)


def seen(*pods: dict[str, Any], said=None, state: JobState = STATE, now: float = NOW, ready=("node",)) -> JobState:
    """The state after a look, without the figures of budgets."""
    after = look(
        JOB, state, observed(JOB, state, [parse_pod(pod, SETTINGS) for pod in pods], said, ready), now, SETTINGS
    )
    figures = ("used_seconds", "gpu_seconds_used", "counted_until", "budget_end_seconds")
    return replace(after, **{name: getattr(state, name) for name in figures})


def says(phase: TrainerPhase, reason: Reason | None = None, message: str = "", at: float = ENDED_AT):
    return report("leader", phase, reason=reason, message=message, at=at)


def completes(reason: Reason, message: str = "") -> JobState:
    return replace(STATE, ended=Ended(reason=reason, failed=False, message=message))


def fails(reason: Reason, message: str) -> JobState:
    return replace(STATE, ended=Ended(reason=reason, failed=True, message=message))


def failed(message: str, wait: float = 1.0) -> JobState:
    return replace(
        STATE,
        attempts=(5, 0),
        incarnations=("", "worker"),
        failures=1,
        restarts=1,
        last_failure=message,
        not_before=NOW + wait,
    )


def preempted(reason: Reason = Reason.PREEMPTED) -> JobState:
    return replace(
        STATE, attempts=(5, 0), incarnations=("", "worker"), restarts=1, preemptions=1, last_failure=SENTENCES[reason]
    )


def stopped_itself() -> JobState:
    return replace(preempted(), stopped_itself=True)


# ---- a leader that ended by itself


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (0, says(COMPLETED, Reason.BUDGET_EXHAUSTED), completes(Reason.BUDGET_EXHAUSTED)),
        (0, says(COMPLETED, Reason.GPU_BUDGET_EXHAUSTED, "well"), completes(Reason.GPU_BUDGET_EXHAUSTED, "well")),
        (
            0,
            says(TRAINING),
            failed("exit code 0 before its loop or its budget was over; loop.stop() ends a loop early"),
        ),
        (0, None, completes(Reason.COMPLETED)),
        (0, says(STOPPED), stopped_itself()),
        (0, says(FAILED, Reason.TRAINER_FAILED, "why"), failed("exit code 0: why")),
        (1, says(TRAINING), failed("exit code 1; see its log")),
        (1, says(FAILED, Reason.TRAINER_FAILED, "boom"), failed("exit code 1: boom")),
        (1, None, failed("exit code 1; see its log")),
        (1, says(COMPLETED, Reason.BUDGET_EXHAUSTED, "well"), completes(Reason.BUDGET_EXHAUSTED, "well")),
        (
            137,
            says(COMPLETED, Reason.BUDGET_EXHAUSTED),
            completes(Reason.BUDGET_EXHAUSTED, "after its training: exit code 137"),
        ),
        (1, says(COMPLETED, Reason.COMPLETED, "well"), failed("exit code 1; see its log")),
        (137, says(TRAINING), failed("exit code 137; see its log")),
        (2, None, failed("exit code 2; see its log")),
        (2, says(FAILED, Reason.INVALID_SPEC, "no data"), fails(Reason.INVALID_SPEC, "no data")),
        (3, says(FAILED, Reason.LOSS_NOT_FINITE, "NaN"), fails(Reason.LOSS_NOT_FINITE, "NaN")),
        (143, says(STOPPED, Reason.INTERRUPTED), stopped_itself()),
        (143, says(TRAINING), stopped_itself()),
        (143, says(STARTING), failed("exit code 143; see its log")),
        (143, None, failed("exit code 143; see its log")),
    ],
)
def test_a_leader_that_ended_by_itself(code, said, expected):
    assert seen(ended(code), worker(), said=said) == expected


@pytest.mark.parametrize("code", [0, 1, 2, 3, 137, 143])
def test_the_last_word_of_an_earlier_leader_says_nothing_of_this_one(code):
    old = report("an earlier one", COMPLETED, reason=Reason.BUDGET_EXHAUSTED)
    silent = seen(ended(code), worker(), said=None)
    known = failed("exit code 0; see its log")  # that there was one tells that the job uses the trainer library
    assert seen(ended(code), worker(), said=old) == (known if code == 0 else silent)


def test_a_last_message_of_the_container_is_reported():
    state = terminated(1, ENDED_AT, reason="OOMKilled", message="too big")
    after = seen(leader("Failed", state=state), worker(), said=says(TRAINING))
    assert after.last_failure == "exit code 1: OOMKilled: too big"


def test_the_end_of_the_log_is_reported_as_the_cause_in_one_sentence():
    """With `FallbackToLogsOnError` the kubelet gives the last 2 KiB of the log as the container's message."""
    log = (
        'in net\n  File "/code/net.py", line 3, in <module>\n    net(1)\n'
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/code/net.py", line 7, in net\n    return nn.Linear(width, "2")\n'
        '  File "/usr/lib/python3.11/site-packages/torch/nn.py", line 99, in __init__\n    torch.empty(size)\n'
        "TypeError: empty(): argument 'size' must be tuple of ints\n"
    )
    state = terminated(2, ENDED_AT, reason="Error", message=log)
    after = seen(leader("Failed", state=state), worker(), said=None)
    cause = "TypeError: empty(): argument 'size' must be tuple of ints (/code/net.py:7, in net)"
    assert after.last_failure == f"exit code 2: {cause}"


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("reason", [Reason.INVALID_SPEC, Reason.NOTHING_TRAINED, Reason.CHECKPOINT_NOT_WRITTEN])
def test_a_failure_that_the_leader_says_is_final_is_final_whatever_its_code(code, reason):
    after = seen(ended(code), worker(), said=says(FAILED, reason=reason, message="why"))
    assert after.ended == Ended(reason=reason, failed=True, message="why")


def test_a_budget_that_failures_used_up_names_the_last_of_them():
    last = replace(STATE, failures=2, last_failure="exit code 1: boom")
    said = says(FAILED, reason=Reason.NOTHING_TRAINED, message="no step")
    after = seen(ended(2), worker(), said=said, state=last)
    assert after.ended.message == "no step; the last failure: exit code 1: boom"


@pytest.mark.parametrize("code", [0, 2, 3, 143])
def test_the_last_report_is_waited_for_a_moment_where_it_matters(code):
    """The end of the pod is often seen before the report that the leader wrote just before it."""
    now = ENDED_AT + 1
    assert seen(ended(code), worker(), said=says(TRAINING), now=now) == STATE
    assert seen(ended(code), worker(), said=None, now=now) == STATE
    assert seen(ended(code), worker(), said=says(STOPPED), now=now) != STATE
    assert seen(ended(code), worker(), said=says(TRAINING), now=ENDED_AT + 3) != STATE


@pytest.mark.parametrize(("code", "now"), [(1, ENDED_AT), (0, ENDED_AT - 5)])
def test_no_report_is_waited_for_after_a_crash_or_of_a_node_whose_clock_is_ahead(code, now):
    assert seen(ended(code), worker(), said=says(TRAINING), now=now).failures == 1


def test_when_the_last_report_is_waited_for_no_more():
    there = observed(JOB, STATE, [parse_pod(ended(0), SETTINGS)], says(TRAINING))
    assert list(turning_points(STATE, there, SETTINGS.timing)) == [ENDED_AT + 3]


def test_a_leader_done_beside_a_container_that_runs_on_has_ended():
    raw = leader(state=terminated(0, ENDED_AT))
    raw["spec"]["containers"].append({"name": "logs"})
    raw["status"]["containerStatuses"].append({"name": "logs", "state": {"running": {}}})
    assert seen(raw, worker(), said=says(COMPLETED, Reason.BUDGET_EXHAUSTED)) == completes(Reason.BUDGET_EXHAUSTED)


@pytest.mark.parametrize("code", [2, 3, 7])
def test_an_init_container_that_failed_is_a_failure_whatever_its_code(code):
    """Codes 2 and 3 mean something only where a trainer ended with them."""
    raw = leader("Failed", state=waiting_for("PodInitializing"))
    raw["status"]["initContainerStatuses"] = [{"name": "fetch", "state": terminated(code, ENDED_AT)}]
    assert seen(raw, worker()) == failed(f"it could not be started, exit code {code}")


def test_restarts_wait_twice_as_long_each_time_up_to_a_limit():
    waits = []
    for failures in (0, 1, 2, 5, 6, 1000):
        after = seen(ended(1), worker(), state=replace(STATE, failures=failures))
        waits.append((after.not_before or 0.0) - NOW)
    assert waits == [1, 2, 4, 32, 60, 60]


def test_a_wait_that_is_over_is_forgotten():
    waiting = replace(STATE, not_before=NOW)
    assert seen(leader(), worker(), state=waiting, now=NOW - 1) == waiting
    assert seen(leader(), worker(), state=waiting) == STATE


# ---- a leader that somebody else ended


@pytest.mark.parametrize("code", [0, 1, 2, 3, 137, 143])
@pytest.mark.parametrize("said", [None, says(TRAINING), says(STOPPED, Reason.INTERRUPTED)])
@pytest.mark.parametrize("how", ["deleted", "evicted", "preempted"])
def test_a_leader_ended_from_outside_is_not_to_blame_whatever_its_code(code, said, how):
    changes: dict[str, Any] = {
        "deleted": {"deleting": True},
        "evicted": {"reason": "Evicted"},
        "preempted": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]},
    }[how]
    cause = {"deleted": "", "evicted": ": node node: Evicted" if code else ": Evicted", "preempted": ""}[how]
    after = seen(ended(code, **changes), worker(), said=said)
    assert after == replace(preempted(), last_failure=SENTENCES[Reason.PREEMPTED] + cause)
    assert [blame.node for blame in after.blames] == (["node"] if how == "evicted" and code else [])


FULL = {"reason": "Evicted", "message": 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". '}


@pytest.mark.parametrize("code", [0, 137, 143])
@pytest.mark.parametrize("said", [None, says(TRAINING), says(STOPPED, Reason.INTERRUPTED)])
@pytest.mark.parametrize("deleting", [False, True])
def test_a_leader_evicted_for_a_limit_of_its_own_has_failed(code, said, deleting):
    """However orderly it ended in the moment that the kubelet gave it."""
    after = seen(ended(code, deleting=deleting, **FULL), worker(), said=said)
    text = f'exit code {code}: Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". '
    assert after == failed(text)


def test_evictions_for_a_limit_of_its_own_wait_longer_each_time_and_come_to_an_end():
    """Otherwise a job that fills its disk would be started again at once, for ever."""
    state, waits = STATE, []
    for attempt in range(4, 8):
        raw = raw_worker(JOB, 0, attempt, uid="leader", phase="Failed", state=terminated(143, ENDED_AT), **FULL)
        there = replace(state, attempts=(attempt, 0), incarnations=("leader", "worker"), not_before=None)
        state = seen(raw, worker(), said=says(STOPPED), state=there)
        waits.append(state.not_before - NOW)
    assert waits == [1, 2, 4, 8]
    assert (state.failures, state.preemptions, state.restarts) == (4, 0, JOB.terms.backoff_limit)
    assert not state.may_start(JOB.terms, NOW + 100)
    outcome = ending(facts_of(JOB, state, NOW, SETTINGS), NOW, SETTINGS.rules)
    assert isinstance(outcome, Fail)
    assert outcome.reason is Reason.CRASH_LOOP
    assert "EmptyDir" in outcome.message


@pytest.mark.parametrize("how", [{"deleting": True}, {"reason": "Evicted"}, FULL])
def test_a_leader_that_had_completed_before_that_has_completed(how):
    said = says(COMPLETED, Reason.BUDGET_EXHAUSTED)
    assert seen(ended(143, **how), worker(), said=said) == completes(Reason.BUDGET_EXHAUSTED)


def test_a_leader_on_its_way_out_is_let_finish():
    assert seen(leader(deleting=True), worker(), said=says(TRAINING)) == STATE


def test_a_leader_that_vanished():
    assert seen(worker(), said=says(TRAINING)) == preempted()
    assert seen(worker(), said=says(COMPLETED, Reason.BUDGET_EXHAUSTED)) == completes(Reason.BUDGET_EXHAUSTED)


def test_a_leader_that_was_never_seen_has_not_vanished():
    state = replace(STATE, incarnations=("", "worker"))
    assert seen(worker(), state=state) == state
    assert seen(leader(), worker(), state=state) == STATE


@pytest.mark.parametrize("ready", [(), ("another",)])
def test_a_leader_whose_node_is_lost(ready):
    alone = replace(STATE, attempts=(4,), incarnations=("leader",))
    lost = seen(
        leader(), said=says(TRAINING), state=replace(alone, attempts=(4, 0), incarnations=("leader", "")), ready=ready
    )
    assert lost == replace(preempted(Reason.NODE_LOST), incarnations=("", ""))
    done = seen(leader(), worker(), said=says(COMPLETED, Reason.BUDGET_EXHAUSTED), ready=ready)
    assert done.ended == Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity"])
def test_a_node_that_refuses_a_leader_is_not_asked_again_at_once(reason):
    """Nothing was taken from the job: that is no preemption."""
    raw = {**leader("Failed"), "status": {"phase": "Failed", "reason": reason, "message": "Allocate failed"}}
    said = f"node node refused it: {reason}: Allocate failed"
    after = seen(raw, worker())
    assert after == replace(preempted(), preemptions=0, last_failure=said, not_before=NOW + 10)
    assert after.blames == (Blame(node="node", at=NOW, message=said, refused=True),)
    assert state_of(memory_of(after, JOB.terms)).blames == after.blames


@pytest.mark.parametrize(
    ("code", "after_seconds", "changes", "is_blamed"),
    [
        (1, 5, {}, True),
        (1, 119, {}, True),
        (1, 121, {}, False),
        (137, 5, {"killed": "OOMKilled"}, False),
        (143, 5, {"deleting": True}, False),
        (137, 5, FULL, False),
        (143, 5, {"reason": "Terminated", "message": "imminent node shutdown"}, False),
        (143, 5, {"reason": "Preempting", "message": "Preempted in order to admit critical pod"}, False),
        (137, 500, {"reason": "Evicted", "message": "The node was low on resource: memory."}, True),
    ],
)
def test_a_node_is_to_blame_for_a_failed_start_and_what_it_ends_itself(code, after_seconds, changes, is_blamed):
    times = {"startedAt": time_at(EPOCH), "finishedAt": time_at(EPOCH + after_seconds)}
    state = {"terminated": {"exitCode": code, "reason": changes.get("killed", "Error"), **times}}
    how = {"phase": "Failed", "state": state, **{key: value for key, value in changes.items() if key != "killed"}}
    for pods in ([leader(**how), worker()], [leader(), worker(**how)]):
        assert bool(seen(*pods, now=EPOCH + after_seconds + 10).blames) == is_blamed


def test_a_worker_that_the_runtime_of_its_node_does_not_start_for_two_minutes_is_started_elsewhere():
    failing = waiting_for("CreateContainerError", "no such device")
    stuck = leader("Pending", state=failing, startTime=time_at(EPOCH))
    assert seen(stuck, worker(), now=EPOCH + 119) == STATE
    after = seen(stuck, worker(), now=EPOCH + 120)
    said = "it could not be started: CreateContainerError: no such device"
    assert (after.failures, after.attempts, after.last_failure) == (1, (5, 0), said)
    assert [(blame.node, blame.refused) for blame in after.blames] == [("node", False)]
    other = waiting_for("CreateContainerConfigError", 'secret "keys" not found')
    stuck = leader("Pending", state=other, startTime=time_at(EPOCH))
    assert seen(stuck, worker(), now=EPOCH + 500) == STATE, "it would be the same on all nodes"


@pytest.mark.parametrize(("code", "health", "counts"), [(1, "Healthy", 1), (1, "Unhealthy", 0), (139, "Unhealthy", 0)])
def test_a_worker_that_fails_with_a_broken_device_is_started_elsewhere_and_has_not_failed(code, health, counts):
    """Also long after its start. Nothing is counted against backoffLimit, and other nodes are preferred."""
    broken = ended(code)
    devices = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "gpu-3", "health": health}]}]
    broken["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = devices
    broken["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = time_at(EPOCH - 5000)
    after = seen(broken, worker(), said=says(TRAINING))
    assert (after.failures, after.attempts) == (counts, (5, 0))
    assert [blame.node for blame in after.blames] == ([] if counts else ["node"])
    assert counts or "one of its devices is unhealthy" in after.last_failure


def test_a_node_whose_job_trains_there_for_a_while_is_blamed_no_more_and_others_are_then_for_others():
    blames = (Blame(node="node", at=NOW, refused=True), Blame(node="other", at=NOW))
    state = replace(STATE, blames=blames)
    assert seen(leader(), worker(), said=says(TRAINING), state=state, now=NOW + 10).blames == blames
    after = seen(leader(), worker(), said=says(TRAINING), state=state, now=NOW + 200)
    assert after.blames == (Blame(node="other", at=NOW, elsewhere=True),)


def test_a_node_is_blamed_once_for_each_loan_whose_extra_workers_it_refuses():
    lent = replace(STATE, extra=2, extra_generation=7)

    def refused(index: int, loan: int) -> dict[str, Any]:
        raw = raw_worker(JOB, index, loan, role=WorkerRole.EXTRA, phase="Failed", uid=f"{index} {loan}")
        return {**raw, "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}

    once = seen(leader(), worker(), refused(0, 7), refused(1, 7), said=says(TRAINING), state=lent)
    assert [(blame.times, blame.loan) for blame in once.blames] == [(1, 7)]
    again = seen(leader(), worker(), refused(0, 7), refused(1, 7), said=says(TRAINING), state=once)
    assert again.blames == once.blames
    more = seen(leader(), worker(), refused(0, 7), refused(0, 9), said=says(TRAINING), state=once, now=NOW + 50)
    assert [(blame.times, blame.loan) for blame in more.blames] == [(2, 9)]
    assert seen(leader(), worker(), said=says(TRAINING), state=more, now=NOW + 500).blames == more.blames


def test_ends_are_judged_once():
    for pod in (ended(1), ended(143, deleting=True), {**leader("Failed"), "status": {"phase": "Failed"}}):
        once = seen(pod, worker(), said=says(TRAINING))
        assert seen(pod, worker(), said=says(TRAINING), state=once, now=NOW + 0.5) == once
    gone = seen(worker(), said=says(TRAINING))
    assert seen(worker(), said=says(TRAINING), state=gone) == gone


# ---- workers that no node can run


def test_what_kube_scheduler_refuses_is_remembered_until_it_is_placed():
    refusal = unschedulable("4 Insufficient cpu")
    waits = raw_worker(JOB, 1, uid="worker", node=None, phase="Pending", conditions=[refusal])
    first = seen(leader(), waits, now=NOW)
    assert seen(leader(), waits, now=NOW + 50, state=first).refused_since == first.refused_since == NOW
    assert seen(leader(), worker(), now=NOW + 51, state=first).refused_since is None


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_what_the_kubelet_cannot_start_is_refused_and_what_it_cannot_mount_is_not(reason):
    assert seen(leader(), worker("Pending", state=waiting_for(reason))).refused_since == NOW
    assert seen(leader(), worker("Pending", state=waiting_for("ContainerCreating"))).refused_since is None


def gated(*names: str, index: int = 0) -> dict[str, Any]:
    attempt = 0 if index else 4
    return raw_worker(JOB, index, attempt, uid=f"{index}", node=None, phase="Pending", state={}, gates=names)


def test_the_deadline_of_a_start_begins_when_the_scheduling_gates_are_gone():
    """Also of one whose operator was replaced meanwhile."""
    fresh = replace(STATE, trained=False, used_seconds=0.0, incarnations=("0", "1"))
    held = seen(gated("queue"), gated(index=1), state=fresh, now=NOW)
    assert (held.gated, held.admitted_at, held.refused_since) == (True, fresh.admitted_at, None)
    facts = replace(facts_of(JOB, held, NOW + 1e6, SETTINGS), terms=JOB.terms)
    assert facts.gated
    assert ending(facts, NOW + 1e6, SETTINGS.rules) is None
    let = seen(gated(), gated(index=1), state=held, now=NOW + 1e6)
    assert (let.gated, let.admitted_at) == (False, NOW + 1e6)
    trained = seen(gated("queue"), gated(index=1), state=replace(held, trained=True, gated=False), now=NOW)
    assert trained.down_since is None, "it waits for what nobody has tried yet"


@pytest.mark.parametrize(("used", "final"), [(0.0, True), (5.0, False)])
def test_a_pod_that_is_invalid_ends_a_job_that_has_never_trained(used: float, final: bool):
    """One that has trained waits again: what changes its pods on their way may change again."""
    state = replace(STATE, trained=False, used_seconds=used, incarnations=("", ""))
    verdict = Trouble(reason=Reason.POD_REJECTED, message='Pod "one" is invalid: spec', final=True)
    after = look(JOB, state, observation_of(JobPods(base=(None, None)), None, rejected=verdict), NOW, SETTINGS)
    assert (after.ended is not None) is final
    assert after.refused_since == NOW


def test_extra_workers_that_are_refused_are_given_up_within_seconds():
    lent = replace(STATE, extra=1, granted_at=NOW, promised_until=NOW + 120)
    pods = JobPods(base=(parse_pod(leader(), SETTINGS), parse_pod(worker(), SETTINGS)))
    no = Trouble(reason=Reason.POD_REJECTED, message="denied")
    after = look(JOB, lent, observation_of(pods, None, extra_rejected=no), NOW + 1, SETTINGS)
    assert after.promised_until == NOW + 20
    assert look(JOB, lent, observation_of(pods, None), NOW + 1, SETTINGS).promised_until == NOW + 120


def test_since_when_no_leader_runs_of_a_job_that_has_trained_is_remembered_until_one_does():
    assert seen(leader(), worker(), now=NOW - 5).down_since is None
    down = seen(ended(1), worker(), now=NOW)
    waits = raw_worker(JOB, 0, 5, uid="again", phase="Pending")
    assert seen(waits, worker(), now=NOW + 50, state=down).down_since == down.down_since == NOW
    runs = raw_worker(JOB, 0, 5, uid="again")
    assert seen(runs, worker(), now=NOW + 51, state=down).down_since is None
    assert seen(waits, worker(), state=replace(down, trained=False)).down_since is None
    assert seen(waits, worker(), state=replace(down, stopping=STOPPING)).down_since is None


def test_since_when_no_leader_runs_outlives_the_operator_unless_one_has_trained_meanwhile():
    down = replace(seen(ended(1), worker(), now=NOW), counted_until=NOW)
    waits = raw_worker(JOB, 0, 5, uid="again", phase="Pending")
    kept = state_of(memory_of(down, JOB.terms))
    assert seen(waits, worker(), now=NOW + 50, state=kept).down_since == NOW
    said = says(TRAINING, at=NOW + 20)
    assert seen(ended(1), worker(), said=said, now=NOW + 50, state=kept).down_since == NOW + 20
    assert seen(ended(1), worker(), said=said, now=NOW + 25, state=kept).down_since == NOW, "it has been there"


def test_a_job_that_trains_again_is_held_back_no_more():
    held = replace(STATE, trained=False, unplaced=3, hold_until=NOW + 500)
    assert seen(leader(), worker(), said=says(TrainerPhase.STARTING), state=held).unplaced == 3
    after = seen(leader(), worker(), said=says(TrainerPhase.TRAINING), state=held)
    assert (after.unplaced, after.hold_until) == (0, None)


# ---- a leader that does not end


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (says(COMPLETED, Reason.BUDGET_EXHAUSTED), completes(Reason.BUDGET_EXHAUSTED)),
        (says(FAILED, Reason.LOSS_NOT_FINITE, "NaN"), fails(Reason.LOSS_NOT_FINITE, "NaN")),
        (says(FAILED, Reason.TRAINER_FAILED, "boom"), None),
        (says(STOPPED, Reason.INTERRUPTED), stopped_itself()),
    ],
)
@pytest.mark.parametrize("clock", [-7200, 0, 7200])
def test_a_leader_that_said_its_last_word_and_hangs_is_taken_at_its_word(said, expected, clock):
    """It must not hold GPUs for ever, however often it repeats that, and whatever its node's clock says."""
    again = said.model_copy(update={"updated_time": said.updated_time + timedelta(seconds=50 + clock)})
    first = seen(leader(), worker(), said=said, now=ENDED_AT)
    assert first == STATE
    assert seen(leader(), worker(), said=again, now=ENDED_AT + 59, state=first) == STATE
    late = seen(leader(), worker(), said=again, now=ENDED_AT + 60, state=first)
    if expected is None:
        expected = replace(failed("it failed and did not end: boom"), not_before=ENDED_AT + 61)
    assert late == expected
    there = observed(JOB, first, [parse_pod(leader(), SETTINGS)], again)
    assert list(turning_points(first, there, SETTINGS.timing)) == [ENDED_AT + 3, ENDED_AT + 60]


def test_a_leader_that_evaluates_for_long_does_not_hang():
    assert seen(leader(), worker(), said=says(EVALUATING), now=ENDED_AT + 500) == STATE


# ---- while the job is to stop


@pytest.mark.parametrize(
    ("pods", "said", "verdict"),
    [
        ([ended(143)], says(STOPPED, Reason.SUSPENDED), None),
        ([ended(143)], None, None),
        ([ended(0)], says(STOPPED, Reason.SUSPENDED), None),
        ([ended(1)], says(TRAINING), None),
        ([ended(143, deleting=True)], says(STOPPED), None),
        ([], says(TRAINING), None),
        ([], says(COMPLETED, Reason.GPU_BUDGET_EXHAUSTED), Ended(reason=Reason.GPU_BUDGET_EXHAUSTED, failed=False)),
        ([ended(0)], says(COMPLETED, Reason.BUDGET_EXHAUSTED), Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)),
        ([ended(0)], None, Ended(reason=Reason.COMPLETED, failed=False)),
        (
            [ended(3)],
            says(FAILED, Reason.LOSS_NOT_FINITE, "N"),
            Ended(reason=Reason.LOSS_NOT_FINITE, failed=True, message="N"),
        ),
    ],
)
def test_a_leader_that_ends_while_it_is_asked_to(pods, said, verdict):
    """Nothing is counted and nobody started again: the planner ends it or lets it wait."""
    state = replace(STATE, stopping=STOPPING)
    assert seen(*pods, worker(), said=said, state=state) == replace(state, ended=verdict)


def test_a_leader_that_has_completed_and_hangs_is_complete_when_it_is_to_have_stopped():
    """It would be stopped by force, and the job that is complete would wait to run again."""
    said, state = says(COMPLETED, Reason.BUDGET_EXHAUSTED), replace(STATE, stopping=STOPPING)
    deadline = STOPPING.deadline
    first = seen(leader(), worker(), said=said, state=state, now=deadline - 1)
    assert first.ended is None
    there = observed(JOB, first, [parse_pod(leader(), SETTINGS)], said)
    assert deadline in turning_points(first, there, SETTINGS.timing)
    last = seen(leader(), worker(), said=said, state=first, now=deadline)
    assert last.ended == Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)


def test_a_node_lost_while_it_is_asked_to():
    state = replace(STATE, stopping=STOPPING)
    assert seen(leader(), worker(), said=says(TRAINING), state=state, ready=()) == state


# ---- the other base workers


def replaced(**changes: Any) -> JobState:
    return replace(STATE, attempts=(4, 1), incarnations=("leader", ""), **changes)


def end_of_worker(code: int, **changes: Any) -> dict[str, Any]:
    return worker("Succeeded" if code == 0 else "Failed", state=terminated(code, ENDED_AT), **changes)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([worker()], STATE),
        ([end_of_worker(0)], replaced(failures=1, last_failure="base worker 1: exit code 0", not_before=NOW + 1)),
        ([end_of_worker(0, deleting=True)], replaced()),
        ([end_of_worker(0, reason="Evicted")], replaced()),
        ([end_of_worker(137, deleting=True)], replaced()),
        ([worker(deleting=True)], STATE),
        ([worker(node="gone")], replaced()),
        ([], replaced()),
        (
            [
                end_of_worker(
                    0, reason="Evicted", message="Container trainer exceeded its local ephemeral storage limit "
                )
            ],
            replaced(
                failures=1,
                last_failure="base worker 1: exit code 0: Evicted: Container trainer exceeded its local ephemeral "
                "storage limit ",
                not_before=NOW + 1,
            ),
        ),
        ([end_of_worker(1)], replaced(failures=1, last_failure="base worker 1: exit code 1", not_before=NOW + 1)),
        (
            [{**worker("Failed"), "status": {"phase": "Failed", "reason": "NodeAffinity"}}],
            replaced(not_before=NOW + 10, last_failure="node node refused it: NodeAffinity"),
        ),
    ],
)
def test_the_end_of_another_base_worker(pods, expected):
    assert seen(leader(), *pods, said=says(TRAINING)) == expected


@pytest.mark.parametrize("node", ["node", "gone"])
def test_a_worker_that_no_trainer_leads_is_done_with_exit_code_0(node):
    assert seen(leader(), end_of_worker(0, node=node)) == replace(STATE, completed_workers=(1,))


@pytest.mark.parametrize("pods", [[], [worker(node="gone")], [end_of_worker(137, deleting=True)], [end_of_worker(1)]])
def test_nothing_that_happens_to_the_pod_of_a_completed_worker_matters(pods):
    state = replace(STATE, completed_workers=(1,))
    assert seen(leader(), *pods, said=says(TRAINING), state=state) == state
    again = state_of(memory_of(state, JOB.terms))
    assert again.completed_workers == (1,), "the next operator knows"
    assert seen(*pods, said=says(COMPLETED, Reason.BUDGET_EXHAUSTED), state=state).ended is not None


def test_a_completed_worker_of_a_program_stays_completed_when_the_job_waits_again():
    """One of the library serves its leader, which needs it again."""
    state = replace(STATE, completed_workers=(1,))
    for program, completed in ((True, (1,)), (False, ())):
        terms = replace(JOB.terms, program=program)
        waiting = after(state, Requeue(job=JOB.key, reason=Reason.SUSPENDED), terms, NOW, SETTINGS.timing)
        assert waiting.completed_workers == completed
        needed = waiting.needed(terms)
        assert (needed.min_replicas, needed.max_replicas) == (2 - len(completed), terms.max_replicas - len(completed))
    assert state.completed(replace(JOB.terms, min_replicas=1)) == (), "it is none of the base any more"


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [worker(node="gone")],
        [end_of_worker(1)],
        [end_of_worker(137, deleting=True)],
        [end_of_worker(0, deleting=True)],
        [worker(deleting=True)],
        [worker("Pending", state={})],
    ],
)
def test_a_job_whose_leader_has_completed_misses_no_other_worker(pods):
    """It would count a failure, or wait for GPUs and run again, while the process of its leader unloads."""
    complete = says(COMPLETED, Reason.BUDGET_EXHAUSTED)
    assert seen(leader(), *pods, said=complete).ended == Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)
    assert seen(leader(), worker(), said=complete) == STATE
    assert seen(leader(), end_of_worker(0), said=complete) == replace(STATE, completed_workers=(1,))


def test_a_job_whose_leader_has_completed_and_is_deleted_is_complete_at_once():
    complete = says(COMPLETED, Reason.BUDGET_EXHAUSTED)
    after = seen(leader(deleting=True), worker(), said=complete)
    assert after.ended == Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)


def test_two_workers_that_fail_are_two_failures_and_one_restart():
    after = seen(ended(1), end_of_worker(1), said=says(TRAINING))
    assert (after.failures, after.restarts, after.attempts) == (2, 1, (5, 1))
    assert after.not_before == NOW + 2


def test_nothing_more_is_judged_once_the_job_has_ended():
    after = seen(ended(0), end_of_worker(1), said=says(COMPLETED, Reason.BUDGET_EXHAUSTED))
    assert after == completes(Reason.BUDGET_EXHAUSTED)


# ---- extra workers


@pytest.mark.parametrize(
    ("bound", "kept"), [((), True), (("node",), True), (("node", None), True), (("node", "node"), False)]
)
def test_a_promise_is_over_once_all_that_were_promised_have_a_node(bound, kept):
    promised = replace(STATE, extra=2, extra_generation=2, promised_until=NOW + 60)
    extras = [
        raw_worker(JOB, index, 2, role=WorkerRole.EXTRA, node=node, phase="Running" if node else "Pending")
        for index, node in enumerate(bound)
    ]
    after = seen(leader(), worker(), *extras, said=says(TRAINING), state=promised)
    told = promised.granting(2 + sum(map(bool, bound)), Direction.UP, Reason.EXTRA_GPUS_GRANTED, JOB.terms)
    known = told if any(bound) else promised
    assert after == (known if kept else replace(known, promised_until=None))
    there = observed(JOB, promised, [parse_pod(leader(), SETTINGS)], says(TRAINING))
    assert list(turning_points(promised, there, SETTINGS.timing)) == [NOW + 60]


# ---- odd numbers of workers


def test_more_base_workers_than_were_admitted_are_made_room_for():
    """The API server refuses such a change of a running job; an operator must live through it all the same."""
    state = replace(STATE, attempts=(4,), incarnations=("leader",))
    assert seen(leader(), said=says(TRAINING), state=state) == replace(STATE, incarnations=("leader", ""))


def test_base_workers_beyond_min_replicas_are_no_base_workers():
    state = replace(STATE, attempts=(4, 0, 0), incarnations=("leader", "worker", "third"))
    third = raw_worker(JOB, 2, 0, uid="third")
    pods = [parse_pod(pod, SETTINGS) for pod in (leader(), worker(), third)]
    found = sort_pods(JOB, state, pods)
    assert [pod and pod.uid for pod in found.base] == ["leader", "worker", None]
    assert [pod.uid for pod in found.rest] == ["third"]
    assert look(JOB, state, observed(JOB, state, pods), NOW, SETTINGS).attempts == (4, 0, 0)


# ---- whose word counts


def of_attempt(said: Any, attempt: int) -> Any:
    """Return the report of a leader that knows that it was replaced `attempt` times before."""
    return said.model_copy(update={"attempt": attempt})


def test_the_word_of_a_leader_given_up_does_not_hide_its_successor_s():
    old, new, newer = report("old", TRAINING), report("leader", TRAINING), report("leader", EVALUATING)
    assert counted(STATE, None, old) is old, "all that is known"
    assert counted(STATE, old, new) is new
    assert counted(STATE, new, old) is new
    assert counted(STATE, new, newer) is newer
    assert counted(STATE, new, of_attempt(old, 3)) is new, "of the attempt before"
    assert counted(STATE, old, of_attempt(old, 4)) is not old, "of this attempt, whose pod is not seen yet"
    assert counted(STATE, None, of_attempt(old, 3)) is None, "the successor runs, and has not reported yet"
    waiting = replace(STATE, attempts=(5, 0), incarnations=("", "worker"))
    late = of_attempt(old, 4)
    assert counted(waiting, new, late) is late, "nobody has taken over: its checkpoints count as well"
    assert counted(waiting, of_attempt(new, 4), of_attempt(old, 3)) is not None
    assert counted(waiting, of_attempt(new, 4), of_attempt(old, 3)).incarnation == "leader"
    later = replace(STATE, incarnations=("third", "worker"))
    assert counted(later, new, old) is old, "neither is the leader's"
    assert counted(JobState(), new, old) is old
