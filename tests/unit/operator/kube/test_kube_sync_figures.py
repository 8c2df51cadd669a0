"""What the operator does between two plans: it writes what follows from facts alone, and says how soon to plan."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
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


def changed(facts: Mapping[str, Any] = MappingProxyType({}), **state: Any) -> PlanInputs:
    return replace(PICTURE, facts=replace(FACTS, **facts), state=replace(STATE, **state))


LEAVES = with_extra("n", WorkerState.TERMINATING)
RECLAIM = Reclaim(extra=0, deadline=9.0, reason=Reason.NEEDED_BY_OTHER_JOB)
OTHER_FACTS = (
    {"training": False},
    {"evaluating": True},
    {"trouble": Reason.POD_REJECTED},
    {"refused_since": 4.0},
    {"blames": (Blame(node="node", at=1.0, message="", elsewhere=True),)},
    {"terms": replace(TERMS, max_replicas=1)},
)
COUNTS = ("failures", "restarts", "preemptions", "extra", "extra_losses")


@pytest.mark.parametrize(
    ("before", "after", "due_in"),
    [
        (COMING[3], LEAVES, SOON),
        (COMING[3], with_extra("other", WorkerState.RUNNING), SOON),
        (LEAVES, LEAVES, NEVER),
        # Figures need no plan, and what policies decide by needs one later.
        (PICTURE, changed({"used_seconds": 3.0, "gpu_seconds_used": 6.0}, used_seconds=3.0, counted_until=4.0), NEVER),
        (PICTURE, changed(gpu_seconds_used=6.0), NEVER),
        (PICTURE, changed({"noise_scale": 4.0}), LATER),
        # A leader that learns of workers changes no plan, and one that lets them go does.
        (PICTURE, changed(grant=Grant(generation=2, replicas=2)), LATER),
        (PICTURE, changed({"acknowledged_generation": 2}), NEVER),
        (
            changed({"reclaim": RECLAIM, "acknowledged_generation": 1}, reclaim=RECLAIM),
            changed({"reclaim": RECLAIM, "acknowledged_generation": 2}, reclaim=RECLAIM),
            SOON,
        ),
        *((PICTURE, changed(facts), SOON) for facts in OTHER_FACTS),
        *((PICTURE, changed(**{name: 7}), SOON) for name in COUNTS),
        (replace(PICTURE, facts=None), PICTURE, SOON),
    ],
)
def test_how_soon_a_change_is_planned_with(before: PlanInputs, after: PlanInputs, due_in: float) -> None:
    assert plan_due_in(before, after) == due_in


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
