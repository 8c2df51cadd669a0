"""What the operator does between two plans: it writes what follows from facts alone, and says how soon to plan."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobStatus, parse_status
from espalier_operator.job.state import Grant, JobState
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import LATER, NEVER, SOON, PlanInputs, plan_due_in
from espalier_operator.model import Blame, JobFacts, JobTerms, Reclaim, Rules, Worker, WorkerRole, WorkerState
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_objects import GPU, Raw, template
from operator_world.kube_operator import KINDS, LiveOperator
from operator_world.kubernetes import Kubernetes
from operator_world.leaders import Temper

TERMS = JobTerms(min_replicas=1, max_replicas=3, time_budget_seconds=60)
BASE = Worker(name="ns/a-base-0-0", job="ns/a", role=WorkerRole.BASE, node="n", gpus=1, state=WorkerState.RUNNING)
EXTRA = Worker(name="ns/a-extra-0-1", job="ns/a", role=WorkerRole.EXTRA, node=None, gpus=1, state=WorkerState.PENDING)
FACTS = JobFacts(key="ns/a", terms=TERMS, submitted_at=0.0, admitted_at=1.0, extra=1, training=True)
STATE = JobState(admitted_at=1.0, extra=1, promised_until=90.0)
PICTURE = PlanInputs(state=STATE, facts=FACTS, workers=(BASE,))


def with_extra(node: str | None, state: WorkerState) -> PlanInputs:
    return replace(PICTURE, workers=(BASE, replace(EXTRA, node=node, state=state)))


COMING = (
    PICTURE,
    with_extra(None, WorkerState.PENDING),
    with_extra("n", WorkerState.PENDING),
    with_extra("n", WorkerState.RUNNING),
)


@given(st.integers(0, 3), st.integers(0, 3))
def test_a_worker_that_comes_up_can_wait_for_the_plan_and_one_that_goes_cannot(one: int, other: int) -> None:
    due_in = plan_due_in(COMING[one], COMING[other])
    assert due_in == (NEVER if one == other else LATER if one < other else SOON) or (one, other) == (3, 2)


def test_a_worker_that_terminates_or_is_elsewhere_is_planned_with_soon() -> None:
    assert plan_due_in(COMING[3], with_extra("n", WorkerState.TERMINATING)) == SOON
    assert plan_due_in(COMING[3], with_extra("other", WorkerState.RUNNING)) == SOON
    leaves = with_extra("n", WorkerState.TERMINATING)
    assert plan_due_in(leaves, leaves) == NEVER


def test_figures_need_no_plan_and_what_policies_decide_by_needs_one_later() -> None:
    figures = replace(STATE, used_seconds=3.0, gpu_seconds_used=6.0, counted_until=4.0)
    later = replace(PICTURE, state=figures, facts=replace(FACTS, used_seconds=3.0, gpu_seconds_used=6.0))
    assert plan_due_in(PICTURE, later) == NEVER
    assert plan_due_in(PICTURE, replace(PICTURE, facts=replace(FACTS, noise_scale=4.0))) == LATER


def test_a_leader_that_learns_of_workers_changes_no_plan_and_one_that_lets_them_go_does() -> None:
    told = replace(PICTURE, state=replace(STATE, grant=Grant(generation=2, replicas=2)))
    assert plan_due_in(PICTURE, told) == LATER
    known = replace(PICTURE, facts=replace(FACTS, acknowledged_generation=2))
    assert plan_due_in(PICTURE, known) == NEVER
    reclaim = Reclaim(extra=0, deadline=9.0, reason=Reason.NEEDED_BY_OTHER_JOB)
    before, after = (
        replace(
            PICTURE,
            state=replace(STATE, reclaim=reclaim),
            facts=replace(FACTS, reclaim=reclaim, acknowledged_generation=generation),
        )
        for generation in (1, 2)
    )
    assert plan_due_in(before, after) == SOON


@pytest.mark.parametrize(
    "change",
    [
        {"training": False},
        {"evaluating": True},
        {"trouble": Reason.POD_REJECTED},
        {"refused_since": 4.0},
        {"blames": (Blame(node="node", at=1.0, message="", elsewhere=True),)},
        {"terms": replace(TERMS, max_replicas=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_facts_are_planned_with_soon(change: dict[str, object]) -> None:
    assert plan_due_in(PICTURE, replace(PICTURE, facts=replace(FACTS, **change))) == SOON
    assert plan_due_in(replace(PICTURE, facts=None), PICTURE) == SOON


@given(st.sampled_from(("failures", "restarts", "preemptions", "extra", "extra_losses")))
def test_other_changes_of_the_state_are_planned_with_soon(name: str) -> None:
    assert plan_due_in(PICTURE, replace(PICTURE, state=replace(STATE, **{name: 7}))) == SOON


# ---- the operator over a naive Kubernetes


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


class Story:
    """A job on one node, until it is lent a second GPU."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.world = Kubernetes()
        self.world.add_node("node", 2)
        self.world.tempers["ns/job"] = Temper(start_up=2.0)
        limits = {"resources": {"limits": {GPU: 1}}}
        spec = {"timeBudgetSeconds": 500, "minReplicas": 1, "maxReplicas": 2, "template": template(limits)}
        self.world.create_job("job", spec)
        self.operator = LiveOperator(self.world, FairPolicy(), KubeSettings(), Rules(), runner)
        self.plans = 0
        self.made: list[str] = []
        """The kinds of objects that the operator has made, Events among them, in order."""
        self._create, self.operator.client.create = self.operator.client.create, self.create
        self.operator.on_plan = lambda snapshot, plan: setattr(self, "plans", self.plans + 1)
        for _ in range(200):
            if "ns/job-extra-0-2" in self.world.pods:
                return
            self.operator.see(*KINDS)
            self.operator.tick()
            self.moves()
            self.world.pass_time(1.0)
        raise AssertionError("it was never lent a GPU")

    async def create(self, manifest: Mapping[str, Any], owner: str | None) -> Raw | None:
        self.made.append(manifest["kind"])
        return await self._create(manifest, owner)

    def moves(self) -> None:
        self.world.controllers()
        self.world.schedule()
        self.world.kubelets()

    def status(self) -> JobStatus:
        return parse_status(self.world.jobs["ns/job"]) or JobStatus()


