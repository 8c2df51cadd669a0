"""Whose GPUs are taken: of jobs that are equal to the policy, those that lose the least."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Node, Snapshot, WorkerRole
from espalier_operator.model.actions import NoticeReclaim, Stop
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.view import Decision, Share, View
from espalier_operator.reclaim.extra_workers import lost_seconds
from operator_world import facts
from operator_world.facts import FAIR, workers_of, world

NOW = 10_000.0
TIMES = st.floats(0.0, NOW - 100.0)
SECONDS = st.floats(0.0, 5_000.0)


@st.composite
def runs(draw: st.DrawFn, name: str, priorities: st.SearchStrategy[int] | None = None, extra: int = 0) -> JobFacts:
    admitted_at = draw(TIMES)
    return facts.trains(
        *(f"team/{name}", 1, 1 + extra),
        extra=extra,
        queue="borrows",
        priority=0 if priorities is None else draw(priorities),
        base_preemptible=True,
        time_budget_seconds=1e6,
        admitted_at=admitted_at,
        **{"granted_at": None, "changed_at": None},
        saved_at=draw(st.none() | st.floats(admitted_at, NOW)),
        start_seconds=draw(st.none() | SECONDS),
    )


def snapshot(*jobs: JobFacts, node: Node | None = None, queues: tuple[QueueLimits, ...] = ()) -> Snapshot:
    workers = [worker for job in jobs if job.admitted_at is not None for worker in workers_of(job)]
    return world(node or facts.node("n", len(workers)), jobs, workers, queues, now=NOW)


def waits(gpus: int, queue: str = "lends") -> JobFacts:
    return facts.job("team/new", gpus, queue=queue, at=5.0)


def stopped(seen: Snapshot, policy: Policy = FAIR) -> set[str]:
    return {f"team/{name}" for name in facts.stopped(plan(seen, policy, NOW))}


@given(job=runs("a"), later=SECONDS, newer=st.floats(0.0, 100.0))
def test_loss_grows_with_time_and_falls_with_a_checkpoint(job: JobFacts, later: float, newer: float) -> None:
    assert lost_seconds(job, NOW) >= 0.0
    assert lost_seconds(job, NOW + later) >= lost_seconds(job, NOW)
    assert lost_seconds(job, NOW, WorkerRole.EXTRA) == (job.start_seconds or 0.0), "it leaves between two steps"
    if job.saved_at is not None and job.saved_at > (job.admitted_at or 0.0):
        saved = replace(job, saved_at=job.saved_at + newer)
        assert lost_seconds(saved, NOW) <= lost_seconds(job, NOW)


@given(jobs=st.tuples(*(runs(name, st.integers(0, 1)) for name in "abcd")), gpus=st.integers(1, 4))
def test_borrowed_gpus_come_from_the_least_important_and_of_these_from_who_loses_least(
    jobs: tuple[JobFacts, ...], gpus: int
) -> None:
    queues = (
        QueueLimits(name="borrows", cohort="all", quotas=(Quota(nominal=0),)),
        QueueLimits(name="lends", cohort="all", quotas=(Quota(nominal=4),)),
    )
    found = stopped(snapshot(*jobs, waits(gpus), queues=queues))
    order = sorted(
        jobs, key=lambda job: (job.terms.priority, lost_seconds(job, NOW), -(job.admitted_at or 0.0), job.key)
    )
    assert found == {job.key for job in order[:gpus]}
    unknown = [replace(job, saved_at=None, start_seconds=None) for job in jobs]
    youngest = sorted(unknown, key=lambda job: (job.terms.priority, -(job.admitted_at or 0.0), job.key))
    seen = snapshot(*unknown, waits(gpus), queues=queues)
    assert stopped(seen) == {job.key for job in youngest[:gpus]}, "as if nothing was known"


class Idle:
    """Serves the new job, then those named; the others are to have nothing."""

    name, queue_order = "idle", "by decree"
    elasticity = FAIR.elasticity

    def __init__(self, *order: str) -> None:
        self.order = order

    def decide(self, view: View) -> Decision:
        base = {job.key: job.min_workers for job in view.jobs}
        shares = [Share(job=key, workers=base[key]) for key in ("team/new", *self.order)]
        return Decision(shares=tuple(shares), preempts=True)


@given(jobs=st.tuples(*(runs(name) for name in "abcd")), gpus=st.integers(1, 4), shares=st.integers(0, 4))
def test_those_without_a_share_yield_by_what_they_lose_and_then_the_last_of_the_policys_order(
    jobs: tuple[JobFacts, ...], gpus: int, shares: int
) -> None:
    """One with a share takes, once it is stopped, the GPUs of those after it: two would stop instead of one."""
    served, idle = jobs[:shares], jobs[shares:]
    found = stopped(snapshot(*jobs, waits(gpus)), Idle(*(job.key for job in served)))
    order = [*sorted(idle, key=lambda job: lost_seconds(job, NOW)), *reversed(served)]
    losses = sorted(lost_seconds(job, NOW) for job in order if job.key in found)
    assert losses == sorted(lost_seconds(job, NOW) for job in order[:gpus]), "equal ones are as good"
    assert {job.key for job in served} & found == {job.key for job in order[:gpus]} & {job.key for job in served}


@given(jobs=st.tuples(*(runs(name, extra=1) for name in "abcd")), gpus=st.integers(1, 4))
def test_of_equal_loans_those_go_back_that_take_least_to_start_again(jobs: tuple[JobFacts, ...], gpus: int) -> None:
    planned = plan(snapshot(*jobs, waits(gpus)), FAIR, NOW)
    asked = {action.job for action in planned.actions if isinstance(action, NoticeReclaim)}
    lost = {job.key: lost_seconds(job, NOW, WorkerRole.EXTRA) for job in jobs}
    assert sorted(lost[key] for key in asked) == sorted(lost.values())[:gpus]


def test_as_many_leave_a_node_that_loses_gpus_as_hold_these() -> None:
    jobs = [
        facts.trains(f"team/{name}", base_preemptible=True, time_budget_seconds=1e6, saved_at=NOW - age)
        for name, age in (("a", 900.0), ("b", 5.0), ("c", 60.0))
    ]
    planned = plan(snapshot(*jobs, node=facts.node("n", 3, departing=2)), FAIR, NOW)
    reasons = {action.job: action.reason for action in planned.actions if isinstance(action, Stop)}
    assert reasons == dict.fromkeys(("team/b", "team/c"), Reason.NODE_DEPARTING)
