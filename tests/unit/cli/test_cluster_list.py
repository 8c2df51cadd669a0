"""`espalier list`: rows of jobs, and the words they are made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_objects import (
    NOW,
    Object,
    acted,
    admitted,
    job,
    looked_at,
    report,
    time,
    worker,
)

from espalier_cli.cluster.list_command import COLUMNS, WIDE_COLUMNS, entry_of, row_of
from espalier_cli.cluster.output import count, duration, print_table, short
from espalier_core.k8s.jobs import job_of, standing
from espalier_core.types.reasons import Reason
from espalier_operator.model.actions import Fail

RUNNING = job("digits", maxReplicas=2, queue="research")


def running(**change: Any) -> Object:
    """A job that trains with one lent GPU and reports."""
    raw = admitted({**RUNNING, "spec": RUNNING["spec"] | change}, gpu_type="A100", extra=1, at=NOW - 90)
    leader = worker(raw, "n", age=80)
    return looked_at(raw, [leader], report(raw, leader, acknowledged=2, used_seconds=75.0))


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
        "NAME": "digits",
        "PHASE": "Running",
        "GPUS": "2",
        "EXTRA": "1",
        "DEPTH": "4",
        "ADAPTATIONS": "0",
        "BUDGET-LEFT": "5m20s",
        "AGE": "10m",
        "REASON": "ExtraGPUsGranted",
        "QUEUE": "research",
        "TYPE": "A100",
        "RESTARTS": "0",
        "PREEMPTIONS": "0",
        "EPOCH": "3",
        "SCORE": "0.810",
        "MESSAGE": "1 extra worker",
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


def test_why_a_training_job_is_lent_no_more() -> None:
    raw = admitted(job("a", maxReplicas=2), at=NOW - 90)
    leader = worker(raw, "n")
    raw = looked_at(raw, [leader], report(raw, leader), refusal=Reason.COOLDOWN)
    assert standing(job_of(raw)).reason is Reason.COOLDOWN


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
