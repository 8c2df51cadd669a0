"""How should GPUs be shared among jobs with all-reduce? Learnt allocation on Pollux' workloads that it never saw.

The traces are the workloads 1, 2, 3 and 6 of the Pollux artifact (Qiao et al., OSDI 2021) at three loads, on 16 nodes
with 4 GPUs; all ways of allocating see the same jobs, with the batch sizes that their authors chose, by the simulator's
rounds (docs/reports/learned-scheduling.md). The figures are mean completion times in seconds, in the mean over traces.
  tiresias, optimus, goodput    the operator's policies; `goodput` may not change batch sizes here
  optimus-ahead                 Optimus, looking over numbers of workers that are no faster
  soonest                       log gain × (60 s + rest) ** -½: a rule of ours that prefers jobs that end soon
  imitation                     the network that imitates `soonest`, before PPO
  learned                       after PPO
  published Pollux              as published; it changes batch sizes, which the others may not
Each network is judged on workloads that it did not learn from: those that learnt from the workloads 1 and 2 on 3 and 6,
and the other way round, two networks a seed. `below` is by how many percent the completion time of `learned` is below
that of the row, in the mean over traces of the mean over seeds, with its 95 % interval (Student's t over traces).

What was learnt is kept in --work-dir, and not learnt again. Takes 10 minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.cases.learned import learnt_once
from bench.command import Option
from bench.printing import Parts, Table
from bench.runs import unpacked
from bench.statistics import saved
from espalier_lab.scheduling.allocation.forms import WorkerForm
from espalier_lab.scheduling.allocation.learning import learn_workers
from espalier_lab.scheduling.allocation.workloads import Mixed, StepByStep
from espalier_lab.scheduling.learned.files import AllocationPolicy
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learners.learner import LearnerSettings
from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds
from espalier_lab.simulator.traces import read_pollux
from espalier_operator.policies import Policy
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Elasticity

CLUSTER: Final = "16x4"
HALVES: Final = (("1", "2"), ("3", "6"))
"""Workloads that are learnt from together; each half is judged by what learnt from the other one."""
LOADS: Final = {"0.5": "half-load", "1": "full-load", "2": "double-load"}
SETTINGS: Final = LearnerSettings(
    teacher="soonest", imitation_epochs=10, imitation_rate=3e-3, rate=5e-4, decisions=80_000
)
MOST_JOBS: Final = 60
"""Of an episode to learn from."""
RULES: Final = ("tiresias", "optimus", "goodput", "optimus-ahead", "soonest")
OPERATORS: Final = ("tiresias", "optimus", "goodput")
"""Of these, the operator's policies."""

OPTIONS: Final = {
    "seeds": Option(3),
    "beside": Option(1, "seeds of the row `imitation`; 0 leaves it out"),
    "decisions": Option(SETTINGS.decisions, "that PPO learns from"),
    "imitated": Option(SETTINGS.imitated, "decisions of the rule that are imitated before"),
    "loads": Option(list(LOADS), "at which traces are judged", tuple(LOADS)),
    "data": Option(None, "folder of Pollux: workloads, traces, published; default: the tests'", type=Path),
}
QUICK: Final = {"seeds": 1, "decisions": 20_000, "imitated": 4_000, "loads": list(LOADS)[:1]}

Trace = tuple[str, str]
"""Load and workload."""
Found = dict[str, list[dict[Trace, float]]]
"""By row: for each seed, the mean completion time of each trace, seconds."""


class Workloads:
    """The published traces."""

    def __init__(self, folder: Path) -> None:
        """Read them from here when they are asked for."""
        self._folder, self._profiles = folder, Profiles(folder / "traces")

    def jobs(self, trace: Trace, elasticity: Elasticity = Elasticity.WORKERS) -> list[SimulatedJob]:
        """Return the jobs of a trace, to which nothing was done yet."""
        load, workload = trace
        prefix = "" if load == "1" else f"{LOADS[load]}-"
        return read_pollux(self._folder / "workloads" / f"{prefix}workload-{workload}.csv", self._profiles, elasticity)

    def published(self, trace: Trace) -> float:
        """Return the mean completion time that was published for Pollux."""
        load, workload = trace
        found = json.loads((self._folder / "published" / f"pollux-{LOADS[load]}.json").read_text(encoding="utf-8"))
        return statistics.fmean(found["jcts"][f"workload-{workload}"].values())


