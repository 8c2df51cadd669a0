"""Lists of jobs, and of what holds GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_objects import (
    NOW,
    SETTINGS,
    Object,
    acted,
    admitted,
    blaming,
    job,
    lists,
    node,
    pod,
    reporting,
    time,
    worker,
)
from hypothesis import given
from hypothesis import strategies as st

from espalier_cli.cluster.list_command import COLUMNS, WIDE_COLUMNS, entry_of, row_of
from espalier_cli.cluster.output import count, duration, print_table, short
from espalier_cli.cluster.top_command import overview
from espalier_cli.cluster.usage import use_by_job, use_by_type, why_not
from espalier_core.k8s.jobs import job_of
from espalier_core.types.reasons import Reason
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Fail

RUNNING = job("digits", maxReplicas=2, queue="research")


def running(**change: Any) -> Object:
    """A job that trains with one lent GPU and reports."""
    raw = admitted({**RUNNING, "spec": RUNNING["spec"] | change}, gpu_type="A100", extra=1, at=NOW - 90)
    return reporting(raw, age=80, acknowledged=2, used_seconds=75.0)[0]


# ---- words


@pytest.mark.parametrize(
    ("seconds", "sentence", "cell"),
    [
        (-3, "0 s", "0s"),
        (0, "0 s", "0s"),
        (4.24, "4.2 s", "4s"),
        (9.97, "10 s", "10s"),
        (75.4, "75 s", "1m15s"),
        (119.6, "2 min", "2m"),
        (725, "12 min 5 s", "12m5s"),
        (3600, "1 h", "1h"),
        (18600, "5 h 10 min", "5h10m"),
        (86400 * 3 + 4 * 3600 + 59, "3 d 4 h", "3d4h"),
        (86400 * 3 + 59, "3 d", "3d"),
    ],
)
def test_durations(seconds: float, sentence: str, cell: str) -> None:
    assert (duration(seconds), short(seconds)) == (sentence, cell)


def test_counts() -> None:
    assert [count(number, "GPU") for number in (0, 1, 2)] == ["no GPUs", "1 GPU", "2 GPUs"]


# ---- list


def test_a_running_job_in_cells() -> None:
    row = dict(zip(WIDE_COLUMNS, row_of(job_of(running()), NOW, wide=True), strict=True))
    assert row == {
        **{"NAME": "digits", "PHASE": "Running", "GPUS": "2", "EXTRA": "1", "DEPTH": "4", "ADAPTATIONS": "0"},
        **{"BUDGET-LEFT": "5m20s", "AGE": "10m", "REASON": "ExtraGPUsGranted", "MESSAGE": "1 extra worker"},
        **{"QUEUE": "research", "TYPE": "A100", "RESTARTS": "0", "PREEMPTIONS": "0", "EPOCH": "3", "SCORE": "0.810"},
    }


@pytest.mark.parametrize(
    ("raw", "phase", "reason"),
    [
        (job("a"), "Pending", "not seen by an operator"),
        (acted(job("a"), refusal=Reason.TOO_LARGE), "Pending", "TooLarge"),
        (acted(job("a", suspend=True), refusal=Reason.SUSPENDED), "Suspended", "Suspended"),
        (admitted(job("a")), "Starting", "Starting"),
        (acted(running(), refusal=Reason.COOLDOWN, extra=0), "Starting", "Starting"),
        (acted(running(), Fail(job="default/digits", reason=Reason.CRASH_LOOP)), "Failed", "CrashLoop"),
        (
            {**job("a"), "metadata": job("a")["metadata"] | {"deletionTimestamp": time()}},
            "Deleting",
            "not seen by an operator",
        ),
        ({**job("a"), "status": {"phase": "Dancing"}}, "Pending", "not seen by an operator"),
        ({**job("a"), "spec": {}}, "Pending", "not seen by an operator"),
    ],
)
def test_the_reason_that_matters_most_is_named(raw: Object, phase: str, reason: str) -> None:
    row = dict(zip(COLUMNS, row_of(job_of(raw), NOW), strict=True))
    assert (row["PHASE"], row["REASON"]) == (phase, reason)


def test_a_row_for_programs_is_json() -> None:
    entry = json.loads(json.dumps(entry_of(job_of(running()))))
    assert (entry["name"], entry["admitted"], entry["extraWorkers"]) == ("digits", True, 1)
    assert entry["budgetRemainingSeconds"] == 320.0
    assert entry["reason"] == "ExtraGPUsGranted"


# ---- printing


def test_a_table_that_is_no_terminal_is_neither_cut_nor_padded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "N", "WHY"), [["a", "10", "w " * 200], ["bb", "7", "[red]x[/red]"]], right=("N",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NAME   N  WHY"
    assert lines[1] == f"a     10  {'w ' * 200}".rstrip()
    assert lines[2] == "bb     7  [red]x[/red]"


def taint(key: str) -> Object:
    return {"key": key, "effect": "NoSchedule"}


A, B = admitted(job("a", minReplicas=2), gpu_type="x"), admitted(job("b", maxReplicas=3), gpu_type="x", extra=2)
OVERVIEW = lists(
    jobs=[A, B],
    pods=[
        *(worker(A, "n", index=index) for index in range(2)),
        worker(B, "n"),
        worker(B, "m", role=WorkerRole.EXTRA, attempt=2),
        pod("other", 1, "m", namespace="kube-system"),
        pod("waits", 2, None, namespace="ci", phase="Pending"),
        {**worker(job("gone"), "m"), "metadata": worker(job("gone"), "m")["metadata"] | {"deletionTimestamp": time()}},
    ],
    nodes=[
        node("n", 3, "x"),
        node("m", 5, "x"),
        node("away", 8, "y", ready=False),
        node("cordoned", 4, "x", unschedulable=True),
        node("reserved", 2, "x", taints=[taint("team")]),
        node("without", 0),
    ],
)


def test_gpus_by_type_add_up_and_who_holds_them() -> None:
    whole = overview(OVERVIEW, NOW, SETTINGS)
    types = {use["type"]: use for use in whole["types"]}
    assert types["x"] == {
        **{"type": "x", "nodes": 2, "total": 8, "base": 3, "lent": 1, "others": 1, "terminating": 1, "promised": 1},
        **{"free": 1, "largestFreeOnANode": 2, "heldBeyondAllocatable": 0},
    }
    assert (types["y"]["nodes"], types["y"]["total"], types["y"]["free"]) == (0, 0, 0)
    assert [(use["job"], use["base"], use["lent"], use["promised"]) for use in whole["jobs"]] == [
        ("default/b", 1, 1, 1),
        ("default/a", 2, 0, 0),
    ]
    assert [tuple(entry.values()) for entry in whole["others"]] == [
        ("ci", 0, 2),
        ("default", 1, 0),
        ("kube-system", 1, 0),
    ]
    assert {entry["name"]: entry["why"] for entry in whole["nodesNotCounted"]} == {
        "away": ["not ready"],
        "cordoned": ["cordoned"],
        "reserved": ["tainted team:NoSchedule"],
    }


@pytest.mark.parametrize(
    ("raw", "reasons"),
    [
        (node("n", 1), []),
        (node("n", 1, taints=[taint("nvidia.com/gpu")]), []),
        (node("n", 1, taints=[{"key": "x", "effect": "PreferNoSchedule"}]), []),
        (node("n", 1, taints=[{"key": "x", "effect": "NoExecute"}]), ["tainted x:NoExecute"]),
        (node("n", 1, unschedulable=True, taints=[taint("node.kubernetes.io/unschedulable")]), ["cordoned"]),
        (
            node("n", 1, taints=[taint("node.kubernetes.io/disk-pressure")]),
            ["tainted node.kubernetes.io/disk-pressure:NoSchedule"],
        ),
    ],
)
def test_why_a_node_does_not_count(raw: Object, reasons: list[str]) -> None:
    assert why_not(raw, SETTINGS) == reasons
    snapshot = seen_by_operator(lists(nodes=[raw]), NOW, SETTINGS).snapshot
    assert (not reasons) == snapshot.rules.takes_workers(snapshot.nodes[0])  # the planner is of the same opinion


def test_gpus_that_failed_in_use_are_named() -> None:
    use = use_by_type(seen_by_operator(lists(pods=[pod("p", 3, "n")], nodes=[node("n", 2)]), NOW, SETTINGS).snapshot)[0]
    assert (use.total, use.others, use.free, use.short) == (2, 3, 0, 1)


@given(st.data())
def test_whoever_holds_gpus_they_add_up(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    nodes = tuple(
        Node(name=f"n{index}", gpu_type=data.draw(st.sampled_from("xy")), allocatable=size)
        for index, size in enumerate(sizes)
    )
    places = [*(entry.name for entry in nodes), None, "gone"]
    workers = tuple(
        Worker(
            name=f"w{index}",
            job="default/a" if role is not WorkerRole.FOREIGN else None,
            role=role,
            index=index,
            node=data.draw(st.sampled_from(places)),
            gpus=data.draw(st.integers(0, 3)),
            state=data.draw(st.sampled_from(WorkerState)),
        )
        for index, role in enumerate(data.draw(st.lists(st.sampled_from(WorkerRole), max_size=8)))
    )
    terms = JobTerms(min_replicas=1, max_replicas=4, time_budget_seconds=10.0)
    facts = JobFacts(key="default/a", terms=terms, submitted_at=0.0, admitted_at=0.0, gpu_type="x", extra=2)
    snapshot = Snapshot(taken_at=1.0, nodes=nodes, workers=workers, jobs=(facts,))
    for use in use_by_type(snapshot):
        held = use.base + use.lent + use.others + use.terminating
        assert use.total + use.short == held + use.free + min(use.promised, use.total + use.short - held)
        assert 0 <= use.largest_free <= use.total
    for entry in use_by_job(snapshot):
        assert entry.held == sum(w.gpus for w in workers if w.job and w.node) + entry.promised


def test_nodes_that_jobs_avoid_are_shown_with_the_last_cause() -> None:
    jobs = [blaming("a", "n", refused=True), blaming("b", "n", "m", refused=True, elsewhere=True)]
    shown = overview(lists(jobs=jobs, nodes=[node("n", 3, "x")]), NOW, SETTINGS)["nodesAvoided"]
    assert shown == [
        {"node": "m", "jobs": 1, "byAll": False, "seconds": 1200.0, "message": "Allocate failed"},
        {"node": "n", "jobs": 2, "byAll": True, "seconds": 1200.0, "message": "Allocate failed"},
    ]
