"""Does the best bid gain most? Jobs that learn as real models did share spare GPUs that come and go, by each policy.

Twelve models are trained once, alone, faster, and grown at several moments (bench/learning_job.py): classifiers,
regressions and small language models of the families that judge the shipped policy, which has not met them. It advises
five of them to grow. Budgets end at 1,000 steps, too few for the language models to gain by growing. Six jobs of these
models with a base GPU each start within ten minutes, for 45 to 60 minutes of virtual time; each can use up to three
more GPUs, to train faster or to grow, once. One to four GPUs are spare, a third of the spot instances of a trace
(bench/volatile/traces.py: AWS, 21 changes in 90 minutes), which begins elsewhere for each seed. The planner is the
operator's, with realistic latencies. The shipped policy advises and forecasts; language models race, the others do not
try its advice. Speeds by workers are those measured for applications of Pollux (Qiao et al., OSDI 2021), one drawn for
each job; costs of layers are modelled. Policies, with the same trace, jobs and seeds:
  fair      spare GPUs in equal parts
  goodput   where they speed up most; it knows the true speeds, and so do the bids
  growth    `value` by the bids for growths and races alone, as the policy of that name
  slices    one spare GPU a job, the least served first, again each 600 s (bench/cases/spare_gpus.py)
  value     the highest bid
  fixed     each job with the workers that it had under `value`, not grown or grown before the first step, whichever
            validates better in the end
`gained` is the share of what a job without lent GPUs lacks of a perfect score (accuracy or R² of 1, 0 bits per
character) that it lacks less on the test split, in percent, a mean over jobs; `lent` is GPU-hours a job, and `an hour`
the quotient. Differences are paired by seed, with 95 % intervals (Student's t); a seed draws jobs, speeds and trace,
not models or their trainings.

Aims, written before the first run: `value` gains more than fair, goodput, growth, slices and fixed, each with an
interval that excludes 0. What there was to choose was chosen on seeds 100 to 109: a job whose agent forecasts nothing
bids for workers alone. Seeds 10 to 29 judge: 0 to 9 had been seen. --work-dir keeps what was trained, in four minutes
of a core; a seed takes ten seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Final

import torch

from bench.cases.spare_gpus import Ranked
from bench.command import Option
from bench.learning_job import FINAL, LEAST, MARKS, LearningJob, Trained, Workload, trained
from bench.printing import Parts, Table, progress
from bench.runs import run_all, unpacked
from bench.statistics import interval, paired
from bench.volatile.traces import SECONDS, trace
from espalier_agent.policies.policy import default_policy
from espalier_core.base import Record
from espalier_core.types.measurements import BidUse
from espalier_lab.growth.corpus.families import REGRESSION_UNSEEN, UNSEEN, Families
from espalier_lab.growth.corpus.language import LANGUAGE_UNSEEN, LanguageFamilies
from espalier_lab.growth.judge.trialling import version_of
from espalier_lab.run_store import RunFile
from espalier_lab.simulator.jobs import FixedJob, ProfiledJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.profiles import Application
from espalier_lab.simulator.rounds import SimulatedNode
from espalier_operator.policies import Policy
from espalier_operator.policies.settings import configured
from espalier_operator.policies.value import ValuePolicy
from espalier_operator.policies.view import Decision, View

POLICIES: Final = ("fair", "goodput", "growth", "slices", "value")
DRAWN: Final = ((UNSEEN, (14, 1, 0, 8, 20, 3, 15)), (REGRESSION_UNSEEN, (2, 5)), (LANGUAGE_UNSEEN, (6, 7, 8)))
"""Families of several kinds that train in seconds, on different data sets."""
STEPS: Final = 1000
JOBS, SPARE = 6, 4
TRACE_SECONDS: Final = 5400.0
BUDGETS: Final = (2700.0, 3600.0)
STARTS: Final = 600.0
APPLICATIONS: Final = (("cifar10", 128), ("bert", 24), ("deepspeech2", 40), ("yolov3", 16), ("imagenet", 200))
"""Measured applications, with a global batch that was measured in one to four parts."""
OPTIONS: Final = {
    "seeds": Option(20),
    "first_seed": Option(10, "100: those by which was chosen"),
    "models": Option(12, "trained"),
    "processes": Option(2, "models trained at a time"),
}
QUICK: Final = {"seeds": 2, "models": 1}
KEEPS: Final = True


class Head(Record):
    """What trained models of a file have in common."""

    marks: int = MARKS
    steps: int = STEPS
    policy: str


@dataclass(frozen=True, slots=True)
class ByGrowthAlone:
    """`value` without the bids for workers."""

    value: ValuePolicy
    name = "growth"
    queue_order = ValuePolicy.queue_order
    elasticity = ValuePolicy.elasticity

    def decide(self, view: View) -> Decision:
        """Decide by the other bids."""
        bids = {job: tuple(bid for bid in bids if bid.use is not BidUse.WORKER) for job, bids in view.bids.items()}
        return self.value.decide(replace(view, bids=bids, speed_models={}))


def policy_of(name: str) -> Policy:
    """Return a policy by its name in the table."""
    if name == "growth":
        return ByGrowthAlone(ValuePolicy())
    return Ranked(name=name) if name == "slices" else configured(name)


def named(families: Families | LanguageFamilies, place: int) -> str:
    """Return the name of a model."""
    return f"{families.name} {place}"


def train(families: Families | LanguageFamilies, place: int) -> Trained:
    """Train a model in all ways."""
    torch.set_num_threads(1)
    case = families.case(place)
    return trained(named(families, place), replace(case, steps=min(case.steps, STEPS)), seed=0)


def workloads(seed: int, models: Sequence[Trained], scaling: Sequence[Callable[[int], float]]) -> list[Workload]:
    """Draw the jobs of a seed."""
    chance = random.Random(f"churn {seed}")
    return [
        Workload(
            name=f"job-{place}",
            model=model,
            submitted_at=chance.uniform(0, STARTS),
            seconds=chance.uniform(*BUDGETS),
            step_seconds=chance.choice(scaling),
        )
        for place, model in enumerate(chance.sample(models, min(JOBS, len(models))))
    ]


def others(seed: int) -> list[FixedJob]:
    """Return the jobs that hold the spare GPUs that are not there."""
    phase = random.Random(f"phase {seed}").uniform(0, TRACE_SECONDS)
    changes = [
        (turn * TRACE_SECONDS + change.second - phase, SPARE - change.gpus)
        for turn in range(3)
        for change in trace("spot", seed, TRACE_SECONDS / SECONDS["spot"])
    ]
    found = []
    for place in range(SPARE):
        since: float | None = None
        for second, gone in changes:
            if gone > place:
                since = max(0.0, second) if since is None else since
            elif since is not None:
                if second > since:
                    found.append(FixedJob(f"other-{place}-{since:.0f}", since, 1, second - since))
                since = None
    return found


def play(name: str, seed: int, drawn: Sequence[Workload]) -> list[LearningJob]:
    """Return the jobs of a seed at their ends under a policy."""
    jobs = [LearningJob(workload) for workload in drawn]
    node = SimulatedNode("node", len(jobs) + SPARE)
    Planned([*jobs, *others(seed)], [node], policy_of(name), LATENCIES["realistic"]).run()
    return jobs


def run(options: argparse.Namespace) -> Parts:
    """Train what is missing, and give the table."""
    store = RunFile(
        options.work_dir / "churn.jsonl", Trained, lambda model: model.name, Head(policy=version_of(default_policy()))
    )
    turns = zip_longest(*([(families, place) for place in places] for families, places in DRAWN))
    wanted = {named(*one): one for turn in turns for one in turn if one is not None}
    names = list(wanted)[: options.models]

    def keep(count: str, model: Trained) -> None:
        store.add(model)
        progress(f"trained {count}: {model.name}")

    run_all(train, (wanted[name] for name in store.missing(names)), options.processes, keep)
    models = [store[name] for name in names]
    found: dict[str, list[list[LearningJob]]] = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = unpacked("pollux", Path(scratch)) / "traces"
        applications = [(Application(folder / name), batch) for name, batch in APPLICATIONS]
        scaling = [ProfiledJob(app.name, 0.0, 1, batch, app).step_seconds for app, batch in applications]
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            drawn = workloads(seed, models, scaling)
            for policy, runs in found.items():
                runs.append(play(policy, seed, drawn))
            progress(f"seed {seed}: {', '.join(f'{name} {gained(runs[-1]):.2f}' for name, runs in found.items())}")
    figures = attrgetter("workload.model.name", "final", "fixed", "lent_hours", "grown_at")
    yield {"runs": {policy: [list(map(figures, jobs)) for jobs in runs] for policy, runs in found.items()}}
    yield table(found)


def table(found: Mapping[str, Sequence[Sequence[LearningJob]]]) -> Table:
    """Return the figures of each policy."""
    gains = {name: [gained(jobs) for jobs in runs] for name, runs in found.items()}
    gains["fixed"] = [gained(jobs, "fixed") for jobs in found["value"]]
    rows = []
    for name, theirs in gains.items():
        jobs = [job for jobs in found.get(name, found["value"]) for job in jobs]
        hours = statistics.fmean(job.lent_hours for job in jobs)
        grew = f"{statistics.fmean(job.grew for job in jobs):.0%}" if name in found else ""
        rate = f"{statistics.fmean(theirs) / max(hours, 1e-9):.1f}"
        less = paired([one - other for one, other in zip(gains["value"], theirs, strict=True)]).text("+.2f")
        rows.append((name, interval(theirs, 2), f"{hours:.2f}", rate, grew, "" if name == "value" else less))
    head = ("policy", "gained, %", "lent, h", "an hour, %", "grew", "value minus it")
    return Table(f"{len(gains['value'])} seeds of {len(found['value'][0])} jobs", head, rows)


def gained(jobs: Sequence[LearningJob], end: str = "final") -> float:
    """Return the mean percentage of what jobs lack alone that they lack less."""
    alone = [job.workload.model.alone.error(FINAL) for job in jobs]
    less = [(lacks - getattr(job, end)) / max(lacks, LEAST) for job, lacks in zip(jobs, alone, strict=True)]
    return 100 * statistics.fmean(less)
