"""Simulated completion times beside published ones, by both drivers of the simulator, and their speed.

A row a policy, load and workload of the Pollux artifact (Qiao et al., OSDI 2021), on 16 nodes with 4 GPUs: the mean
completion time in simulated seconds, the published one, how many jobs differ, and how many simulated jobs a second of
CPU time takes, the median of three runs by rounds and of one through the operator's planner; `soonest` and `goodput`
are beside Pollux itself. Step times that must be interpolated are worked out once, before. Policies without published
figures are timed at twice the load. Then a row a policy and trace of Gavel (Narayanan et al., OSDI 2020), on 8 V100,
16 P100 and 24 K80 GPUs, by both drivers, beside what the simulator released with it prints with seed 0 and the solver
ECOS. Last, the milliseconds of a decision of `goodput`.

Takes 3 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random

from bench.command import Option
from bench.printing import Columns, Parts, Table
from bench.runs import unpacked
from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.planned_types import planned_types
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_lab.simulator.traces import read_pollux
from espalier_lab.simulator.typed import TypedRounds
from espalier_operator.policies import Policy
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, View

OPTIONS = {"data": Option(None, "folder of Pollux: workloads, traces, published; default: the tests'", type=Path)}
CLUSTER = "16x4"
LOADS = {"0.5": "half-load", "1": "full-load", "2": "double-load"}
POLICIES = {"tiresias": "tiresias", "optimus": "optimus", "soonest": "pollux", "goodput": "pollux"}
"""Ours, with the published one to compare."""
RUNS = 3
DRIVERS: Mapping[
    str, tuple[Callable[[Sequence[SimulatedJob], Sequence[SimulatedNode], Policy], Rounds | Planned], int]
] = {"rounds": (Rounds, RUNS), "plan": (Planned, 1)}
"""By name: what simulates, and how often."""
COLUMNS: Columns = (
    ("policy", "policy", ""),
    ("driver", "driver", ""),
    ("load", "load", ""),
    ("workload", "workload", ""),
    ("jobs", "jobs", "d"),
    ("mean JCT, s", "meanJctSeconds", ",.1f"),
    ("published", "publishedMeanJctSeconds", ",.1f"),
    ("different", "different", "d"),
    ("jobs/s", "jobsPerSecond", ",.0f"),
)

TIMED = ("las", "fair", "gittins")
"""Policies that nobody published figures of, timed at the highest load."""
SPEED_COLUMNS: Columns = tuple(each for each in COLUMNS if each[0] not in ("published", "different"))

DECISION_COLUMNS: Columns = (("jobs", "jobs", ",d"), ("cluster", "cluster", ""), ("ms", "milliseconds", ",.1f"))

GAVEL_CLUSTER = "8:16:24"
GAVEL_PUBLISHED = {
    ("max_min_fairness", "fifo"): (35_904.574, 196_524.281),
    ("max_min_fairness", "gavel:heterogeneity=false"): (19_989.255, 77_141.0),
    ("max_min_fairness", "gavel"): (14_622.820, 63_945.0),
    ("max_min_fairness", "gandiva"): (17_379.358, 67_405.0),
    ("max_min_fairness", "gandiva:seed=1"): (18_148.7, math.nan),
    ("max_min_fairness", "goodput"): (14_622.820, 63_945.0),
    ("minimize_makespan", "fifo"): (211_550.984, 274_227.734),
    ("minimize_makespan", "gandiva"): (35_074.731, 75_994.462),
    ("minimize_makespan", "gavel"): (35_658.966, 68_521.823),
    ("minimize_makespan", "goodput"): (35_658.966, 68_521.823),
    ("minimize_makespan", "gavel:objective=makespan,heterogeneity=false"): (71_950.287, 76_634.707),
    ("minimize_makespan", "gavel:objective=makespan"): (63_774.726, 64_720.835),
    ("minimize_makespan", "goodput:objective=makespan"): (63_774.726, 64_720.835),
}
"""Mean JCT and makespan in seconds, by trace and policy; nan: not published. Beside `goodput` stand Gavel's."""
GAVEL_COLUMNS: Columns = (
    ("policy", "policy", ""),
    ("driver", "driver", ""),
    ("trace", "trace", ""),
    ("jobs", "jobs", "d"),
    ("mean JCT, s", "meanJctSeconds", ",.1f"),
    ("published", "publishedMeanJctSeconds", ",.1f"),
    ("makespan, s", "makespanSeconds", ",.1f"),
    ("published", "publishedMakespanSeconds", ",.1f"),
    ("jobs/s", "jobsPerSecond", ",.0f"),
)


def simulated(
    path: Path, profiles: Profiles, policy: str, driver: str, more: int = 0
) -> tuple[dict[str, float], float]:
    """Return the completion times of a workload's jobs, and the median CPU seconds after `more` runs."""
    took, jcts = [], dict[str, float]()
    simulation, runs = DRIVERS[driver]
    for _ in range(runs + more):
        jobs = read_pollux(path, profiles, configured(policy).elasticity)
        made, began = simulation(jobs, nodes_of(CLUSTER), configured(policy)), time.process_time()
        made.run()
        took.append(time.process_time() - began)
        jcts = {job.name: (job.completed_at or 0.0) - job.submitted_at for job in jobs}
    return jcts, statistics.median(took[-runs:])