def test_a_leader_learns_of_an_extra_worker_before_the_next_plan(runner: asyncio.Runner) -> None:
    story = Story(runner)
    plans, told = story.plans, story.status().allocation
    assert told.replicas == 1
    story.moves()
    story.operator.see(*KINDS)
    assert story.operator.sync_figures() == LATER
    assert story.plans == plans
    now = story.status().allocation
    assert (now.replicas, now.generation) == (2, told.generation + 1)
    story.operator.close()


def test_no_worker_waits_for_an_event_about_it(runner: asyncio.Runner) -> None:
    """An Event takes a request, and a slow API server can take seconds for each."""
    story = Story(runner)
    assert [kind for kind in story.made if kind in ("Pod", "Event")] == ["Pod", "Event", "Event"] * 2
    story.operator.close()


def test_news_of_others_is_planned_with_soon_and_none_at_all_never(runner: asyncio.Runner) -> None:
    story = Story(runner)
    for _ in range(3):
        story.operator.see(*KINDS)
        story.operator.tick()
        story.moves()
    story.operator.see(*KINDS)
    story.operator.sync_figures()
    assert story.operator.sync_figures() == NEVER
    story.world.add_foreign("theirs", 1)
    story.operator.see(*KINDS)
    assert story.operator.sync_figures() == SOON
    story.world.create_job("other", story.world.jobs["ns/job"]["spec"])
    story.operator.see(*KINDS)
    assert story.operator.sync_figures() == SOON
    story.operator.close()
