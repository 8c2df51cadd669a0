"""Base GPUs that running jobs yield where the policy preempts: to whom, how many, when, and never without leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Snapshot, Stopping, Worker, WorkerRole
from espalier_operator.model.actions import Plan, Requeue, Stop
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies.tiresias import LasPolicy
from espalier_operator.policies.view import Decision, Share, View
from operator_world import facts
from operator_world.facts import NOW, admitted, base_on, node, stopped, world


@dataclass(frozen=True)
class InOrder:
    """Serves jobs in a given order; those that it does not name wait, and keep what they hold."""

    order: tuple[str, ...]
    preempts: bool = True
    name: str = "in-order"
    queue_order: str = "by decree"

    def decide(self, view: View) -> Decision:
        workers = {job.key: job.min_workers for job in view.jobs}
        shares = (Share(job=key, workers=workers[key]) for key in self.order if key in workers)
        return Decision(shares=tuple(shares), preempts=self.preempts)


def job(name: str, workers: int = 1, *, at: float = 0.0, yields: bool = True, queue: str = "default") -> JobFacts:
    asked = {"queue": queue, "base_preemptible": yields, "time_budget_seconds": 5000.0}
    return facts.job(name, workers, at=at, **asked)


def runs(waits: JobFacts, *nodes: str, since: float = 0.0, service: float = 0.0) -> tuple[JobFacts, list[Worker]]:
    """Return a job that runs, with a base worker on each of `nodes`."""
    running = replace(
        waits, admitted_at=since, gpu_type="", leader_running=True, training=True, gpu_seconds_used=service
    )
    return running, base_on(waits, *nodes)


def snapshot(running: list[tuple[JobFacts, list[Worker]]], *waiting: JobFacts, **nodes: int) -> Snapshot:
    return world(
        *(each for pair in running for each in pair), waiting, [node(n, gpus, "") for n, gpus in nodes.items()]
    )


def stops(planned: Plan) -> list[str]:
    assert {action.reason for action in planned.actions if isinstance(action, Stop)} <= {Reason.PREEMPTED_BY_POLICY}
    return stopped(planned)


def decide(seen: Snapshot, *order: str, preempts: bool = True) -> Plan:
    return plan(seen, InOrder(order, preempts), NOW)


def test_the_last_in_order_yields_and_no_more_than_are_needed() -> None:
    running = [runs(job("a", 2), "n", "n"), runs(job("b"), "n"), runs(job("c"), "n")]
    seen = snapshot(running, job("new"), n=4)
    planned = decide(seen, "new", "a", "b", "c")
    assert planned.actions == (Stop(job="c", reason=Reason.PREEMPTED_BY_POLICY, deadline=NOW + 30),)
    assert planned.refusals["new"].reason is Reason.NO_FREE_GPU
    assert planned.wake_at == NOW + 30
    assert stops(decide(seen, "a", "new", "c", "b")) == ["b"]
    assert stops(decide(snapshot(running, job("new", 3), n=4), "new", "a", "b", "c")) == ["c", "a"], "b is spared"
    assert stops(decide(snapshot(running, job("new"), n=5), "new")) == [], "a GPU is free"


def test_nobody_yields_in_vain_or_to_one_that_comes_later_or_against_its_terms() -> None:
    firm, soft = runs(job("firm", yields=False), "n"), runs(job("soft"), "n")
    assert stops(decide(snapshot([firm, soft], job("new", 2), n=2), "new", "firm", "soft")) == [], "one is not enough"
    assert stops(decide(snapshot([firm, soft], job("new"), n=2), "soft", "new")) == [], "soft is served before"
    assert stops(decide(snapshot([firm, soft], job("new"), n=2), "new", "soft", "firm")) == ["soft"]
    assert stops(decide(snapshot([firm, soft], job("new"), n=2), "new")) == ["soft"], "it has no share"
    assert stops(decide(snapshot([firm, soft], job("new"), n=2), "new", preempts=False)) == []


def test_a_job_is_spared_for_its_minimum_runtime() -> None:
    young = runs(job("young"), "n", since=NOW - 59)
    planned = decide(snapshot([young], job("new"), n=1), "new", "young")
    assert (planned.actions, planned.wake_at) == ((), NOW + 1)


def test_a_job_that_would_give_back_its_loan_first_stops_at_once() -> None:
    """It got notice, by its share or for its own lost worker, and the next plan stopped it."""
    facts, (base,) = runs(job("old"), "n", service=30.0)
    lent = replace(facts, extra=1, terms=replace(facts.terms, max_replicas=2), has_reported=True)
    extra = replace(base, name="extra", role=WorkerRole.EXTRA)
    stop = Stop(job="old", reason=Reason.PREEMPTED_BY_POLICY, deadline=NOW + 30)
    assert decide(snapshot([(lent, [base, extra])], job("new", 2), n=2), "new", "old").actions == (stop,)
    seen = snapshot([(lent, [extra])], job("new"), n=1)
    assert plan(seen, LasPolicy(thresholds=(20.0,)), NOW).actions == (stop,)


def test_one_stop_is_enough_and_its_gpus_go_to_the_one_that_it_was_for() -> None:
    """What is being given back is not asked of another; when it is back, it starts the job that waited for it."""
    facts, workers = runs(job("c"), "n")
    other = runs(job("b"), "n")
    stopping = replace(facts, stopping=Stopping(reason=Reason.PREEMPTED_BY_POLICY, deadline=NOW + 20))
    planned = decide(snapshot([other, (stopping, workers)], job("new"), n=2), "new", "b", "c")
    assert planned.actions == ()
    ended = replace(stopping, leader_running=False)
    planned = decide(snapshot([other, (ended, workers)], job("new"), n=2), "new", "b", "c")
    assert planned.actions == (Requeue(job="c", reason=Reason.PREEMPTED_BY_POLICY),), "its GPU is not free yet"
    waits_again = replace(facts, admitted_at=None, leader_running=False)
    planned = decide(snapshot([other], waits_again, job("new"), n=2), "new", "b", "c")
    assert admitted(planned) == ["new"]


def test_gpus_on_which_a_reservation_counts_are_not_yielded_to_a_later_job() -> None:
    """The first waits for a node as a whole, whose other half is held by a job that does not yield."""
    firm, soft = runs(job("firm", yields=False), "n"), runs(job("soft"), "n")
    first = job("first", 2)
    later = job("later", at=1.0)
    assert stops(decide(snapshot([firm, soft], first, later, n=2), "first", "later", "firm", "soft")) == []
    brief = replace(later, terms=replace(later.terms, time_budget_seconds=10.0, grace_seconds=1.0))
    firm_long = replace(firm[0], terms=replace(firm[0].terms, time_budget_seconds=90_000.0)), firm[1]
    planned = decide(snapshot([firm_long, soft], first, brief, n=2), "first", "later", "firm", "soft")
    assert stops(planned) == ["soft"], "it ends long before the first can start"


def test_a_job_of_the_same_queue_yields_its_quota() -> None:
    queue = QueueLimits(name="q", quotas=(Quota(nominal=2),))
    running = [runs(job("a", queue="q"), "n"), runs(job("b", queue="q"), "n"), runs(job("other"), "n")]
    seen = replace(
        snapshot(running, job("new", queue="q"), job("newer", queue="q", at=1.0), n=8),
        queues=(queue, QueueLimits(name="default")),
    )
    planned = decide(seen, "new", "a", "b", "other", "newer")
    assert stops(planned) == ["b"]
    assert planned.refusals["new"].reason is Reason.QUOTA_EXCEEDED
    assert stops(decide(seen, "new", "newer", "a", "b")) == ["b", "a"]
    half = replace(seen.jobs[1], stopping=Stopping(reason=Reason.PREEMPTED_BY_POLICY, deadline=NOW + 9))
    seen = replace(seen, jobs=(seen.jobs[0], half, *seen.jobs[2:]))
    assert stops(decide(seen, "new", "a", "b", "newer")) == []
    assert stops(decide(seen, "new", "newer", "a", "b")) == ["a"]


def test_least_attained_service_preempts_on_a_cluster() -> None:
    """Tiresias: a job that was served for long yields to a new one, not to one that was served as long."""
    policy = LasPolicy(thresholds=(100.0,), lend=False)
    served, fresh = runs(job("served"), "n", service=500.0), runs(job("fresh"), "n", service=50.0)
    seen = snapshot([served, fresh], job("new", at=5.0), n=2)
    assert stops(plan(seen, policy, NOW)) == ["served"]
    both = [served, runs(job("fresh"), "n", service=400.0)]
    old = replace(job("old", at=5.0), gpu_seconds_used=300.0)
    assert stops(plan(snapshot(both, old, n=2), policy, NOW)) == []


def test_the_policy_sees_a_job_on_its_way_back_to_the_queue() -> None:
    """Else it would forget its place: jobs that came later would pass it."""
    facts, workers = runs(job("first"), "n", service=50.0)
    stopped = replace(facts, stopping=Stopping(reason=Reason.PREEMPTED_BY_POLICY, deadline=NOW), leader_running=False)
    policy = LasPolicy(thresholds=(100.0,))
    seen = replace(snapshot([(stopped, workers)], job("later"), n=1), policy_memory={"queues": [["first"], []]})
    planned = plan(seen, policy, NOW)
    assert planned.actions == (Requeue(job="first", reason=Reason.PREEMPTED_BY_POLICY),)
    assert planned.policy_memory["queues"] == [["first", "later"], []]