def rows(folder: Path) -> Iterator[dict[str, object]]:
    """Simulate every workload of `folder` under every policy."""
    profiles = Profiles(folder / "traces")
    for (policy, beside), driver, (load, name) in product(POLICIES.items(), DRIVERS, LOADS.items()):
        published = json.loads((folder / "published" / f"{beside}-{name}.json").read_text(encoding="utf-8"))
        prefix = "" if name == "full-load" else f"{name}-"
        for workload, jcts in sorted(published["jcts"].items()):
            path = folder / "workloads" / f"{prefix}{workload}.csv"
            ours, seconds = simulated(path, profiles, policy, driver, driver == "rounds")  # the first one interpolates
            yield {
                **{"policy": policy, "driver": driver, "load": load, "workload": workload, "jobs": len(ours)},
                "meanJctSeconds": statistics.fmean(ours.values()),
                "publishedMeanJctSeconds": statistics.fmean(jcts.values()),
                "different": sum(ours[job] != jct for job, jct in jcts.items()),
                "jobsPerSecond": len(ours) / seconds,
            }


def speed_rows(folder: Path) -> Iterator[dict[str, object]]:
    """Time the simulation of every workload of `folder` at twice the load, under the policies of `TIMED`."""
    profiles = Profiles(folder / "traces")
    for policy, driver, path in product(TIMED, DRIVERS, sorted((folder / "workloads").glob(f"{LOADS['2']}-*.csv"))):
        jcts, seconds = simulated(path, profiles, policy, driver)
        workload = path.stem.removeprefix(f"{LOADS['2']}-")
        yield {
            **{"policy": policy, "driver": driver, "load": "2", "workload": workload, "jobs": len(jcts)},
            "meanJctSeconds": statistics.fmean(jcts.values()),
            "jobsPerSecond": len(jcts) / seconds,
        }


class Curve:
    """A job whose goodput follows the model of Pollux (OSDI 2021, eq. 6 to 11), with 10 batch sizes to choose from."""

    remaining_steps = 10_000.0

    def __init__(self, chance: Random) -> None:
        self._compute, self._sync = chance.uniform(0.05, 0.3), chance.uniform(0.001, 0.05)
        self._noise, self.tried_workers = chance.uniform(100, 5000), chance.choice([1, 2, 4, 8, 16])

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step."""
        return self._compute / workers + self._sync

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the goodput with the best batch size."""
        sync = (self._sync * (nodes > 1) + 0.3 * self._sync * (workers - 2)) if workers > 1 else 0.0
        local = [16 * 2 ** (index / 2) for index in range(10)]
        return max(
            size * workers / (self._compute * size / 16 + sync) * (self._noise + 128) / (self._noise + size * workers)
            for size in local
        )


def decision_rows() -> Iterator[dict[str, object]]:
    """Time one decision of `goodput`, of jobs that have a worker each and may have 64; seed 0."""
    for count, cluster in ((160, "16x4"), (1000, "5000x8")):
        chance, nodes, took = Random(0), nodes_of(cluster), []
        jobs = tuple(
            Candidate(key=f"job-{index}", submitted_at=index, min_workers=1, max_workers=64) for index in range(count)
        )
        for _ in range(RUNS):
            view = View(
                now=5000.0,
                gpus=sum(node.gpus for node in nodes),
                jobs=jobs,
                nodes={node.name: node.gpus for node in nodes},
                speed_models={job.key: Curve(chance) for job in jobs},
            )
            began = time.process_time()
            configured("goodput").decide(view)
            took.append((time.process_time() - began) * 1000)
        yield {"jobs": count, "cluster": cluster, "milliseconds": statistics.median(took)}


def gavel_rows(folder: Path) -> Iterator[dict[str, object]]:
    """Simulate the traces of `folder` under the policies that figures were published for."""
    nodes = nodes_by_type(GAVEL_CLUSTER)
    cases = product(GAVEL_PUBLISHED.items(), DRIVERS.items())
    for ((trace, policy), (published_jct, published_makespan)), (driver, (_, runs)) in cases:
        took = []
        for _ in range(runs):
            typed = read_gavel(folder / f"{trace}.trace", Throughputs(folder))
            jobs, machines, latencies = planned_types(typed, nodes, LATENCIES["none"])
            made = (
                TypedRounds(typed, nodes, configured(policy))
                if driver == "rounds"
                else Planned(jobs, machines, configured(policy), latencies)
            )
            began = time.process_time()
            made.run()
            took.append(time.process_time() - began)
        found = outcome_of(typed if driver == "rounds" else jobs, sum(node.gpus for node in nodes))
        yield {
            "policy": policy,
            "driver": driver,
            "trace": trace,
            "jobs": found.jobs,
            "meanJctSeconds": found.average_jct,
            "publishedMeanJctSeconds": published_jct,
            "makespanSeconds": found.makespan,
            "publishedMakespanSeconds": published_makespan,
            "jobsPerSecond": found.jobs / statistics.median(took),
        }


def run(options: argparse.Namespace) -> Parts:
    """Simulate, and give the tables."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.data or unpacked("pollux", Path(scratch))
        yield Table.of(f"{CLUSTER} GPUs, {RUNS} runs", COLUMNS, rows(folder))
        yield Table.of(f"{CLUSTER} GPUs, policies without published figures", SPEED_COLUMNS, speed_rows(folder))
        by_type = gavel_rows(unpacked("gavel", Path(scratch)))
        yield Table.of(f"{GAVEL_CLUSTER} V100, P100 and K80 GPUs, {RUNS} runs", GAVEL_COLUMNS, by_type)
    yield Table.of(f"a decision of goodput, {RUNS} runs", DECISION_COLUMNS, decision_rows())
