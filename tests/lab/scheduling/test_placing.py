"""Nodes that a policy file with a placement prior wishes for workers, and what the planner makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_lab.scheduling.learned.files import LearnedPolicyError, read_policy
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.placement.tasks import KINDS
from espalier_lab.scheduling.product.placing import MOST_NODES, placed, scarcity
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.learned import Allotment, LearnedPolicy
from espalier_operator.policies.view import Candidate, View
from policy_files import APART, TOGETHER, write_giving


def starting(key: str, workers: int, gpus_each: int = 1) -> tuple[Candidate, Allotment]:
    job = Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=max(1, workers), gpus_per_worker=gpus_each)
    return job, Allotment(job=key, workers=workers)


@st.composite
def situations(draw: st.DrawFn) -> tuple[View, list[Allotment]]:
    """Nodes of any sizes, jobs that run there, and jobs that start."""
    nodes = {f"n{index}": draw(st.integers(0, 5)) for index in range(draw(st.integers(1, 6)))}
    free, held, jobs, allotments = dict(nodes), {}, [], []
    for index in range(draw(st.integers(0, 4))):
        where = [name for name in free if free[name] > 0]
        if where:
            name = draw(st.sampled_from(where))
            free[name] -= 1
            held[f"runs{index}"] = (name,)
            jobs.append(Candidate(key=f"runs{index}", submitted_at=0, min_workers=1, max_workers=1, workers=1))
            allotments.append(Allotment(job=f"runs{index}", workers=1))
    for index in range(draw(st.integers(1, 4))):
        job, allotment = starting(f"starts{index}", draw(st.integers(0, 4)), draw(st.integers(1, 3)))
        jobs.append(job)
        allotments.append(allotment)
    return View(now=0.0, gpus=sum(nodes.values()), jobs=tuple(jobs), nodes=nodes, held=held), allotments


@settings(max_examples=60, deadline=None)
@given(situations())
def test_wishes_can_all_be_met_at_once(drawn: tuple[View, list[Allotment]]) -> None:
    view, allotments = drawn
    found = placed(wide_prior(), view, allotments)
    assert [(each.job, each.workers, each.spare) for each in found] == [
        (each.job, each.workers, each.spare) for each in allotments
    ]
    jobs = {job.key: job for job in view.jobs}
    taken = Counter(node for nodes in view.held.values() for node in nodes)
    for each in found:
        assert len(each.nodes) in (0, each.workers)
        assert not (each.nodes and jobs[each.job].workers), "what runs does not move"
        for node in each.nodes:
            taken[node] += jobs[each.job].gpus_per_worker
    assert all(count <= view.nodes[node] for node, count in taken.items())


def test_of_many_nodes_a_few_are_considered() -> None:
    nodes = {f"n{index:04}": 4 for index in range(5000)}
    job, allotment = starting("ns/a", 8)
    (found,) = placed(wide_prior(), View(now=0.0, gpus=20_000, jobs=(job,), nodes=nodes), [allotment])
    assert len(found.nodes) == 8
    assert len(nodes) > MOST_NODES


@pytest.mark.parametrize(("held", "expected"), [(0, 0.0), (4, 4 / (4 + 1.6)), (8, 8 / 1.6)])
def test_gpus_are_scarcer_the_more_are_held(held: int, expected: float) -> None:
    jobs = (Candidate(key="ns/a", submitted_at=0.0, min_workers=1, max_workers=4, workers=4, gpus_per_worker=2),)
    nodes = ("n1", "n1", "n2", "n2")[: held // 2]
    view = View(now=0.0, gpus=8, jobs=jobs, nodes={"n1": 4, "n2": 4}, held={"ns/a": nodes})
    assert scarcity(view) == pytest.approx(expected)
    assert scarcity(View(now=0.0, gpus=0, jobs=())) == 0


@pytest.mark.parametrize(("others", "node"), [(0, "n2"), (40, "n1")])
def test_an_empty_node_is_opened_while_gpus_are_plentiful_and_kept_whole_when_they_are_scarce(
    others: int, node: str
) -> None:
    """Jobs that share a node slow each other down. There are ten more nodes, full ones, or none."""
    wide = wide_prior()
    prior = replace(wide, rest=np.concatenate([np.full(2 * KINDS, 0.5), wide.rest[-2:]]))
    job, allotment = starting("ns/a", 1)
    runs = [
        Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=40, workers=workers)
        for key, workers in (("ns/one", 1), ("ns/others", others))
    ]
    nodes = {"n1": 4, "n2": 4, **{f"x{index}": 4 if others else 0 for index in range(10)}}
    held = {"ns/one": ("n1",), "ns/others": tuple(f"x{index // 4}" for index in range(others))}
    view = View(now=0.0, gpus=sum(nodes.values()), jobs=(*runs, job), nodes=nodes, held=held)
    allotments = [*(Allotment(job=each.key, workers=each.workers) for each in runs), allotment]
    assert {each.job: each.nodes for each in placed(prior, view, allotments)}["ns/a"] == (node,)


def snapshot() -> Snapshot:
    """Return two nodes with two GPUs each; a job of one worker runs on the first, another one waits."""
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=900)
    trains = {"admitted_at": 1.0, "gpu_type": "a", "has_reported": True, "training": True, "leader_running": True}
    runs = JobFacts(key="ns/runs", terms=terms, submitted_at=0.0, **trains)
    worker = Worker(
        name="runs-0", job="ns/runs", role=WorkerRole.BASE, index=0, node="n1", gpus=1, state=WorkerState.RUNNING
    )
    return Snapshot(
        taken_at=10.0,
        nodes=tuple(Node(name=name, gpu_type="a", allocatable=2) for name in ("n1", "n2")),
        workers=(worker,),
        jobs=(runs, JobFacts(key="ns/waits", terms=terms, submitted_at=5.0)),
    )


@pytest.mark.parametrize(("prior", "node"), [(APART, "n2"), (TOGETHER, "n1"), (None, "n1")])
def test_the_planner_puts_a_job_where_the_file_wishes_it(tmp_path: Path, prior: str | None, node: str) -> None:
    """Without a wish it fills nodes up."""
    policy = LearnedPolicy(file=str(write_giving(tmp_path / "tiny.safetensors", placement=prior)))
    found = plan(snapshot(), policy, 10.0)
    assert [action.job for action in found.actions if isinstance(action, Admit)] == ["ns/waits"]
    assert found.placements["ns/waits"].base == {0: node}
    assert not found.ignored
    assert plan(snapshot(), FairPolicy(), 10.0).placements["ns/waits"].base == {0: "n1"}


def test_a_prior_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = write_giving(tmp_path / "tiny.safetensors", placement=APART, without=("placement.covariance",))
    with pytest.raises(LearnedPolicyError, match=r"tensor 'placement.covariance' is missing"):
        read_policy(path)
