"""Figures of a run: finish-time fairness on paper, and what a picture shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.simulate_command import simulate
from espalier_operator.policies.settings import configured
from espalier_operator.simulation.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_operator.simulation.jobs import FixedJob
from espalier_operator.simulation.outcome import fairness_of, outcome_of
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.rounds import Node, Rounds
from espalier_operator.simulation.traces import read_pollux
from espalier_operator.simulation.typed import TypedRounds


def ended(submitted: float, gpus: int, duration: float, completed: float) -> FixedJob:
    job = FixedJob(f"job-{submitted}", submitted, gpus, duration)
    job.completed_at = completed
    return job


def test_finish_time_fairness_on_paper() -> None:
    """Two jobs of 100 s: the first alone for 50 s, then both until 150 s, then the second alone until 250 s."""
    jobs = [ended(0.0, 4, 100.0, 150.0), ended(50.0, 1, 100.0, 250.0)]
    found = fairness_of(jobs, 4)
    # N is 5/3 for the first, which needs all 4 GPUs, and 3/2 for the second, whose part is more than the 1 it needs.
    first, second = 150 / (100 * 5 / 3), 200 / 100
    assert found is not None
    assert (found.mean, found.worst, found.unfair) == (pytest.approx((first + second) / 2), second, 0.5)


def test_a_job_alone_on_the_cluster_is_treated_fairly() -> None:
    found = fairness_of([ended(10.0, 4, 100.0, 110.0)], 4)
    assert found is not None
    assert (found.mean, found.worst, found.unfair) == (1.0, 1.0, 0.0)


def test_losing_some_workers_is_a_preemption_and_losing_all_an_eviction_too() -> None:
    job = FixedJob("a", 0.0, 4, 100.0)
    for placement in ((4,), (2,), (2, 2), (), (1,)):
        job.place(placement)
    assert (job.preemptions, job.evictions) == (2, 1)


def test_a_job_of_pollux_alone_takes_as_long_as_it_would_alone(pollux: Path) -> None:
    """The time alone, worked out epoch by epoch, is that of a simulation, but for its start and for whole seconds."""
    jobs = read_pollux(pollux / "workloads" / "workload-1.csv", Profiles(pollux / "traces"))
    for job in [next(job for job in jobs if job.name.startswith(name)) for name in ("cifar10", "ncf", "bert")]:
        Rounds([job], [Node(f"n{index}", 4) for index in range(16)], configured("tiresias")).run()
        took = (job.completed_at or 0.0) - job.submitted_at
        assert job.seconds_alone() <= took <= job.seconds_alone() * 1.05 + 90
        found = outcome_of([job], 64).fairness
        assert found is not None
        assert found.mean == pytest.approx(took / job.seconds_alone())


def test_gavel_is_fairer_than_first_come_first_served(gavel: Path) -> None:
    found = {}
    for policy in ("gavel", "fifo"):
        jobs = read_gavel(gavel / "max_min_fairness.trace", Throughputs(gavel))
        TypedRounds(jobs, nodes_by_type("8:16:24"), configured(policy)).run()
        found[policy] = outcome_of(jobs, 48).fairness
    assert found["gavel"] is not None
    assert found["fifo"] is not None
    assert found["gavel"].worst < 1.2 < 5 < found["fifo"].worst


@pytest.mark.parametrize("form", ["csv", "pollux", "gavel"])
def test_all_formats_have_all_metrics(form: str, pollux: Path, gavel: Path, tmp_path: Path) -> None:
    trace, cluster, profiles = tmp_path / "t.csv", "16x4", []
    if form == "csv":
        trace.write_text("timestamp,duration,num_gpus\n0,600,64\n0,60,1\n")
    elif form == "pollux":
        lines = (pollux / "workloads" / "workload-1.csv").read_text().splitlines()
        trace.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("ncf"))]))
        profiles = ["--profiles", str(pollux / "traces")]
    else:
        trace, cluster = gavel / "max_min_fairness.trace", "8:16:24"
    options = ["--format", form, "--cluster", cluster, "--policy", "fifo", "--policy", "gandiva"]
    done = CliRunner().invoke(simulate, [str(trace), *options, *profiles, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for run in json.loads(done.stdout)["runs"]:
        assert 0 < run["medianJctSeconds"] <= run["p99JctSeconds"] <= run["makespanSeconds"]
        assert 0 < run["utilisation"] <= 1
        assert 0 <= run["evictions"] <= run["preemptions"]
        fairness = run["finishTimeFairness"]
        assert 0 < fairness["mean"] <= fairness["worst"]
        assert 0 <= fairness["unfairFraction"] <= 1
        assert run["accuracyGained"] is None
        assert run["notApplicable"] == dict.fromkeys(("accuracyGained", "lentGpuHours"), "no job of the trace grows")
