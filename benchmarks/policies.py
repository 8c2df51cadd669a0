"""Simulated completion times beside published ones: `.venv/bin/python benchmarks/policies.py [--data DIR] [--json]`.

A row a policy, load and workload of the Pollux artifact (Qiao et al., OSDI 2021), on 16 nodes with 4 GPUs: the mean
completion time in simulated seconds, the published one, how many jobs differ, and how many simulated jobs a second of
CPU time takes, the median of three runs. Step times that must be interpolated are worked out once, before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tarfile
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from harness.printed import Columns, columned, environment

from espalier_operator.policies.settings import configured
from espalier_operator.simulation.cluster import nodes_of
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.rounds import Rounds
from espalier_operator.simulation.traces import read_pollux

ARCHIVE = Path(__file__).parents[1] / "tests" / "data" / "pollux.tar.gz"
CLUSTER = "16x4"
LOADS = {"0.5": "half-load", "1": "full-load", "2": "double-load"}
POLICIES = ("tiresias", "optimus")
RUNS = 3
COLUMNS: Columns = (
    ("policy", "policy", ""),
    ("load", "load", ""),
    ("workload", "workload", ""),
    ("jobs", "jobs", "d"),
    ("mean JCT, s", "meanJctSeconds", ",.1f"),
    ("published", "publishedMeanJctSeconds", ",.1f"),
    ("different", "different", "d"),
    ("jobs/s", "jobsPerSecond", ",.0f"),
)


def rows(folder: Path) -> Iterator[dict[str, object]]:
    """Simulate every workload of `folder` under every policy."""
    profiles = Profiles(folder / "traces")
    for policy, (load, name) in product(POLICIES, LOADS.items()):
        published = json.loads((folder / "published" / f"{policy}-{name}.json").read_text(encoding="utf-8"))
        prefix = "" if name == "full-load" else f"{name}-"
        for workload, jcts in sorted(published["jcts"].items()):
            took, ours = [], dict[str, float]()
            for _ in range(RUNS + 1):  # the first one interpolates
                jobs = read_pollux(folder / "workloads" / f"{prefix}{workload}.csv", profiles)
                rounds, began = Rounds(jobs, nodes_of(CLUSTER), configured(policy)), time.process_time()
                rounds.run()
                took.append(time.process_time() - began)
                ours = {job.name: (job.completed_at or 0.0) - job.submitted_at for job in jobs}
            yield {
                "policy": policy,
                "load": load,
                "workload": workload,
                "jobs": len(ours),
                "meanJctSeconds": statistics.fmean(ours.values()),
                "publishedMeanJctSeconds": statistics.fmean(jcts.values()),
                "different": sum(ours[job] != jct for job, jct in jcts.items()),
                "jobsPerSecond": len(ours) / statistics.median(took[1:]),
            }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with workloads, traces and published; default: the tests'")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.data
        if folder is None:
            with tarfile.open(ARCHIVE) as archive:
                archive.extractall(scratch, filter="data")
            folder = Path(scratch) / "pollux"
        found = list(rows(folder))
    if arguments.json:
        print(json.dumps({"environment": environment(), "rows": found}, indent=1))
        return
    print(columned(f"{CLUSTER} GPUs, {RUNS} runs", COLUMNS, found))
    print(environment())


if __name__ == "__main__":
    main()