def traces_of(half: Sequence[str], loads: Sequence[str] = ()) -> list[Trace]:
    """Return the traces of these workloads, at all loads by default."""
    return [(load, workload) for load in loads or LOADS for workload in half]


def seconds(workloads: Workloads, trace: Trace, policy: Policy) -> float:
    """Return the mean completion time of a trace under a policy."""
    # Tiresias leaves the number of workers to the author; nobody changes batch sizes.
    fixed = policy.elasticity is Elasticity.FIXED
    jobs = workloads.jobs(trace, Elasticity.FIXED if fixed else Elasticity.WORKERS)
    nodes = nodes_of(CLUSTER)
    Rounds(jobs, nodes, policy).run()
    return outcome_of(jobs, sum(node.gpus for node in nodes)).average_jct


def learnt(
    workloads: Workloads, half: Sequence[str], settings: LearnerSettings, seed: int, title: str, folder: Path
) -> AllocationPolicy:
    """Learn a policy from these workloads, or read it from the folder where it was learnt before."""

    def learn(progress: Callable[[str], None]) -> AllocationPolicy:
        what = f"Pollux' workloads {' and '.join(half)} at three loads, mixed"
        return learn_workers(seed, settings, form_of(workloads, half), what, progress=progress)

    return learnt_once(folder, f"{title}-{'-'.join(half)}-{seed}", learn)


def form_of(workloads: Workloads, half: Sequence[str]) -> WorkerForm:
    """Return the episodes to learn from."""
    return WorkerForm(
        Mixed([workloads.jobs(trace) for trace in traces_of(half)], MOST_JOBS), nodes_of(CLUSTER), MOST_JOBS
    )


def judged(
    workloads: Workloads, policies: Mapping[tuple[str, ...], Policy], loads: Sequence[str]
) -> dict[Trace, float]:
    """Return the mean completion time of each trace; `policies` has the one that is judged on each half."""
    return {
        trace: seconds(workloads, trace, policy)
        for half, policy in policies.items()
        for trace in traces_of(half, loads)
    }


def rule(name: str) -> Policy:
    """Return a policy that does not learn."""
    return configured(name) if name in OPERATORS else StepByStep(name)


def table(found: Found, loads: Sequence[str]) -> Table:
    """Return mean completion times at these loads."""
    traces = [trace for trace in next(iter(found["learned"])) if trace[0] in loads]
    mean = {
        name: {trace: statistics.fmean(seed[trace] for seed in seeds) for trace in traces}
        for name, seeds in found.items()
    }
    rows = []
    for name, seeds in found.items():
        theirs = mean[name]
        below = saved(*([of[trace] for trace in traces] for of in (mean["learned"], theirs)))
        by_seed = [statistics.fmean(seed[trace] for trace in traces) for seed in seeds]
        rows.append(
            (
                name,
                f"{statistics.fmean(theirs.values()):,.0f}",
                f"{min(by_seed):,.0f} to {max(by_seed):,.0f}" if len(seeds) > 1 else "",
                "" if name == "learned" else below.text(".1f"),
                "" if name == "learned" else f"{below.wins} of {below.count}",
            )
        )
    head = ("allocated by", "seconds", "by seed", "below, %", "traces")
    return Table(f"load {', '.join(loads)}: {len(traces)} traces", head, rows)


def run(options: argparse.Namespace) -> Parts:
    """Learn, judge, and give a table for each load, and one for all."""
    loads, settings = options.loads, replace(SETTINGS, decisions=options.decisions, imitated=options.imitated)
    with tempfile.TemporaryDirectory() as scratch:
        workloads = Workloads(options.data or unpacked("pollux", Path(scratch)))
        found: Found = {name: [judged(workloads, dict.fromkeys(HALVES, rule(name)), loads)] for name in RULES}
        imitation = replace(settings, decisions=0)
        rows = (("learned", settings, options.seeds), ("imitation", imitation, min(options.beside, options.seeds)))
        for title, chosen, number in rows:
            for seed in range(number):
                learners = [learnt(workloads, half, chosen, seed, title, options.work_dir) for half in HALVES]
                other = dict(zip(HALVES, map(LearnedAllocation, reversed(learners)), strict=True))
                found.setdefault(title, []).append(judged(workloads, other, loads))
        every = [trace for half in HALVES for trace in traces_of(half, loads)]
        found["published Pollux"] = [{trace: workloads.published(trace) for trace in every}]
    for some in dict.fromkeys([*((load,) for load in loads), tuple(loads)]):
        yield table(found, some)
