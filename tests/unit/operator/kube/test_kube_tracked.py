"""One job in the operator's mind: when it is looked at, what is written, and that its budgets are counted exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from espalier_core.k8s import resources
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job.view import Trouble
from espalier_operator.kube.apply.steps import CreatePod, steps
from espalier_operator.kube.metrics.series import owner
from espalier_operator.kube.settings import FIGURES_A_SECOND, KubeSettings
from espalier_operator.kube.state.due import SOON, FigurePace, FlushPriority, PendingChanges, plan_due_in
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.model import JobFacts, Placement, WorkerRole
from espalier_operator.model.actions import Admit, Finish, GrantExtra, ReleaseExtra, Requeue
from operator_world.kube_known import Known
from operator_world.kube_objects import EPOCH, raw_job, raw_node, raw_report, raw_worker, report, template, time_at

SETTINGS = KubeSettings(persist_seconds=8.0)


class Desk(Known):
    """One job that is managed, and what the API server says of it."""

    def __init__(self, pace: FigurePace | None = None, settings: KubeSettings = SETTINGS, **spec: Any) -> None:
        super().__init__(settings)
        self.take(resources.NODES, raw_node())
        self.take(resources.JOBS, raw_job(spec={"maxReplicas": 4, "template": template(), **spec}))
        seen = self.store.job("uid-1")
        self.job = seen.parsed
        self.managed = ManagedJob(seen, self.store, settings, self.now, pace)

    def look(self, seconds: float = 0.0) -> ManagedJob:
        """Let time pass, hand the news on as the backend does, and look."""
        self.now += seconds
        if self.store.take_changed():
            self.managed.mark_dirty(PendingChanges.PODS)
        if self.store.take_reported():
            self.managed.mark_dirty(PendingChanges.REPORT)
        self.managed.look(self.now)
        return self.managed

    def admit(self) -> None:
        """Look at it, and admit it."""
        self.look()
        self.managed.act(Admit(job="ns/one", gpu_type=""))

    def reject(self, message: str, **verdict: Any) -> None:
        """Let the API server refuse its pods."""
        self.managed.reject(Trouble(reason=Reason.POD_REJECTED, message=message, **verdict))

    def says(self, phase: TrainerPhase = TrainerPhase.TRAINING, **facts: Any) -> None:
        """Let its leader report."""
        said = report("uid-of-one-base-0-0", phase, acknowledged_generation=1, **facts)
        self.take(resources.CONFIG_MAPS, raw_report(self.job, said))

    def train(self) -> ManagedJob:
        """Admit it, and let its leader train."""
        self.admit()
        self.take(resources.PODS, raw_worker(self.job))
        self.says()
        return self.look()

    @property
    def facts(self) -> JobFacts:
        return self.managed.facts

    def flush(self) -> bool:
        """Write its status as the writer does; return whether it was due."""
        due = self.managed.take_due()
        status = self.managed.status(self.now)
        writes = self.managed.must_write(status, due, self.now)
        if writes:
            self.managed.wrote(status, None, self.now)
        self.managed.plan_ahead(status, self.now)
        self.managed.validate()
        return writes


@pytest.mark.parametrize(
    ("installed", "adaptation", "has"),
    [
        (None, {}, False),
        ("http://agent", {}, True),
        (None, {"agent": {"url": "http://own"}}, True),
        ("http://agent", {"mode": "Off"}, False),
    ],
)
def test_its_owner_says_whether_an_agent_is_asked(installed: str | None, adaptation: dict[str, Any], has: bool) -> None:
    desk = Desk(settings=replace(SETTINGS, agent_url=installed), adaptation=adaptation)
    assert owner(desk.managed).has_agent is has


def test_a_leader_on_a_silent_node_is_given_up_at_its_time_without_any_event() -> None:
    desk = Desk()
    desk.take(resources.NODES, raw_node("other"))
    desk.train()
    silent = raw_node(ready="Unknown")
    silent["status"]["conditions"][0]["lastTransitionTime"] = time_at(EPOCH)
    desk.take(resources.NODES, silent)
    desk.look(1.0)
    desk.flush()
    while desk.now < EPOCH + 299:
        due = min(desk.managed.due_at, EPOCH + 299)
        desk.look(max(0.5, due - desk.now))
        desk.flush()
    assert desk.managed.state.attempts == (0,)
    assert desk.managed.due_at <= EPOCH + 300
    assert desk.look(EPOCH + 300 - desk.now).state.attempts == (1,)
    assert desk.managed.state.preemptions == 1
    used = desk.managed.state.used_seconds
    assert used == pytest.approx(0.0, abs=1.5), "it was counted up to its last report"


def test_budgets_run_between_two_looks_as_they_ran() -> None:
    """A look at a job of which there is no news costs next to nothing, and is exact."""
    desk = Desk()
    desk.train()
    assert desk.look(3.0).facts.used_at(desk.now) == pytest.approx(3.0)
    record = desk.managed.state
    before = desk.facts
    assert desk.look(2.5).facts is before, "nor in the facts"
    assert before.used_at(desk.now) == pytest.approx(5.5)
    assert desk.managed.state is record, "nothing was counted in the record for it"
    assert before.gpu_seconds_at(desk.now) == pytest.approx(5.5)
    assert desk.managed.status(desk.now).time_budget.used_seconds == pytest.approx(5.5)
    assert desk.look(-9.0).facts.used_at(desk.now) == pytest.approx(5.5), "a clock that is set back gives nothing back"
    assert desk.look(1.0).facts.used_at(desk.now) == pytest.approx(6.5)


def test_what_is_lent_is_counted_from_when_it_is_bound() -> None:
    """The seconds before were those of fewer GPUs, however long ago the last look was that had news."""
    desk = Desk()
    desk.train()
    desk.look(4.0)
    desk.managed.act(GrantExtra(job="ns/one", extra=3))
    assert desk.look(2.0).facts.gpu_seconds_at(desk.now) == pytest.approx(6.0)
    for index in range(3):
        desk.take(resources.PODS, raw_worker(desk.job, index, role=WorkerRole.EXTRA))
    desk.look()
    assert desk.look(2.0).facts.gpu_seconds_at(desk.now) == pytest.approx(6.0 + 4 * 2.0)
    desk.managed.act(ReleaseExtra(job="ns/one", extra=0, forced=False, reason=Reason.RECLAIM_ACKNOWLEDGED))
    assert desk.look(1.0).facts.gpu_seconds_at(desk.now) == pytest.approx(15.0)


def test_the_facts_after_a_decision_are_the_decision_s_even_when_it_was_flushed_in_between() -> None:
    """Otherwise the next plan would decide the same once more."""
    desk = Desk()
    desk.admit()
    assert desk.flush()
    assert desk.look().facts.admitted_at == EPOCH
    assert desk.facts.generation == 1


def test_figures_are_written_now_and_then_and_all_else_at_once() -> None:
    desk = Desk()
    desk.train()
    assert desk.flush()
    desk.look(3.0)
    assert desk.managed.due is FlushPriority.NOTHING
    assert not desk.flush(), "figures have time"
    assert desk.now < desk.managed.due_at <= EPOCH + 10
    desk.look(desk.managed.due_at - desk.now)
    assert desk.managed.due is FlushPriority.FIGURES
    assert desk.flush()
    desk.managed.refuse(Reason.COOLDOWN)
    assert desk.managed.due is FlushPriority.CHANGES
    assert desk.flush()


def test_the_figures_of_a_thousand_jobs_are_written_more_rarely_than_those_of_a_few() -> None:
    pace = FigurePace(8.0)
    pace.share(100)
    assert pace.seconds == 8.0
    pace.share(1000)
    assert pace.seconds == 1000 / FIGURES_A_SECOND

    desk = Desk(pace)
    desk.train()
    assert desk.flush()
    desk.look(3.0)
    assert not desk.flush()
    assert EPOCH + 40 <= desk.managed.due_at <= EPOCH + 42


def test_the_count_of_a_leader_that_reports_after_its_job_waits_again_is_written() -> None:
    desk = Desk()
    desk.train()
    desk.look(3.0)
    desk.managed.act(Requeue(job="ns/one", reason=Reason.GPU_LOST))
    desk.look()
    desk.flush()
    desk.says(used_seconds=5.0)
    assert desk.look(6.0).due is FlushPriority.FIGURES
    desk.flush()
    desk.look(desk.managed.due_at - desk.now)
    desk.flush()
    assert desk.managed.written.time_budget.used_seconds == 5.0


def test_a_report_stirs_by_what_it_says_and_not_by_its_figures() -> None:
    desk = Desk()
    desk.train()
    desk.flush()
    desk.says(epoch=5, step=50)
    assert desk.look(0.5).due is FlushPriority.NOTHING
    assert desk.managed.status(desk.now).training.epoch == 5
    desk.says(TrainerPhase.EVALUATING, epoch=5, step=50)
    assert desk.look(0.5).due is FlushPriority.CHANGES


def test_the_next_operator_takes_it_up_where_its_status_says() -> None:
    desk = Desk()
    desk.train()
    desk.look(5.0)
    status = desk.managed.status(desk.now)
    seen = desk.store.job("uid-1")
    successor = ManagedJob(replace(seen, status=status.to_json()), desk.store, SETTINGS, desk.now + 2.0)
    successor.look(desk.now + 2.0)
    assert successor.facts.used_seconds == pytest.approx(7.0), "what was trained meanwhile is counted"
    assert successor.facts.admitted_at == EPOCH
    with pytest.raises(ValueError, match="validation error"):
        ManagedJob(replace(seen, status={"timeBudget": {"usedSeconds": "many"}}), desk.store, SETTINGS, desk.now)


def test_a_running_job_keeps_its_last_good_specification_and_a_waiting_one_does_not() -> None:
    broken = raw_job(spec={"minReplicas": 3, "maxReplicas": 2})
    broken["metadata"]["generation"] = 2
    for runs in (True, False):
        desk = Desk()
        if runs:
            desk.train()
        desk.take(resources.JOBS, broken)
        desk.managed.update(desk.store.job("uid-1"))
        desk.look()
        assert (desk.managed.job is not None) is runs
        assert (desk.managed.facts is not None) is runs


def test_a_pod_that_was_just_made_is_not_made_again() -> None:
    """The store knows it before the next look."""
    desk = Desk()
    desk.admit()

    def made() -> list[str]:
        status = desk.managed.status(desk.now)
        due = steps(
            desk.job, desk.managed.state, desk.managed.pods, Placement(base={0: None}), status, desk.now, SETTINGS
        )
        return [step.manifest["metadata"]["name"] for step in due if isinstance(step, CreatePod)]

    assert made() == ["one-base-0-0"]
    desk.take(resources.PODS, raw_worker(desk.job, phase="Pending", node=None))
    assert made() == []


def test_what_the_api_server_says_to_its_pods_is_shown_until_it_takes_them() -> None:
    desk = Desk()
    desk.admit()
    desk.reject("exceeded quota")
    assert desk.look().facts.trouble is Reason.POD_REJECTED
    running = {entry.type: entry for entry in desk.managed.status(desk.now).conditions}["Running"]
    assert (running.reason, running.message) == (Reason.POD_REJECTED, "exceeded quota")
    desk.managed.reject(None)
    assert desk.look().facts.trouble is None
    desk.reject("spec.containers[0]: Invalid", final=True)
    before = desk.managed.plan_inputs()
    ended = desk.look().facts.ended
    assert (ended.reason, ended.failed, ended.message) == (Reason.INVALID_SPEC, True, "spec.containers[0]: Invalid")
    assert plan_due_in(before, desk.managed.plan_inputs()) == SOON, "nobody plans its end"


def test_what_was_refused_is_tried_at_once_when_it_is_granted_gpus_again() -> None:
    desk = Desk()
    desk.admit()
    desk.reject("denied")
    assert desk.look().facts.refused_since == desk.now
    desk.managed.act(Requeue(job="ns/one", reason=Reason.POD_REJECTED, message="denied"))
    waits = desk.look().facts
    assert (waits.trouble, waits.last_failure, waits.refused_since) == (Reason.POD_REJECTED, "denied", None)
    desk.managed.act(Admit(job="ns/one", gpu_type=""))
    again = desk.look().facts
    assert (again.trouble, again.refused_since) == (None, None)


def test_a_job_that_is_over_is_due_no_more() -> None:
    desk = Desk()
    desk.train()
    desk.managed.act(Finish(job="ns/one", reason=Reason.BUDGET_EXHAUSTED))
    desk.look()
    assert desk.flush()
    assert desk.managed.due_at is None
    brief = Desk(ttlSecondsAfterFinished=60)
    brief.train()
    brief.managed.act(Finish(job="ns/one", reason=Reason.BUDGET_EXHAUSTED))
    brief.look()
    brief.flush()
    assert brief.managed.due_at == EPOCH + 60
