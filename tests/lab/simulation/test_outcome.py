"""Figures of a run: finish-time fairness on paper, and what a picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_lab.simulator.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.jobs import FixedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import EndedJob, fairness_of, outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.planned_types import planned_types
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_lab.simulator.traces import read_pollux
from espalier_lab.simulator.typed import TypedRounds
from espalier_operator.policies.settings import configured
from small_simulations import figures, on_types


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
    assert (found.mean, found.worst, found.unfair) == (pytest.approx((first + second) / 2), second, 0.5)


def test_a_job_alone_on_the_cluster_is_treated_fairly() -> None:
    found = fairness_of([ended(10.0, 4, 100.0, 110.0)], 4)
    assert (found.mean, found.worst, found.unfair) == (1.0, 1.0, 0.0)


def test_losing_some_workers_is_a_preemption_and_losing_all_an_eviction_too() -> None:
    job = FixedJob("a", 0.0, 4, 100.0)
    for placement in ((4,), (2,), (2, 2), (), (1,)):
        job.place(placement)
    assert (job.preemptions, job.evictions) == (2, 1)


@pytest.mark.parametrize("driver", ["rounds", "none", "realistic"])
@given(
    submitted=st.floats(0, 1e6) | st.integers(0, 10**6).map(float),
    duration=st.floats(1e-3, 1e5),
    gpus=st.integers(1, 8),
    policy=st.sampled_from(["fifo", "las", "fair", "tiresias"]),
)
def test_a_job_alone_in_any_driver_is_treated_fairly(
    driver: str, submitted: float, duration: float, gpus: int, policy: str
) -> None:
    job, nodes = FixedJob("alone", submitted, gpus, duration), [SimulatedNode(f"n{index}", 4) for index in range(2)]
    if driver == "rounds":
        Rounds([job], nodes, configured(policy)).run()
    else:
        Planned([job], nodes, configured(policy), LATENCIES[driver]).run()
    alone_is_fair([job], 8)


@pytest.mark.parametrize("latency", ["none", "realistic"])
def test_a_job_alone_on_gpus_of_one_type_is_treated_fairly(latency: str, gavel: Path) -> None:
    first = read_gavel(gavel / "max_min_fairness.trace", Throughputs(gavel))[7]
    nodes = nodes_by_type("8:0:0")
    TypedRounds([first], nodes, configured("gavel")).run()
    alone_is_fair([first], 8)
    again = read_gavel(gavel / "max_min_fairness.trace", Throughputs(gavel))[7]
    jobs, machines, latencies = planned_types([again], nodes, LATENCIES[latency])
    Planned(jobs, machines, configured("gavel"), latencies).run()
    alone_is_fair(jobs, 8)


@pytest.mark.parametrize("driver", ["rounds", "realistic"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_job_of_pollux_alone_is_treated_fairly(driver: str, size: int, pollux: Path) -> None:
    jobs = read_pollux(pollux / "workloads" / "workload-1.csv", Profiles(pollux / "traces"))
    nodes = [SimulatedNode(f"n{index}", size) for index in range(64 // size)]
    for job in [next(job for job in jobs if job.name.startswith(name)) for name in ("cifar10", "ncf", "bert")]:
        if driver == "rounds":
            Rounds([job], nodes, configured("tiresias")).run()
        else:
            Planned([job], nodes, configured("tiresias"), LATENCIES[driver]).run()
        alone_is_fair([job], 64)


def alone_is_fair(jobs: Sequence[EndedJob], gpus: int) -> None:
    found = outcome_of(jobs, gpus).fairness
    assert (found.mean, found.worst, found.unfair) == (pytest.approx(1.0), pytest.approx(1.0), 0.0)


def test_gavel_is_fairer_than_first_come_first_served(gavel: Path) -> None:
    fair, unfair = (on_types(gavel / "max_min_fairness.trace", policy).fairness for policy in ("gavel", "fifo"))
    assert fair.worst < 1.2 < 5 < unfair.worst


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
    for run in figures(trace, *options, *profiles)["runs"]:
        assert 0 < run["medianJctSeconds"] <= run["p99JctSeconds"] <= run["makespanSeconds"]
        assert 0 < run["utilisation"] <= 1
        assert 0 <= run["evictions"] <= run["preemptions"]
        fairness = run["finishTimeFairness"]
        assert 0 < fairness["mean"] <= fairness["worst"]
        assert 0 <= fairness["unfairFraction"] <= 1
        assert run["accuracyGained"] is None
        assert run["notApplicable"] == dict.fromkeys(("accuracyGained", "lentGpuHours"), "no job of the trace grows")
