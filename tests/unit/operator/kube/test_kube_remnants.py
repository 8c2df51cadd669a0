"""A running job whose specification an operator that starts cannot understand: it is counted, and it can be ended."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

import sweeps
from espalier_core.k8s import resources
from espalier_core.k8s.resources import Listing, Resource
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.status import Condition, ConditionType, JobPhase, parse_status
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import Grant, JobState, Observation
from espalier_operator.job.view import facts_of, memory_of, utc
from espalier_operator.kube.apply.steps import Annotate, CreatePod, DeleteJob, DeletePod, steps
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.snapshot import assemble, seen_by_operator
from espalier_operator.kube.state.due import PendingChanges
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.model import Ended, JobFacts, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, Fail, NoticeReclaim, Requeue
from espalier_operator.planner import plan
from operator_world.facts import FAIR, kinds
from operator_world.kube_known import Known
from operator_world.kube_objects import (
    EPOCH,
    at,
    kube_job,
    raw_job,
    raw_node,
    raw_report,
    raw_worker,
    report,
    template,
    terminated,
)
from operator_world.kube_strategies import mutated

Raw = dict[str, Any]
SETTINGS = KubeSettings(persist_seconds=8.0)
NOW = EPOCH + 30
HIGH: Raw = {"metadata": {"name": "high"}, "value": 9}
"""The PriorityClass that the job names."""
SPEC: Raw = {
    "minReplicas": 2,
    "maxReplicas": 4,
    "priorityClassName": "high",
    "preemption": {"noticeSeconds": 7},
    "template": template(),
}
JOB = kube_job("one", {key: value for key, value in SPEC.items() if key != "priorityClassName"})
STATE = JobState(
    submitted_at=EPOCH,
    admitted_at=EPOCH,
    gpu_type="",
    attempts=(0, 0),
    incarnations=("b0", "b1"),
    extra=1,
    extra_generation=2,
    granted_at=EPOCH + 1,
    counted_until=EPOCH + 20,
    used_seconds=15.0,
    trained=True,
    grant=Grant(generation=2, replicas=3, gpus=3, reason="ExtraGPUsGranted"),
)


def stored(state: JobState, **spec: Any) -> Raw:
    """Return the job as the API server has it, with the status of an earlier operator."""
    status = memory_of(state, JOB.terms).model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**raw_job(spec={**SPEC, **spec}), "status": status}


def pods(**leader: Any) -> list[Raw]:
    return [
        raw_worker(JOB, 0, uid="b0", **leader),
        raw_worker(JOB, 1, uid="b1"),
        raw_worker(JOB, 0, 2, role=WorkerRole.EXTRA, uid="e0"),
    ]


def lists(job: Raw, *others: Raw, classes: tuple[str, ...] = (), gpus: int = 4) -> dict[Resource, Listing]:
    said = report("b0", TrainerPhase.TRAINING, at=NOW, used_seconds=15.0, acknowledged_generation=2)
    found = {
        resources.NODES: [raw_node(gpus=gpus)],
        resources.PODS: pods(),
        resources.JOBS: [job, *others],
        resources.CONFIG_MAPS: [raw_report(JOB, said)],
        resources.PRIORITY_CLASSES: [{"metadata": {"name": name}, "value": 9} for name in classes],
    }
    return {kind: Listing([at(1, raw) for raw in raws], 1) for kind, raws in found.items()}


class Started(Known):
    """An operator that has just started, with one job."""

    def __init__(self, job: Raw) -> None:
        super().__init__(SETTINGS, NOW)
        for kind, listed in sorted(lists(job).items(), key=lambda item: item[0] is resources.JOBS):
            self.store.replace(kind, listed.items, listed.version)
        for key in self.store.reports.late():
            self.store.reports.read_late(key)
        self.job = ManagedJob(self.store.job("uid-1"), self.store, SETTINGS, self.now)
        self.look()

    def look(self, seconds: float = 0.0) -> ManagedJob:
        self.now += seconds
        for uid in self.store.take_changed():
            self.job.update(self.store.job(uid))
            self.job.mark_dirty(PendingChanges.PODS)
        if self.store.take_reported():
            self.job.mark_dirty(PendingChanges.REPORT)
        self.job.look(self.now)
        return self.job

    def flush(self) -> list[Any]:
        """Write the status as the writer does; return the steps to take."""
        job = self.job
        job.take_due()
        status = job.status(self.now)
        json.dumps(status.model_dump(mode="json", by_alias=True))
        job.wrote(status, None, self.now)
        job.plan_ahead(status, self.now)
        job.validate()
        if job.job is None:
            return []
        return list(steps(job.job, job.state, job.pods, job.placement, status, self.now, SETTINGS))

    def suspend(self, generation: int, suspend: bool = True) -> JobFacts:
        """Let its author change whether it is to run; return what is planned with."""
        changed = stored(STATE, suspend=suspend)
        self.take(resources.JOBS, {**changed, "metadata": {**changed["metadata"], "generation": generation}})
        return self.look(1.0).facts

    @property
    def admitted(self) -> Condition:
        """What the status that was written says of its admission."""
        return self.job.written.condition(ConditionType.ADMITTED)


BROKEN: list[Raw] = [
    {},
    {"minReplicas": "two"},
    {"training": {"model": {"name": "no such model"}}},
    {"template": {"spec": {"containers": []}}},
    {"timeBudgetSeconds": -1},
    {"preemption": {"noticeSeconds": "soon"}},
    {"fieldOfANewerVersion": 1},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_an_operator_that_starts_counts_what_it_does_not_understand(broken: Raw) -> None:
    """It held its GPUs for ever as a pod of nobody, and its budget stood still."""
    seen = seen_by_operator(lists(stored(STATE, **broken)), NOW, SETTINGS)
    (facts,) = seen.snapshot.jobs
    assert (facts.key, facts.admitted_at, facts.extra, facts.training) == ("ns/one", EPOCH, 1, True)
    assert facts.used_seconds == 25.0, "since it was last counted"
    terms = facts.terms
    assert (terms.min_replicas, terms.max_replicas, terms.gpus_per_worker) == (2, 2, 1)
    assert terms.time_budget_seconds == JOB.terms.time_budget_seconds
    assert terms.notice_seconds == (30 if "preemption" in broken else 7)
    workers = [(worker.job, worker.role, worker.state, worker.gpus) for worker in seen.snapshot.workers]
    running = WorkerState.RUNNING
    assert workers == [("ns/one", role, running, 1) for role in (WorkerRole.BASE, WorkerRole.BASE, WorkerRole.EXTRA)]
    assert seen.left_out == {}


def test_what_it_was_lent_is_taken_back_with_notice() -> None:
    waiting = raw_job("two", {"template": template()}, uid="uid-2")
    snapshot = seen_by_operator(lists(stored(STATE), waiting, gpus=3), NOW, SETTINGS).snapshot
    actions = plan(snapshot, FAIR, NOW).actions
    assert actions == (NoticeReclaim(job="ns/one", extra=0, deadline=NOW + 7, reason=Reason.AT_MAX_REPLICAS),)
    acknowledged = replace(snapshot.jobs[0], extra=0)
    freed = tuple(worker for worker in snapshot.workers if worker.role is not WorkerRole.EXTRA)
    rest = replace(snapshot, jobs=(acknowledged, *snapshot.jobs[1:]), workers=freed)
    assert Admit in kinds(plan(rest, FAIR, NOW))


def test_its_budget_ends_it() -> None:
    """However little its leader says that it has used."""
    started, actions = Started(stored(STATE)), []
    for _ in range(30):
        started.take(resources.CONFIG_MAPS, raw_report(JOB, report("b0", at=started.now, used_seconds=1.0)))
        started.look(10.0)
        snapshot = assemble([started.job], started.store, started.now, SETTINGS.rules)
        actions += plan(snapshot, FAIR, started.now).actions
    assert any(isinstance(action, Fail) and action.reason is Reason.BUDGET_ENFORCED for action in actions)


def test_no_pod_is_made_of_it_and_its_leader_learns_of_the_reclaim() -> None:
    started = Started(stored(STATE))
    started.job.act(NoticeReclaim(job="ns/one", extra=0, deadline=NOW + 7, reason=Reason.AT_MAX_REPLICAS))
    found = started.flush()
    assert [type(step) for step in found] == [Annotate]
    assert json.loads(next(iter(found[0].annotations.values())))["allocation"]["replicas"] == 2
    assert started.job.status(NOW).phase is JobPhase.RUNNING


@pytest.mark.parametrize("how", ["it failed", "it is gone"])
def test_a_worker_that_ends_sends_it_back_to_wait_for_its_specification(how: str) -> None:
    started = Started(stored(STATE))
    started.flush()
    leader, second, extra = pods()
    if how == "it failed":
        leader, *_ = pods(phase="Failed", state=terminated(1, NOW - 1))
        started.take(resources.PODS, leader)
    else:
        started.remove(resources.PODS, leader)
    started.look(5.0)
    assert started.job.facts is None
    found = started.flush()
    assert not any(isinstance(step, CreatePod) for step in found)
    assert {step.pod.uid for step in found if isinstance(step, DeletePod)} == {"b1", "e0"}
    status = started.job.written
    assert (started.admitted.status, started.admitted.reason) == ("False", Reason.INVALID_SPEC)
    assert "there is no PriorityClass 'high'" in started.admitted.message
    assert (status.scheduling.admitted_at, status.allocation.replicas) == (None, 0)
    assert status.time_budget.used_seconds >= 25.0
    # Its pods hold their GPUs until they are gone, as anybody's.
    held = assemble([started.job], started.store, started.now, SETTINGS.rules).workers
    assert {worker.role for worker in held} == {WorkerRole.FOREIGN}
    started.remove(resources.PODS, second)
    started.remove(resources.PODS, extra)
    started.look(1.0)
    assert started.job.job is None
    assert started.flush() == []
    # The class comes back: it waits in the queue with what is left of its budget.
    started.take(resources.PRIORITY_CLASSES, HIGH)
    facts = started.look(1.0).facts
    assert (facts.admitted_at, facts.terms.priority, facts.terms.max_replicas) == (None, 9, 4)
    assert facts.used_seconds == status.time_budget.used_seconds


def test_a_specification_that_is_mended_holds_at_once() -> None:
    started = Started(stored(STATE))
    assert started.job.is_remnant
    started.take(resources.PRIORITY_CLASSES, HIGH)
    facts = started.look().facts
    assert (facts.terms.priority, facts.terms.max_replicas, facts.extra, facts.training) == (9, 4, 1, True)


def test_suspending_it_works() -> None:
    seen = seen_by_operator(lists(stored(STATE, suspend=True)), NOW, SETTINGS)
    assert seen.snapshot.jobs[0].terms.suspend


def test_a_job_that_waits_or_is_over_is_left_out_as_before() -> None:
    waiting = replace(STATE, admitted_at=None, extra=0, grant=Grant(generation=3))
    seen = seen_by_operator(lists(stored(waiting)), NOW, SETTINGS)
    assert list(seen.left_out) == ["ns/one"]
    assert seen.snapshot.jobs == ()


@settings(max_examples=sweeps.examples(150))
@given(mutated(stored(STATE)["spec"]))
def test_whatever_became_of_the_specification_its_workers_count(spec: Any) -> None:
    raw = {**stored(STATE), "spec": spec}
    seen = seen_by_operator(lists(raw), NOW, SETTINGS)
    (facts,) = seen.snapshot.jobs
    assert facts.key == "ns/one"
    assert facts.training
    assert {worker.job for worker in seen.snapshot.workers} == {"ns/one"}
    plan(seen.snapshot, FAIR, NOW)


def test_a_status_that_grants_no_worker_contradicts_itself_and_does_not_end_the_operator() -> None:
    """Who may write statuses may have emptied a part of one: the job is left alone, and all others are planned for."""
    seen = seen_by_operator(lists(stored(replace(STATE, grant=Grant()))), NOW, SETTINGS)
    assert seen.snapshot.jobs == ()


def entry_of_an_adaptation(result: str) -> Raw:
    figures = {"depthBefore": 1, "depthAfter": 2, "parametersBefore": 10, "parametersAfter": 20}
    decided = {"decisionId": result, "time": "2026-01-01T00:00:00Z", "usedSeconds": 1, "trigger": "", "generation": 1}
    return {**figures, **decided, "action": "Nothing", "source": "agent", "result": result, "seconds": 1}


def condition(kind: str, status: str, reason: str) -> Raw:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_what_a_newer_operator_wrote_for_people_does_not_stop_a_job_from_being_run() -> None:
    """After a rollback: a reason, a condition, a result and a phase that this operator does not know."""
    raw = stored(STATE)
    raw["status"] |= {
        "phase": "Dreaming",
        "conditions": [
            condition("Admitted", "True", "GPUsGranted"),
            condition("Running", "True", "OfTheFuture"),
            condition("Dreaming", "True", "Running"),
        ],
        "adaptations": [entry_of_an_adaptation("Dreamt"), entry_of_an_adaptation("Grown")],
    }
    started = Started(raw)
    job = started.look(1.0)
    assert job.facts is not None
    assert (job.state.active, job.state.extra, job.state.used_seconds >= 15.0) == (True, 1, True)
    assert [entry.type for entry in job.written.conditions] == ["Admitted"]
    assert [entry.result for entry in job.written.adaptations] == ["Grown"]


@pytest.mark.parametrize("end", [condition("Complete", "True", "OfTheFuture"), condition("Expired", "True", "Running")])
def test_a_job_that_ended_in_an_unknown_way_is_left_alone(end: Raw) -> None:
    """By the other conditions alone, it would be run again."""
    raw = stored(STATE)
    raw["status"] |= {"completionTime": "2026-01-01T00:00:00Z", "conditions": [end]}
    with pytest.raises(ValueError, match="OfTheFuture|Expired"):
        parse_status(raw)


def test_an_unknown_value_that_is_decided_by_is_not_left_out() -> None:
    raw = stored(STATE)
    raw["status"]["allocation"]["direction"] = "sideways"
    with pytest.raises(ValueError, match="sideways"):
        parse_status(raw)


def become_invalid() -> Started:
    """Return a job that runs by a whole specification, and whose PriorityClass was just deleted."""
    started = Started(stored(STATE))
    started.take(resources.PRIORITY_CLASSES, HIGH)
    assert not started.look(1.0).is_remnant
    started.take(resources.PRIORITY_CLASSES, HIGH, "DELETED")
    return started


def test_a_job_that_becomes_invalid_while_it_runs_can_still_be_suspended() -> None:
    """Its PriorityClass is deleted, and then its author suspends it: it went on by the specification that it had."""
    started = become_invalid()
    facts = started.look(1.0).facts
    assert (facts.terms.suspend, facts.terms.max_replicas) == (False, 4), "it continues as it was"
    for generation, suspend in enumerate((True, False, True), start=2):
        facts = started.suspend(generation, suspend)
        assert (facts.terms.suspend, facts.terms.max_replicas) == (suspend, 4)


def test_a_remnant_can_be_suspended_later() -> None:
    started = Started(stored(STATE))
    facts = started.suspend(generation=2)
    assert started.job.is_remnant
    assert facts.terms.suspend


def test_a_job_that_has_become_invalid_waits_for_its_specification_once_it_waits_again() -> None:
    """It was started again by the specification that it had, until an operator started that did not know this."""
    started = become_invalid()
    assert started.look(1.0).facts is not None
    started.job.act(Requeue(job="ns/one", reason=Reason.GPU_LOST))
    assert started.look(1.0).facts is None
    assert {type(step) for step in started.flush()} == {DeletePod}
    assert (started.admitted.status, started.admitted.reason) == ("False", Reason.INVALID_SPEC)
    for pod in pods():
        started.remove(resources.PODS, pod)
    started.look(1.0)
    assert started.flush() == []
    started.take(resources.PRIORITY_CLASSES, HIGH)
    facts = started.look(1.0).facts
    assert (facts.admitted_at, facts.terms.priority) == (None, 9)


@pytest.mark.parametrize("replicas", [2, 0], ids=["it ran", "it never ran"])
def test_a_job_that_is_over_stays_so_whatever_its_specification_is_by_now(replicas: int) -> None:
    """An operator that started called it InvalidSpec, left workers of it running, and never deleted it."""
    over = replace(
        STATE,
        admitted_at=STATE.admitted_at if replicas else None,
        extra=0,
        grant=Grant(generation=3),
        outcome=Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False, message="done"),
    )
    facts = facts_of("ns/one", over, Observation(), JOB.terms, NOW, SETTINGS.timing)
    status = status_of(facts, over, Observed(generation=1), None, utc(NOW))
    raw = stored(over, ttlSecondsAfterFinished=60)
    started = Started({**raw, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)})
    found = started.flush()
    assert {step.pod.uid for step in found if isinstance(step, DeletePod)} == {"b0", "b1", "e0"}
    written = started.job.written
    assert written is not None
    kept = ("conditions", "phase", "completion_time", "replicas", "allocation", "time_budget")
    assert {name: getattr(written, name) for name in kept} == {name: getattr(status, name) for name in kept}
    started.now += 59
    assert not any(isinstance(step, DeleteJob) for step in started.flush())
    started.now += 2
    assert any(isinstance(step, DeleteJob) for step in started.flush())
