"""Base workers that others hold by scheduling gates, or that do not run yet: no budget runs, and they hold no GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import ConditionType, JobPhase, JobStatus
from espalier_operator.job.state import JobState, Observation
from espalier_operator.job.view import state_of
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import JobPods, observation_of, sort_pods, trouble_of, workers_of
from espalier_operator.model import JobFacts
from espalier_operator.model.actions import Admit, Requeue
from espalier_operator.planner.lifecycle import ending
from operator_world.facts import decide, foreign, job, kinds, node
from operator_world.kube_looks import facts_of, look, status_at
from operator_world.kube_objects import EPOCH, GPU, kube_job, raw_worker, report, time_at, waiting_for

SETTINGS = KubeSettings(start_up_allowance_seconds=20)
PROGRAM = {
    "program": {},
    "template": {"spec": {"containers": [{"command": ["sh"], "resources": {"limits": {GPU: 1}}}]}},
}
NEVER = 1e9


def job_of(workers: int, *, program: bool) -> KubeJob:
    spec = {"minReplicas": workers, "maxReplicas": workers, "timeBudgetSeconds": 1e6, "preRunningDeadlineSeconds": 300}
    return kube_job("one", {**spec, **(PROGRAM if program else {})})


@dataclass(frozen=True)
class Fate:
    """What becomes of a base worker: seconds after `EPOCH`."""

    ungated: float
    """When its gates are removed; 0: it has none."""
    begins: float
    """When its container starts to run."""

    def pod(self, job: KubeJob, index: int, now: float) -> dict[str, Any]:
        """Return it as it is at `now`."""
        if now >= self.begins:
            state = {"running": {"startedAt": time_at(EPOCH + self.begins)}}
            return raw_worker(job, index, uid=str(index), state=state)
        held = {"node": None, "gates": ["example.com/queue"]} if now < self.ungated else {}
        return raw_worker(job, index, uid=str(index), phase="Pending", state={}, **held)


fates = st.builds(
    lambda gate, delay: Fate(gate, gate + delay), st.sampled_from((0.0, 0.0, 7.0, 100.0, 900.0)), st.integers(1, 60)
)


class Story:
    """A job whose workers have these fates, and an operator that looks."""

    def __init__(self, *fates: Fate, program: bool) -> None:
        self.job, self.fates, self.program = job_of(len(fates), program=program), fates, program
        attempts, names = (0,) * len(fates), ("",) * len(fates)
        self.state = JobState(
            submitted_at=EPOCH,
            admitted_at=EPOCH,
            counted_until=EPOCH,
            attempts=attempts,
            incarnations=names,
            gpu_type="",
        )
        self.said: Report | None = None

    @property
    def complete_at(self) -> float:
        return max(fate.begins for fate in self.fates)

    def pods(self, now: float) -> JobPods:
        pods = [parse_pod(fate.pod(self.job, index, now), SETTINGS) for index, fate in enumerate(self.fates)]
        return sort_pods(self.job, self.state, pods)

    def seen(self, now: float) -> Observation:
        return observation_of(self.pods(now), self.said, EPOCH + now, program=self.program)

    def look(self, now: float) -> JobFacts:
        self.state = look(self.job, self.state, self.seen(now), EPOCH + now, SETTINGS)
        return facts_of(self.job, self.state, EPOCH + now, SETTINGS, self.pods(now), self.said)

    def restart_operator(self, now: float) -> None:
        text = json.dumps(self.status(now).model_dump(mode="json", by_alias=True))
        self.state = state_of(JobStatus.model_validate_json(text), EPOCH)

    def status(self, now: float) -> JobStatus:
        return status_at(self.job, self.state, EPOCH + now, SETTINGS, self.pods(now), self.said)


@given(
    st.lists(fates, min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.tuples(st.floats(0.1, 400.0), st.booleans()), min_size=1, max_size=30),
)
def test_no_budget_runs_before_all_base_workers_run(
    fates: list[Fate], program: bool, looks: list[tuple[float, bool]]
) -> None:
    """Whoever is gated, and whenever; also while the operator is away. No leader has said that it trains."""
    story, now = Story(*fates, program=program), 0.0
    for wait, restarts in looks:
        if restarts:
            story.restart_operator(now)
        now += wait
        gated = sum(now < fate.ungated for fate in fates)
        facts = story.look(now)
        full = max(0.0, now - story.complete_at)
        assert story.state.used_seconds <= full + 1e-4  # a status keeps microseconds, rounded at each restart
        assert story.state.gpu_seconds_used <= len(fates) * full + 1e-3
        assert facts.gpus_held == len(fates) - gated
        assert story.state.incomplete == (not story.state.trained and now < story.complete_at)
        if gated:
            event("gated")
            assert ending(replace(facts, terms=story.job.terms), EPOCH + 1e6, SETTINGS.rules) is None, "no deadline"
            assert not facts.training
    if program and now > story.complete_at:
        event("all ran")
        last = now - story.state.used_seconds
        assert story.state.trained
        assert last <= max(story.complete_at, 0.0) + max(wait for wait, _ in looks) + 1e-4, "then it runs"


@given(st.lists(fates, min_size=1, max_size=4), st.floats(0.0, 1000.0), st.integers(0, 2))
def test_the_gpus_of_gated_workers_are_for_others(fates: list[Fate], now: float, spare: int) -> None:
    """And those of the other workers are not: a job that needs what is left starts, one that needs more does not."""
    story = Story(*fates, program=True)
    facts = replace(story.look(now), terms=replace(story.job.terms, pre_running_deadline_seconds=None))
    workers = tuple(workers_of(story.job.key, story.pods(now), story.state))
    free = spare + sum(now < fate.ungated for fate in fates)
    for wanted in (free, free + 1):
        jobs = [facts, job("ns/other", wanted, at=EPOCH)] if wanted else [facts]
        made = decide(node("node", len(fates) + spare, ""), jobs, workers, now=EPOCH + now)
        assert kinds(made) == ([Admit] if wanted == free and wanted else [])


def test_one_of_two_workers_is_gated_and_the_job_says_so() -> None:
    story = Story(Fate(0.0, 1.0), Fate(NEVER, NEVER), program=True)
    story.look(500.0)
    status = story.status(500.0)
    running = status.condition(ConditionType.RUNNING)
    assert (status.phase, running.reason) == (JobPhase.STARTING, Reason.SCHEDULING_GATED)
    assert "example.com/queue" in running.message
    assert (status.time_budget.used_seconds, status.time_budget.gpu_seconds_used) == (0.0, 0.0)


def test_a_leader_s_report_that_it_trains_counts_and_charges_no_gpus_of_gated_workers() -> None:
    story = Story(Fate(0.0, 1.0), Fate(NEVER, NEVER), program=False)
    story.look(10.0)
    story.said = report("0", TrainerPhase.TRAINING, used_seconds=2.0, at=EPOCH + 14)
    for now in (14.0, 24.0):
        story.look(now)
    assert (story.state.used_seconds, story.state.gpu_seconds_used) == (14.0, 14.0)


def test_when_others_have_the_gpu_of_a_worker_whose_gates_are_gone_its_job_waits_and_has_lost_nothing() -> None:
    story = Story(Fate(0.0, 1.0), Fate(100.0, NEVER), program=True)
    facts = replace(story.look(200.0), terms=story.job.terms)
    workers = [
        replace(each, node=None, pinned_to="node") if each.index else each
        for each in workers_of("ns/one", story.pods(200.0), story.state)
    ]
    given = node("node", 2, ""), facts, workers, foreign(1, "node")
    (action,) = decide(*given, now=EPOCH + 200.0).actions
    assert action == Requeue(job="ns/one", reason=Reason.NO_FREE_GPU)


def test_what_refuses_a_worker_is_told_before_the_gates_of_another() -> None:
    job = job_of(2, program=True)
    gated, waits = Fate(NEVER, NEVER).pod(job, 0, 0.0), waiting_for("ErrImagePull", "no")
    pulls = raw_worker(job, 1, uid="1", phase="Pending", state=waits)
    pods = sort_pods(job, JobState(attempts=(0, 0)), [parse_pod(raw, SETTINGS) for raw in (gated, pulls)])
    trouble = trouble_of(pods)
    assert trouble.reason is Reason.IMAGE_PULL_FAILED
    first, second = pods.base
    assert first is not None
    starts = replace(first, trouble=Reason.STARTING, gated=False, node="other")
    assert trouble_of(replace(pods, base=(starts, second))) == trouble, "one that only starts slowly says less, too"
