"""`espalier simulate`: what scripts read, and what is said about files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from espalier_cli.simulate_command import simulate

HEADER = "timestamp,duration,num_gpus\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "2017-10-09 07:00:00,600,2\n2017-10-09 07:01:00,60.5,1\n2017-10-09 06:59:00,9,0\n")
    return path


def test_json_for_scripts(trace: Path) -> None:
    done = run(trace, "--cluster", "1x2", "--policy", "fifo", "--policy", "las:thresholds=100", "--json")
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)["runs"]
    assert [(each["policy"], each["driver"], each["jobs"]) for each in runs] == [
        ("fifo", "rounds", 2),
        ("las:thresholds=100", "rounds", 2),
    ]
    fifo = runs[0]
    # Decided at 60 s, after a start of 30 s; the second waits for the round after the end of the first.
    assert fifo["trace"] == str(trace)
    assert fifo["makespanSeconds"] == 720 + 30 + 60.5
    assert fifo["averageJctSeconds"] == (690 + (720 + 30 + 60.5 - 60)) / 2
    assert fifo["p99JctSeconds"] == 720 + 30 + 60.5 - 60
    assert fifo["seconds"] > 0
    assert runs[1]["averageJctSeconds"] < fifo["averageJctSeconds"]


def test_a_table_for_people(trace: Path) -> None:
    done = run(trace, "--cluster", "1x2", "--policy", "fifo")
    assert done.exit_code == 0
    assert "trace.csv" in done.stdout


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("0,abc,1", "trace.csv:2: duration: is 'abc'; it must be a number of at least 0"),
        ("0,-1,1", "trace.csv:2: duration: is '-1'; it must be a number of at least 0"),
        ("0,nan,1", "trace.csv:2: duration: is 'nan'; it must be a number of at least 0"),
        ("0,9,1.5", "trace.csv:2: num_gpus: is '1.5'; it must be a whole number"),
        ("yesterday,9,1", "trace.csv:2: timestamp: is 'yesterday'; it must be seconds, or a date"),
        ("0,9", "trace.csv:2: num_gpus: is missing"),
        ("0,9,3", "job job-2: needs 3 GPUs; the cluster has 2"),
        ("0,0,1", "trace.csv: has no jobs"),
    ],
)
def test_bad_lines_are_named(line: str, complaint: str, trace: Path) -> None:
    trace.write_text(f"{HEADER}{line}\n")
    done = run(trace, "--cluster", "1x2")
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cluster", "2"], "cluster '2': '2' is not NODESxGPUS"),
        (["--cluster", "1x2", "--policy", "theirs"], "unknown scheduling policy 'theirs'"),
        (["--cluster", "1x2", "--policy", "las:limit=3"], "limit: unknown setting of policy las; it takes thresholds"),
        (["--cluster", "1x2", "--policy", "las:thresholds=9/3"], "thresholds: (9.0, 3.0) are to be GPU-seconds"),
        (["--cluster", "1x2", "--policy", "las:promote=often"], "promote: 'often': Input should be a valid number"),
        (["--cluster", "1x2", "--policy", "fifo:speed=3"], "speed: unknown setting of policy fifo; it takes no"),
        (["--cluster", "1x2", "--format", "pollux"], "name their folder with --profiles"),
        (["--cluster", "1x2", "--profiles", "nowhere"], "--profiles: nowhere is not a folder"),
    ],
)
def test_bad_options_are_named(arguments: list[str], complaint: str, trace: Path) -> None:
    done = run(trace, *arguments)
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("a,0,resnet,1,128", "w.csv:2: application: is 'resnet'"),
        ("a,0,../bert,1,128", "w.csv:2: application: is '../bert'"),
        ("a,0,cifar10,1,9", "w.csv:2: batch_size: is 9; on 1 workers cifar10 was measured from 128 to 4096"),
        ("a,0,cifar10,0,128", "w.csv:2: num_replicas: is '0'"),
        ("a,0,cifar10,1,128\na,1,cifar10,1,128", "w.csv: name: two jobs are called 'a'"),
    ],
)
def test_bad_workloads_are_named(line: str, complaint: str, pollux: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(f"name,time,application,num_replicas,batch_size\n{line}\n")
    done = run(path, "--cluster", "16x4", "--format", "pollux", "--profiles", pollux / "traces")
    assert done.exit_code == 2
    assert complaint in done.output
