"""Capacity that may come: jobs on clusters whose nodes are added when pods wait, and removed when nobody needs them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionType, JobPhase, JobStatus, parse_status
from espalier_operator.kube.settings import KubeSettings, settings_options
from espalier_operator.model import (
    JobFacts,
    JobTerms,
    Node,
    NodeGroup,
    Rules,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import Admit, GrantExtra, RequestNodes
from espalier_operator.model.constraints import Taint
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_api import gpus_of, is_over, node_of
from operator_world.kube_objects import EPOCH, GPU, template
from operator_world.kube_operator import KINDS, LiveOperator
from operator_world.kubernetes import Kubernetes

GROUP = '{"name": "big", "labels": {"pool": "big"}, "gpus": 4, "maxNodes": 2, "gpuType": "a100"}'
SETTINGS = KubeSettings(
    node_groups=(GROUP,), node_wait_seconds=60, placement_seconds=20, pre_running_deadline_seconds=30, persist_seconds=5
)
NOW = 1000.0


class World(Kubernetes):
    """A cluster with an autoscaler that looks at pods and at nothing else, and takes a while for a node."""

    def __init__(self, most: int = 2, delay: float = 20.0) -> None:
        super().__init__()
        self.most, self.delay, self.coming = most, delay, list[float]()

    def autoscale(self) -> None:
        """Add nodes for pods that ask for those of the group and wait."""
        for at in [at for at in self.coming if at <= self.now]:
            self.coming.remove(at)
            name = f"big-{len(self.nodes)}"
            self.add_node(name, 4, "a100")
            self.nodes[name]["metadata"]["labels"]["pool"] = "big"
        waits = [pod for pod in self.pods.values() if node_of(pod) is None and not is_over(pod)]
        pinned = [pod for pod in waits if "matchFields" in str(pod["spec"].get("affinity"))]
        assert all(pod["spec"].get("nodeSelector") == {"pool": "big"} for pod in waits if pod not in pinned)
        wanted = math.ceil(sum(map(gpus_of, (pod for pod in waits if pod not in pinned))) / 4)
        there = sum(node["metadata"]["labels"].get("pool") == "big" for node in self.nodes.values())
        while len(self.coming) < wanted and there + len(self.coming) < self.most:
            self.coming.append(self.now + self.delay)


class Life:
    """An operator in it."""

    def __init__(self, world: World, runner: asyncio.Runner) -> None:
        self.world = world
        self.operator = LiveOperator(world, FairPolicy(), SETTINGS, SETTINGS.rules, runner)

    def submit(self, name: str, workers: int, extra: int = 0, budget: float = 40.0) -> None:
        spec = {
            "timeBudgetSeconds": budget,
            "minReplicas": workers,
            "maxReplicas": workers + extra,
            "template": template({"resources": {"limits": {GPU: 2}}}),
        }
        self.world.create_job(name, spec)

    def status(self, name: str) -> JobStatus:
        found = parse_status(self.world.jobs[f"ns/{name}"])
        assert found is not None
        return found

    def reason(self, name: str) -> Reason | None:
        admitted = self.status(name).condition(ConditionType.ADMITTED)
        return None if admitted is None else admitted.reason

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.world.pass_time(1.0)
            self.world.controllers()
            self.world.schedule()
            self.world.autoscale()
            self.operator.see(*KINDS)
            self.operator.tick()


@contextmanager
def lives(world: World) -> Iterator[Life]:
    world.now = EPOCH
    with asyncio.Runner() as runner:
        life = Life(world, runner)
        yield life
        life.operator.close()


def test_a_job_starts_on_nodes_that_come_and_its_budget_begins_then() -> None:
    with lives(World()) as life:
        life.submit("one", workers=3)
        life.run(10)
        assert life.reason("one") is Reason.NODES_REQUESTED
        status = life.status("one")
        assert (status.phase, status.time_budget.used_seconds) == (JobPhase.PENDING, 0.0)
        assert status.scheduling.node_group == "big"
        life.run(200)
        assert life.status("one").phase is JobPhase.COMPLETE
        assert life.status("one").scheduling.node_group == ""
        assert len(life.world.nodes) == 2, "six GPUs"


def test_it_gives_up_after_its_time_tells_why_and_asks_again_later() -> None:
    with lives(World(most=0)) as life:
        life.submit("one", workers=3)
        life.run(50)
        assert life.reason("one") is Reason.NODES_REQUESTED, "longer than preRunningDeadlineSeconds"
        life.run(20)
        admitted = life.status("one").condition(ConditionType.ADMITTED)
        assert (admitted.reason, admitted.message) == (
            Reason.UNSCHEDULABLE,
            "no nodes were added for it in time in the node group 'big'",
        )
        assert not [pod for pod in life.world.pods.values() if not is_over(pod)]
        life.world.most = 2
        life.run(250)
        assert life.status("one").phase is JobPhase.COMPLETE


def test_extra_workers_and_what_fits_nowhere_ask_for_no_nodes() -> None:
    with lives(World()) as life:
        life.world.add_node("small", 2)
        life.submit("grows", workers=1, extra=3, budget=200.0)
        life.submit("huge", workers=5)
        life.run(60)
        assert life.status("grows").phase is JobPhase.RUNNING
        assert (life.reason("huge"), len(life.world.nodes)) == (Reason.TOO_LARGE, 1), "10 of 8 GPUs"
        life.submit("later", workers=2)
        life.run(30)
        assert (life.reason("grows"), life.status("later").phase) == (Reason.GPUS_GRANTED, JobPhase.RUNNING)


# ---- the planner

group = NodeGroup(name="g", labels={"pool": "g"}, gpus=4, max_nodes=3, gpu_type="a")
RULES = Rules(node_groups=(group,), node_wait_seconds=100.0)


def job(name: str, workers: int, *, at: float = 0.0, gpus: int = 1, queue: str = "default", **facts: Any) -> JobFacts:
    terms = JobTerms(
        min_replicas=workers, max_replicas=workers, gpus_per_worker=gpus, queue=queue, time_budget_seconds=500.0
    )
    return JobFacts(key=f"ns/{name}", terms=terms, submitted_at=at, **facts)


def admitted(*jobs: JobFacts, rules: Rules = RULES, **seen: Any) -> list[Admit]:
    planned = plan(Snapshot(taken_at=NOW, jobs=jobs, rules=rules, **seen), FairPolicy(), NOW)
    return [action for action in planned.actions if isinstance(action, Admit)]


def test_nodes_are_asked_for_in_order_and_no_more_than_may_come() -> None:
    found = admitted(job("a", 8), job("b", 8, at=1.0), job("c", 2, at=2.0), job("d", 1, at=3.0))
    assert [action.job for action in found] == ["ns/a", "ns/c"], "b does not fit beside a, nor d beside a and c"
    assert set(found) == {
        RequestNodes(job=key, gpu_type="a", node_group="g", nodes_by=NOW + 100.0) for key in ("ns/a", "ns/c")
    }


def test_what_is_there_comes_first_and_counts() -> None:
    node = Node(name="n", gpu_type="a", allocatable=4, labels={"pool": "g"})
    (here,) = admitted(job("a", 4), nodes=(node,))
    assert type(here) is Admit
    (more,) = admitted(job("a", 12), nodes=(node,))
    assert type(more) is RequestNodes, "four are there and eight may come"
    assert admitted(job("a", 13), nodes=(node,)) == []


def test_a_group_is_not_asked_whose_nodes_a_job_does_not_tolerate_or_that_its_queue_may_not_use() -> None:
    tainted = replace(RULES, node_groups=(replace(group, taints=(Taint("spot"),)),))
    assert admitted(job("a", 1), rules=tainted) == []
    assert admitted(job("a", 1, gpus=8)) == [], "no node has so many"
    queues = (QueueLimits(name="q", quotas=(Quota(nominal=1),)),)
    assert len(admitted(job("a", 1, queue="q"), queues=queues)) == 1
    assert admitted(job("a", 2, queue="q"), queues=queues) == []


def test_nodes_that_a_job_waits_for_are_counted_by_its_whole_workers() -> None:
    """A node of eight GPUs has room for one worker of five: three nodes are on their way, and not 15 / 8."""
    large = replace(RULES, node_groups=(replace(group, gpus=8),))
    waits = {"admitted_at": NOW - 1.0, "gpu_type": "a", "node_group": "g", "nodes_by": NOW + 99.0}
    assert len(admitted(job("waits", 2, gpus=5, **waits), job("b", 8, at=1.0), rules=large)) == 1
    assert admitted(job("waits", 3, gpus=5, **waits), job("b", 8, at=1.0), rules=large) == []


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(0, 3), st.integers(0, 4))
def test_never_more_is_asked_for_than_may_come_and_nothing_without_a_group(
    sizes: list[int], there: int, lent: int
) -> None:
    nodes = tuple(Node(name=f"n{n}", gpu_type="a", allocatable=4, labels={"pool": "g"}) for n in range(there))
    foreign = [
        Worker(name=f"others/{n}", job=None, role=WorkerRole.FOREIGN, node="n0", gpus=1, state=WorkerState.RUNNING)
        for n in range(lent if there else 0)
    ]
    jobs = [job(f"j{index}", size, at=float(index)) for index, size in enumerate(sizes)]
    seen = Snapshot(taken_at=NOW, jobs=tuple(jobs), nodes=nodes, workers=tuple(foreign), rules=RULES)
    planned = plan(seen, FairPolicy(), NOW)
    workers = {each.key: each.terms.min_replicas for each in jobs}
    asked = sum(workers[action.job] for action in planned.actions if isinstance(action, Admit))
    assert asked <= 12 - len(foreign)
    assert not any(isinstance(action, GrantExtra) for action in planned.actions)
    plain = plan(replace(seen, rules=Rules()), FairPolicy(), NOW)
    first = {action for action in plain.actions if isinstance(action, Admit)}
    assert first <= set(planned.actions), "nobody who starts without it waits for nodes"


@pytest.mark.parametrize(
    ("given_text", "says"),
    [
        ("{", "Invalid JSON"),
        ('{"name": "g", "gpus": 4, "maxNodes": 2, "labels": {}}', "labels"),
        ('{"name": "g", "gpus": 0, "maxNodes": 2, "labels": {"a": "b"}}', "gpus"),
        ('{"name": "g", "gpus": 1, "maxNodes": 2, "labels": {"a": "b"}, "size": 3}', "size"),
    ],
)
def test_a_group_that_is_none_is_refused_by_its_field(given_text: str, says: str) -> None:
    @settings_options
    @click.command()
    def command(**_: Any) -> None:
        """Take settings."""

    with pytest.raises(click.BadParameter, match=says):
        command.make_context("operator", [f"--node-groups={given_text}"])
