"""Which workers are given up with their node, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.job import progress
from espalier_operator.job.state import JobState, Observation, Timing, WorkerStart
from espalier_operator.kube.objects.nodes import parse_node
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import sort_pods, trouble_of
from espalier_operator.kube.watch.nodes import OUT_OF_SERVICE, UnreachablePods, given_up_at, is_widespread, reach_of
from espalier_operator.model import Node, WorkerRole
from espalier_operator.model.constraints import Taint
from operator_world.kube_objects import EPOCH, kube_job, raw_node, raw_worker, time_at, waiting_for

SETTINGS = KubeSettings()
JOB = kube_job("one", {"minReplicas": 2, "maxReplicas": 4})
KEY = "node.kubernetes.io/unreachable"
WELL = Node(name="node", gpu_type="", allocatable=4)
SILENT = replace(WELL, ready=False, schedulable=False, silent_since=EPOCH)


def pod_of(*tolerations: dict[str, Any], role: WorkerRole = WorkerRole.BASE, index: int = 0, **changes: Any) -> Pod:
    raw = raw_worker(JOB, index, role=role, uid=f"{role}-{index}", **changes)
    raw["spec"]["tolerations"] = list(tolerations)
    return parse_pod(raw, SETTINGS)


def tolerating(seconds: float | None = None, **changes: Any) -> dict[str, Any]:
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"key": KEY, "operator": "Exists", "effect": "NoExecute", **limit, **changes}


@pytest.mark.parametrize(
    ("tolerations", "patience"),
    [
        ([], 300),
        ([tolerating(300)], 300),
        ([tolerating(5)], 5),
        ([tolerating(600), tolerating(20)], 20),
        ([tolerating(-3)], 0),
        ([tolerating(None)], math.inf),
        ([tolerating(None), tolerating(7)], 7),
        ([tolerating(9, key="")], 9),
        ([{"operator": "Exists"}], 300),
        ([tolerating(9, key="node.kubernetes.io/not-ready")], 300),
        ([tolerating(9, effect="NoSchedule")], 300),
        ([tolerating(9, operator="Equal", value="other")], 300),
        ([tolerating("soon")], math.inf),
    ],
    ids=str,
)
def test_how_long_a_pod_stays_is_what_it_says_itself(tolerations: list[dict[str, Any]], patience: float) -> None:
    assert pod_of(*tolerations).patience == patience


@pytest.mark.parametrize(
    ("ready", "since"), [("True", None), ("False", None), ("Unknown", EPOCH), ("", EPOCH)], ids=str
)
def test_since_when_a_node_is_silent(ready: str, since: float | None) -> None:
    raw = raw_node(ready=ready)
    raw["status"]["conditions"][0]["lastTransitionTime"] = time_at(EPOCH)
    assert parse_node(raw, SETTINGS).silent_since == since


def test_one_reading_gives_nobody_up() -> None:
    pod = pod_of()
    for passed, lost in ((0, False), (299, False), (300, True)):
        found = reach_of([pod], {"node": SILENT, "other": WELL}, EPOCH + passed, widespread=False)
        assert (pod.uid in found.lost) is lost
        assert (pod.uid in found.silent) is not lost
        assert found.next_at == (None if lost else EPOCH + 300)


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        (pod_of(deleted_at=EPOCH), SILENT),
        (pod_of(), None),
        (pod_of(tolerating(None)), replace(SILENT, taints=(Taint(OUT_OF_SERVICE, "nodeshutdown", "NoExecute"),))),
    ],
    ids=["deleted", "the node is removed", "out of service"],
)
@pytest.mark.parametrize("widespread", [False, True])
def test_what_is_certain_is_not_waited_for(pod: Pod, node: Node | None, widespread: bool) -> None:
    assert reach_of([pod], {"node": node}, EPOCH, widespread=widespread).lost == {pod.uid}


def test_an_extra_worker_has_nothing_to_lose() -> None:
    pod = pod_of(role=WorkerRole.EXTRA)
    assert reach_of([pod], {"node": SILENT}, EPOCH, widespread=False).lost == {pod.uid}
    assert reach_of([pod], {"node": SILENT}, EPOCH, widespread=True).silent == {pod.uid}


@pytest.mark.parametrize(
    ("silent", "nodes", "widespread"),
    [
        (0, 0, False),
        (0, 9, False),
        (1, 1, True),
        (1, 2, False),
        (2, 2, True),
        (2, 3, False),
        (3, 5, True),
        (3, 6, False),
        (549, 1000, False),
        (550, 1000, True),
    ],
)
def test_when_most_nodes_are_silent(silent: int, nodes: int, widespread: bool) -> None:
    assert is_widespread(silent, nodes) is widespread


@given(st.integers(0, 60), st.integers(0, 60))
def test_more_silent_nodes_never_make_an_outage_less_widespread(silent: int, more: int) -> None:
    nodes = silent + more
    for fewer in range(silent):
        assert is_widespread(silent, nodes) or not is_widespread(fewer, nodes)
    assert not is_widespread(silent, nodes) or 2 * silent > nodes


PODS = st.builds(
    pod_of,
    st.one_of(st.none(), st.integers(0, 900)).map(tolerating),
    role=st.sampled_from([WorkerRole.BASE, WorkerRole.EXTRA]),
    index=st.integers(0, 3),
    deleted_at=st.sampled_from([None, EPOCH]),
)
NODES = st.builds(
    replace, st.sampled_from([WELL, SILENT]), taints=st.sampled_from([(), (Taint(OUT_OF_SERVICE, "", "NoExecute"),)])
)


@given(PODS, NODES, st.floats(0, 2000), st.floats(0, 2000), st.booleans())
def test_the_rule_as_a_whole(pod: Pod, node: Node, first: float, then: float, widespread: bool) -> None:
    early, late = sorted((first, then))
    before, after = (reach_of([pod], {"node": node}, EPOCH + at, widespread=widespread) for at in (early, late))
    assert not (before.lost & before.silent)
    if node.ready:
        assert before == after == UnreachablePods(), "a node that reports gives nobody up"
        return
    assert before.lost <= after.lost, "time alone brings nobody back"
    assert {pod.uid} == before.lost | before.silent
    certain = pod.deleting or bool(node.taints)
    if widespread and not certain:
        assert not after.lost
        assert after.next_at is None
    if not certain and pod.role is WorkerRole.BASE:
        assert not before.lost or early >= pod.patience
    if after.lost and not before.lost:
        assert before.next_at is not None
        assert EPOCH + early < before.next_at <= EPOCH + late, "whoever waits knows for what"
    assert (given_up_at(pod, node, widespread=False) is None) <= math.isinf(pod.patience)


# ---- what a silent leader means for its job


def test_a_start_up_that_was_not_seen_is_not_counted() -> None:
    """The kubelet may be heard again a moment before it says that the leader has ended."""
    timing = Timing()
    state = JobState(admitted_at=EPOCH, counted_until=EPOCH, attempts=(0, 0), incarnations=("base-0", "base-1"))
    worker = WorkerStart(id="base-1", running=True, started_at=EPOCH)
    for seconds, silent in ((1, False), (2, True), (290, True), (291, False)):
        leader = WorkerStart(id="base-0", running=True, started_at=EPOCH, silent=silent)
        state = progress.look(state, Observation(base=(leader, worker)), JOB.terms, EPOCH + seconds, timing)
    assert state.used_seconds == 0.0
    leader = WorkerStart(id="base-0", running=True, started_at=EPOCH)
    later = EPOCH + 290 + timing.start_up_allowance
    state = progress.look(state, Observation(base=(leader, worker)), JOB.terms, later, timing)
    assert state.used_seconds == timing.start_up_allowance, "one that goes on without a report is counted"


def test_what_people_learn_of_a_silent_node() -> None:
    state = JobState(admitted_at=EPOCH, attempts=(0, 0), incarnations=("base-0", ""))
    pods = sort_pods(JOB, state, [pod_of()], UnreachablePods(silent=frozenset({"base-0"})))
    trouble = trouble_of(pods)
    assert (trouble.reason, trouble.message) == (
        Reason.NODE_LOST,
        "node node does not report; its leader may still run there",
    )
    waits = waiting_for("ErrImagePull", "no")
    pulls = parse_pod(raw_worker(JOB, 1, uid="base-1", node="other", phase="Pending", state=waits), SETTINGS)
    runs, started = pod_of(), parse_pod(raw_worker(JOB, 0, uid="base-0", phase="Pending", state={}), SETTINGS)
    for leader, trained, reason in (
        (runs, False, Reason.IMAGE_PULL_FAILED),  # it gives its GPUs back for that
        (started, True, Reason.IMAGE_PULL_FAILED),
        (runs, True, Reason.NODE_LOST),
    ):
        both = sort_pods(JOB, state, [leader, pulls], UnreachablePods(silent=frozenset({"base-0"})))
        trouble = trouble_of(both, trained=trained)
        assert trouble.reason is reason
