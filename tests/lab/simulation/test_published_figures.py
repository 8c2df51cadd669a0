"""Figures of the simulators beside those that were published."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds
from espalier_lab.simulator.traces import read_pollux
from espalier_operator.policies.settings import configured

LOADS = {"half-load": "half-load-", "full-load": "", "double-load": "double-load-"}


@pytest.mark.sweep("traces of Pollux")
@pytest.mark.parametrize("workload", [1, 2, 3, 6])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_each_job_completes_when_it_was_published_to(
    policy: str, load: str, workload: int, pollux: Path, profiles: Profiles
) -> None:
    published = json.loads((pollux / "published" / f"{policy}-{load}.json").read_text())
    jobs = read_pollux(pollux / "workloads" / f"{LOADS[load]}workload-{workload}.csv", profiles)
    Rounds(jobs, nodes_of("16x4"), configured(policy)).run()
    took = {job.name: (job.completed_at or 0.0) - job.submitted_at for job in jobs}
    assert took == published["jcts"][f"workload-{workload}"]


def test_tiresias_is_las_with_other_settings(pollux: Path, profiles: Profiles) -> None:
    completed = []
    for policy in ("tiresias", "las:thresholds=57600,lend=false,promote=0"):
        jobs = read_pollux(pollux / "workloads" / "workload-6.csv", profiles)
        Rounds(jobs, nodes_of("16x4"), configured(policy)).run()
        completed.append([job.completed_at for job in jobs])
    assert completed[0] == completed[1]


GATES = [
    *(("tiresias", load, workload) for load in ("half-load", "full-load") for workload in (1, 2, 3, 6)),
    *(("optimus", "half-load", workload) for workload in (1, 2, 3, 6)),
    ("tiresias", "double-load", 3),
    ("optimus", "full-load", 6),
]
"""Those that take at most a few seconds each; `make bench-policies` has all."""


@pytest.mark.sweep("traces of Pollux")
@pytest.mark.parametrize(("policy", "load", "workload"), GATES)
def test_jobs_take_as_long_as_published_on_average(
    policy: str, load: str, workload: int, pollux: Path, profiles: Profiles
) -> None:
    published = json.loads((pollux / "published" / f"{policy}-{load}.json").read_text())["jcts"]
    jobs = read_pollux(pollux / "workloads" / f"{LOADS[load]}workload-{workload}.csv", profiles)
    Planned(jobs, nodes_of("16x4"), configured(policy)).run()
    took = [(job.completed_at or 0.0) - job.submitted_at for job in jobs]
    assert statistics.fmean(took) == pytest.approx(
        statistics.fmean(published[f"workload-{workload}"].values()), rel=0.02
    )
