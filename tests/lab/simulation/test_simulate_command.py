"""`espalier simulate`: what scripts read, and what is said about files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from espalier_lab.simulator.holdings import HeldSpan, hold
from small_simulations import figures, refusal, simulated


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(
        "timestamp,duration,num_gpus\n2017-10-09 07:00:00,600,2\n2017-10-09 07:01:00,60.5,1\n2017-10-09 06:59:00,9,0\n"
    )
    return path


def test_json_for_scripts(trace: Path) -> None:
    runs = figures(trace, "--cluster", "1x2", "--policy", "fifo", "--policy", "las:thresholds=100")["runs"]
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


def test_both_drivers_agree_where_nothing_takes_time(trace: Path) -> None:
    found = {}
    for driver in ("rounds", "plan"):
        (one,) = figures(trace, "--cluster", "1x2", "--policy", "las:thresholds=100", "--driver", driver)["runs"]
        found[driver] = one | {"seconds": 0}
    assert found["plan"].pop("driver") == "plan"
    assert found["rounds"].pop("driver") == "rounds"
    assert found["plan"] == found["rounds"]
    assert found["plan"]["evictions"] == 1


def test_what_takes_time_and_who_yields_can_be_chosen(trace: Path) -> None:
    found = {}
    for options in ((), ("--latency", "realistic"), ("--base-preemption", "Never")):
        planned = ("--cluster", "1x2", "--policy", "las:thresholds=100", "--driver", "plan")
        found[options[-1] if options else "none"] = figures(trace, *planned, *options)["runs"][0]
    assert found["none"]["averageJctSeconds"] < found["realistic"]["averageJctSeconds"]
    assert (found["none"]["evictions"], found["Never"]["evictions"]) == (1, 0)


def test_a_table_for_people(trace: Path) -> None:
    done = simulated(trace, "--cluster", "1x2", "--policy", "fifo")
    assert done.exit_code == 0
    assert "trace.csv" in done.stdout
    assert "EVICTIONS" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cluster", "2"], "cluster '2': '2' is not NODESxGPUS"),
        (["--cluster", "1x2", "--policy", "theirs"], "unknown scheduling policy 'theirs'"),
        (["--cluster", "1x2", "--policy", "las:limit=3"], "limit: unknown setting of policy las; it takes thresholds"),
        (["--cluster", "1x2", "--policy", "las:thresholds=9/3"], "thresholds: (9.0, 3.0) are invalid; must be GPU"),
        (["--cluster", "1x2", "--policy", "las:promote=often"], "promote: 'often': Input should be a valid number"),
        (["--cluster", "1x2", "--policy", "las:promote=nan"], "promote: nan is invalid; must be at least 0"),
        (["--cluster", "1x2", "--policy", "fair:speed=3"], "speed: unknown setting of policy fair; it takes no"),
        (["--cluster", "1x2", "--format", "pollux"], "name their folder with --profiles"),
        (["--cluster", "1x2", "--profiles", "nowhere"], "--profiles: nowhere is not a folder"),
        (
            ["--cluster", "1x2", "--latency", "none"],
            "--latency none: nothing takes time or asks for leave with --driver rounds; add",
        ),
        (["--cluster", "1x2", "--base-preemption", "Never"], "--base-preemption Never: nothing takes time"),
    ],
)
def test_bad_options_are_named(arguments: list[str], complaint: str, trace: Path) -> None:
    assert complaint in refusal(trace, *arguments)


def test_gavel_goes_through_the_planner_too(gavel: Path) -> None:
    trace = gavel / "max_min_fairness.trace"
    options = ["--format", "gavel", "--cluster", "8:16:24", "--policy", "goodput", "--driver", "plan"]
    (found,) = figures(trace, *options)["runs"]
    assert (found["driver"], found["jobs"]) == ("plan", 96)
    assert found["averageJctSeconds"] < 14_622.8
    assert found["finishTimeFairness"]["mean"] > 0


def test_the_throughputs_of_gavel_are_found_beside_the_trace(gavel: Path) -> None:
    trace = gavel / "max_min_fairness.trace"
    options = ["--format", "gavel", "--cluster", "8:16:24", "--policy", "fifo", "--driver", "rounds"]
    (found,) = figures(trace, *options)["runs"]
    assert found["averageJctSeconds"] == pytest.approx(35_904.574, abs=5e-4)
    assert found["makespanSeconds"] == pytest.approx(196_524.281, abs=5e-4)
    assert found["jobs"] == 96


LINE = ["ResNet-18 (batch size 16)", "python3", ".", "-n", "1", "100", "1", "1", "-1.000000", "0"]
KIND = "('ResNet-18 (batch size 16)', 1)"


@pytest.mark.parametrize(
    ("throughputs", "cluster", "complaint"),
    [
        (None, "8:16:24", "simulation_throughputs.json: cannot be read: No such file or directory; name the measured"),
        ("{", "8:16:24", "simulation_throughputs.json: cannot be read: "),
        ({"v100": {KIND: {"null": "fast"}}}, "8:16:24", "null: is 'fast'; it must be steps per second"),
        ({"v100": {KIND: {"null": 1e308}}}, "8:16:24", "null: is 1e+308; it must be steps per second, 0 or from 1e-09"),
        ({"v100": {KIND: {"null": 1e-300}}}, "8:16:24", "null: is 1e-300; it must be steps per second, 0 or from"),
        ({"v100": {KIND: {"null": 10.0}}}, "16x4", "cluster '16x4': must be V100S:P100S:K80S"),
        ({"v100": {KIND: {"null": 10.0}}}, "0:0:0", "cluster '0:0:0': must be V100S:P100S:K80S"),
        (
            {"v100": {str((LINE[0], 1)): {"null": 10.0}}},
            "0:16:24",
            "job job-0: needs 1 GPUs of one type on which it was",
        ),
    ],
)
def test_what_gavel_needs_is_named(throughputs: object, cluster: str, complaint: str, tmp_path: Path) -> None:
    if throughputs is not None:
        text = throughputs if isinstance(throughputs, str) else json.dumps(throughputs)
        (tmp_path / "simulation_throughputs.json").write_text(text)
    path = tmp_path / "t.trace"
    path.write_text("\t".join(LINE) + "\n")
    said = refusal(path, "--cluster", cluster, "--format", "gavel", "--profiles", tmp_path)
    assert complaint in said.replace("\n", " ")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_what_came_out_is_drawn(suffix: str, trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / f"runs.{suffix}"
    done = simulated(trace, "--cluster", "1x2", "--policy", "fifo", "--policy", "las", "--picture", picture)
    assert done.exit_code == 0, done.output
    drawn = picture.read_bytes()
    assert drawn.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert suffix == "png" or b"axes_3" in drawn


def test_a_picture_that_cannot_be_drawn_is_named_before_anything_is_simulated(tmp_path: Path) -> None:
    for name, words in (("runs.bmp", "must end with .png or .svg"), ("no/folder/runs.png", "there is no folder")):
        said = refusal(tmp_path / "missing.csv", "--cluster", "1x2", "--picture", tmp_path / name)
        assert "Invalid value for '--picture'" in said
        assert words in said


def test_results_are_printed_even_if_their_picture_cannot_be_written(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "runs.png"
    picture.symlink_to("/dev/full")
    done = simulated(trace, "--cluster", "1x2", "--json", "--picture", picture)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["runs"]
    assert f"error: --picture: {picture}: cannot be written: No space left on device" in done.stderr


def test_spans_of_a_job_add_up_to_its_service() -> None:
    spans: list[HeldSpan] = []
    service = sum(
        hold(spans, *span) for span in ((0.0, 60.0, 2), (60.0, 120.0, 2), (120.0, 180.0, 0), (180.0, 200.0, 1))
    )
    assert spans == [(0.0, 120.0, 2), (180.0, 200.0, 1)]
    assert service == 260.0
