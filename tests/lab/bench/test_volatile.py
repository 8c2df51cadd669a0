"""The benchmark of GPUs that come and go: its traces, what it counts, its tables, and one run of real processes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cases.volatile import tables
from bench.command import main
from bench.joining.place import Step
from bench.volatile.device import BATCH
from bench.volatile.playing import Played, counted, longest_stop
from bench.volatile.traces import MOST_GPUS, RATES, SECONDS, trace


@given(name=st.sampled_from(sorted(SECONDS)), seed=st.integers(0, 99), length=st.floats(0.1, 2))
def test_a_trace_changes_between_one_and_all_gpus_within_its_time(name: str, seed: int, length: float) -> None:
    changes = trace(name, seed, length)
    assert changes[0].second == 0
    assert all(1 <= change.gpus <= MOST_GPUS for change in changes)
    assert all(0 <= change.second < length * SECONDS[name] for change in changes)
    assert all(one.second < two.second and one.gpus != two.gpus for one, two in pairwise(changes))
    if name in RATES:
        assert all(abs(one.gpus - two.gpus) == 1 for one, two in pairwise(changes))
        assert all(two.second - one.second == pytest.approx(length * RATES[name]) for one, two in pairwise(changes[1:]))


def steps_of(*found: tuple[float, int, int]) -> list[Step]:
    return [Step(ended, number, world, world) for ended, number, world in found]


def test_steps_that_are_taken_again_count_once_and_a_step_of_two_replicas_too() -> None:
    restarted = steps_of((1.0, 1, 2), (2.0, 2, 2), (3.0, 3, 2), (8.0, 2, 1), (9.0, 3, 1), (11.0, 4, 1))
    assert counted(restarted, 1.0, 10.0) == (2 * BATCH, 9.0), "step 2 and 3, by one worker in the end"
    replicas = steps_of((1.0, 1, 2), (1.1, 1, 2), (2.0, 2, 2), (2.1, 2, 2))
    assert counted(replicas, 1.0, 10.0) == (2 * BATCH, 2.1), "the first step ended before the count began"
    assert counted([], 1.0, 10.0) == (0, 1.0)


def test_a_stop_may_be_at_the_end() -> None:
    steps = steps_of((1.0, 1, 1), (2.0, 2, 1), (5.0, 1, 1))
    assert longest_stop(steps, 1.0, 5.5) == 3.0
    assert longest_stop(steps, 1.0, 9.0) == 4.0


def played(way: str, name: str, seed: int, useful: int) -> Played:
    fixed = {"notice": False, "length": 1, "computed": 2000, "gpu_seconds": 10, "stop": 1, "mended": 0, "load": 1}
    return Played.model_validate(
        {**fixed, "way": way, "trace": name, "seed": seed, "useful": useful, "loss": None, "accuracy": None}
    )


def test_shares_are_of_plain_training_without_a_change_and_differences_of_pairs() -> None:
    calm = [played("restart", "calm", seed, 2000) for seed in (0, 1)]
    found = [played("Espalier", "minute", seed, 1900 + 20 * seed) for seed in (0, 1)]
    found += [played("restart", "minute", seed, 1000 + 20 * seed) for seed in (0, 1)]
    _, minute = tables([*calm, *found])
    rows = {row[0]: row[1:] for row in minute.rows}
    assert rows["Espalier"][0].startswith("0.955 ±")
    assert rows["restart"][0].startswith("0.505 ±")
    assert rows["restart"][1] == "**+0.450 (+0.450, +0.450)**"
    assert rows["Espalier"][3].startswith("4.5 ±"), "of what was computed, this is not in the weights"


@pytest.mark.timeout(800)
def test_real_processes_train_and_a_second_call_finds_the_runs_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    for missing in (4, 0):
        main(["volatile", "--quick", "--notice", "without", "--work-dir", str(tmp_path), "--json", str(file)])
        assert capsys.readouterr().err.count("seed 0") == missing
    runs = [Played.model_validate(run) for run in json.loads(file.read_text())["runs"]]
    assert {(run.way, run.trace) for run in runs} == {
        ("Espalier", "calm"),
        ("restart", "calm"),
        ("Espalier", "twenty"),
        ("restart", "twenty"),
    }
    assert all(run.gpu_seconds > 0 and run.stop > 0 for run in runs)
    calm = [run for run in runs if run.trace == "calm"]
    assert all(run.computed >= run.useful > 0 for run in calm)
