"""Adversarial histories of an operator in a shared cluster, and that each clause fails where the operator is broken.

`make histories` plays a thousand of them, of 500 steps each. `operator_world.history.clauses` says what must hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import sweeps
from espalier_api.reasons import Reason
from espalier_operator.actions import Refusal
from espalier_operator.constraints import ANYWHERE
from espalier_operator.facts import JobFacts, Node
from espalier_operator.kube.state import workers
from espalier_operator.kube.watch import filed_pods, store
from espalier_operator.namespaces import NamespaceLedger
from espalier_operator.plan.lending import Lending
from espalier_operator.plan.record import Record
from espalier_operator.plan.starting import Starting
from espalier_operator.queues import Ledger
from operator_world.history.demands import ClauseError
from operator_world.history.draws import spec_of, temper_of
from operator_world.history.room import Room
from operator_world.history.seen import Seen
from operator_world.history.stage import Stage
from operator_world.history.story import Story
from operator_world.kube_objects import GPU, Raw, template
from operator_world.kube_scheduler import LEAST_ALLOCATED, MOST_ALLOCATED, KubeScheduler

STEPS = 150
TRIES = 12
"""Histories in which a broken operator must be found out."""


@pytest.mark.parametrize("number", range(sweeps.size("histories of a shared cluster", 100)))
def test_nothing_that_happens_breaks_a_clause(number: int) -> None:
    story = Story(sweeps.SEED + number)
    try:
        story.run(STEPS)
    except Exception:
        print("\n".join(story.lines))
        print(f"make histories ARGS='--seed {story.seed} --histories 1 --steps {STEPS}'")
        raise


# ---- each clause fails where the operator is broken; the invariants of plans, which would fail first, are not judged


def breaks(clause: int, first: int = 0) -> str:
    """Return how the clause is broken by a history from the seed `first` on; others may be broken before."""
    found = []
    for seed in range(first, first + TRIES):
        try:
            Story(seed, judges_plans=False).run(STEPS)
        except ClauseError as error:
            found.append(str(error))
            if found[-1].startswith(f"clause {clause}: "):
                return found[-1]
    raise AssertionError(f"{TRIES} histories of a broken operator do not break clause {clause}: {found}")


def test_one_gpu_too_many_on_each_node_breaks_clause_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = store.parse_node

    def wrong(raw: Raw, settings: Any) -> Node:
        node = right(raw, settings)
        return replace(node, allocatable=node.allocatable + 1)

    monkeypatch.setattr(store, "parse_node", wrong)
    breaks(1)


@pytest.mark.parametrize(
    ("whole", "name", "words"),
    [(Ledger, "allows", "holds"), (NamespaceLedger, "fits", "a ResourceQuota refuses")],
)
def test_a_quota_that_is_not_looked_at_breaks_clause_2(
    whole: type, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, name, lambda *_, **__: True)
    assert words in breaks(2)


def _starts_no_gang(right: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Starting, job: JobFacts, sites: Any) -> Any:
        return Reason.NO_FREE_GPU if job.terms.min_replicas > 2 else right(self, job, sites)

    return start


def test_a_gang_that_is_not_started_breaks_clause_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Starting, "_start", _starts_no_gang(Starting._start))
    assert "though it fits" in breaks(3)


def test_gpus_that_nobody_is_lent_break_clause_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lending, "lend", lambda self: None)
    assert "is lent nothing" in breaks(3)


def test_pods_of_others_that_fit_nowhere_break_clause_3_if_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    right = workers.foreign_worker

    def wrong(pod: Any) -> Any:
        found = right(replace(pod, wants_gpus=True))
        return None if found is None else replace(found, constraints=ANYWHERE, gpu_type=None)

    monkeypatch.setattr(filed_pods, "foreign_worker", wrong)
    breaks(3, first=6)


@pytest.mark.parametrize("reason", [Reason.NO_FREE_GPU, Reason.QUOTA_EXCEEDED, Reason.TOO_LARGE])
def test_a_reason_that_is_always_the_same_breaks_clause_4(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Record, job: JobFacts, _: Reason, *, starts_by: float | None = None) -> None:
        self.refusals[job.key] = Refusal(job=job.key, reason=reason, starts_by=starts_by)

    monkeypatch.setattr(Record, "refuse", refuse)
    breaks(4)


# ---- the operator is woken when its plan says so


def test_a_job_that_was_held_back_is_judged_by_a_plan_of_later() -> None:
    """A ResourceQuota refuses a worker that is made again, so the job waits for a while whatever comes free."""
    stage = Stage(0)
    try:
        stage.world.add_machine("node", 4, 16, {}, [])
        chance = Random(0)
        spec = {**spec_of(chance), "minReplicas": 2, "maxReplicas": 2, "timeBudgetSeconds": 600, "backoffLimit": 9}
        stage.world.submit("vision", "job", {**spec, "template": template({"resources": {"limits": {GPU: 1}}})})
        stage.world.tempers["vision/job"] = replace(temper_of(chance), lasts=1e9, silent=False, hangs=False)
        stage.rest()
        stage.world.set_resource_quota("vision", {"pods": 1})
        stage.world.delete_pod("vision/job-base-1-0", force=True)
        while not (job := only_job(stage)).waits:
            stage.world.pass_time(1.0)
            stage.rest()
        held_until = job.status.scheduling.hold_until
        assert (job.reason, held_until is not None) == (Reason.POD_REJECTED, True)
        while held_until is not None and stage.world.now < held_until.timestamp():
            stage.world.pass_time(1.0)
            stage.rest()
        assert only_job(stage).reason is Reason.RESOURCE_QUOTA_EXCEEDED
    finally:
        stage.close()


def only_job(stage: Stage) -> Seen:
    (job,) = Room(stage.world).jobs()
    return job


# ---- kube-scheduler's double: figures of its own tests (least_allocated_test.go, balanced_allocation_test.go)


@pytest.mark.parametrize(
    ("strategy", "cpu", "expected"),
    [(LEAST_ALLOCATED, 4000, 37 + 87), (LEAST_ALLOCATED, 6000, 50 + 100), (MOST_ALLOCATED, 4000, 62 + 87)],
)
def test_nodes_are_scored_as_kube_scheduler_scores_them(strategy: str, cpu: int, expected: int) -> None:
    """A pod of 3000 m and 5000 bytes on an empty node of 10,000 bytes."""
    scheduler = KubeScheduler(strategy, Random(0))
    whole = {"cpu": cpu, "memory": 10_000}
    assert scheduler.score({"cpu": 3000, "memory": 5000}, {}, {}, whole) == expected


@pytest.mark.parametrize(("strategy", "chosen"), [(LEAST_ALLOCATED, "idle"), (MOST_ALLOCATED, "busy")])
def test_pods_are_spread_or_packed(strategy: str, chosen: str) -> None:
    nodes = {name: _node(name) for name in ("busy", "idle")}
    pods = {"ns/there": _pod("busy"), "ns/new": _pod()}
    KubeScheduler(strategy, Random(0)).bind(nodes, pods, "now")
    assert pods["ns/new"]["spec"]["nodeName"] == chosen


def test_the_refusal_tells_why_no_node_fits() -> None:
    tainted = _node("tainted", taints=[{"key": "team", "value": "vision", "effect": "NoSchedule"}])
    pods = {"ns/large": _pod(gpus=5), "ns/other": _pod(nodeSelector={"disk": "none"})}
    KubeScheduler(LEAST_ALLOCATED, Random(0)).bind({"node": _node("node"), "tainted": tainted}, pods, "now")
    taint = "1 node(s) had untolerated taint {team: vision}"
    assert _message(pods["ns/large"]) == f"0/2 nodes are available: 1 Insufficient {GPU}, {taint}."
    assert _message(pods["ns/other"]) == (
        f"0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, {taint}."
    )


def _message(pod: Raw) -> str:
    (condition,) = pod["status"]["conditions"]
    return str(condition["message"])


def _node(name: str, taints: Any = ()) -> Raw:
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", GPU: "4"}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {}}, "spec": {"taints": [*taints]}, "status": status}


def _pod(node: str | None = None, gpus: int = 1, **spec: Any) -> Raw:
    limits = {GPU: gpus, "cpu": "2", "memory": "4Gi"}
    bound = {"nodeName": node} if node else {}
    return {
        "spec": template({"resources": {"limits": limits}}, **spec, **bound)["spec"],
        "status": {"phase": "Pending"},
    }
