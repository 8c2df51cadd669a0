"""Does it pay? What a job makes of a GPU that comes and goes: train with it, grow into it, both, or nothing.

The base GPU is there from the start; one more comes when so much of the budget is used (`--come`), and goes again after
`--length` of it, at 95 % at the latest. Arms, with the same budget, data and seeds:
  small, base GPU only              never grown, and the extra GPU is of no use to it
  small, elastic                    never grown; a second worker trains with the first while there is a GPU
  deep from scratch, elastic        the network that the last arm ends with, from the start; the same second worker
  grown by the agent, elastic       grows when the GPU comes, as the shipped policy advises; the same second worker
  grown at the first block, elastic grows at the first growth point as often as it may; the same second worker
The workers are real: processes that join and leave by the product's own code, over gloo on the loopback interface.
Time is virtual, so that nothing depends on what else the machine does: first it is measured what a step costs one
worker and two, with the starting model and with a layer more at each point, and what a join, a leave and a growth cost;
then runs are reckoned by it. With `--scaling ideal` a second worker costs nothing but its part of the work: what the
best of networks could give. Two processes on two CPU cores with models this small are far from that, which `measured`
shows. The extra worker's own start (3.5 s, most of it the import of torch) is not charged: in an hour's job it is
nothing, in these budgets it would be all. Evaluations are free, as in the outcome tables.

Means ± standard deviations; means of paired differences with 95 % intervals, bold where they exclude 0. --work-dir
keeps each run and the costs: a stopped benchmark continues, and trains no run twice. Takes 2 hours.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from bench.command import PICTURE, Option
from bench.paying.arms import Arm, Costs, timeline
from bench.paying.runs import Head, Run, Runs, draw, kept_costs, lines
from bench.paying.training import Setting, measure, train
from bench.printing import Parts, progress
from bench.runs import OF_A_JOB, example, job_of, prepare_process, run_all
from espalier_cli.run import parse_moment
from espalier_core.types.job import ElasticBatch
from espalier_lab.extra_worker import ExtraWorker
from espalier_trainer.data import load_data

KEEPS: Final = True
OPTIONS: Final = {
    **OF_A_JOB,
    "workloads": Option(["digits", "cifar8"], "examples", ("digits", "cifar8")),
    "seeds": Option(5),
    "come": Option(["10%", "35%", "65%", "85%"], "of the budget"),
    "length": Option("30%", "of the budget"),
    "scaling": Option("measured", choices=("measured", "ideal")),
    "policy": Option("keepGlobal", choices=[policy.value for policy in ElasticBatch]),
    "rounds": Option(5, "in which steps are measured; the fastest counts"),
    "picture": PICTURE,
}
QUICK: Final = {
    **{"workloads": ["digits"], "seeds": 1, "time_budget": 2.0, "processes": 1, "rounds": 1},
    **{"come": ["20%"], "length": "70%"},
}
_extra: list[ExtraWorker] = []
"""Of this process; it ends with it."""


def one(setting: Setting, costs: Costs, length: float, arm: Arm, come: float | None, seed: int) -> Run:
    """Train one run in this process, with the extra worker that belongs to it."""
    if not _extra:
        prepare_process()
        _extra.append(ExtraWorker())
    budget = setting.job.spec.time_budget_seconds
    arrivals = timeline(come, length, budget).arrivals() if come is not None else ()
    done = train(setting, arm, seed, arrivals, costs, _extra[0])
    result = done.result
    return Run(
        arm=arm,
        come=come,
        seed=seed,
        accuracy=result.test_accuracy or 0.0,
        depth=result.depth_after,
        steps=result.steps,
        joint_steps=done.joint_steps,
        actions=tuple(adaptation.action for adaptation in result.adaptations),
    )


def measured(setting: Setting, rounds: int) -> Costs:
    """Measure what steps and pauses cost, in this process, before any run begins."""
    prepare_process()
    with ExtraWorker() as extra:
        return measure(setting, extra, rounds)


def train_missing(runs: Runs, setting: Setting, shares: Sequence[float], seeds: int, processes: int) -> None:
    """Train what is missing, the arms of a seed after each other."""
    moments = [(Arm.ALONE, None), *((arm, share) for share in shares for arm in Arm if arm is not Arm.ALONE)]
    missing = runs.missing((arm, come, seed) for seed in range(seeds) for arm, come in moments)

    def done(count: str, run: Run) -> None:
        runs.add(run)
        when = "" if run.come is None else f", GPU from {run.come:.0%}"
        progress(f"{count}: seed {run.seed}, {run.arm}{when}: {run.accuracy:.4f}")

    run_all(one, [(setting, runs.head.costs, runs.head.length, *each) for each in missing], processes, done)


def run(options: argparse.Namespace) -> Parts:
    """Measure, train, and give the tables, workload by workload."""
    for workload in options.workloads:
        yield from of_workload(workload, options)


def of_workload(workload: str, options: argparse.Namespace) -> Parts:
    """Measure, train, and give the tables of one workload."""
    carries_its_data = {"data": None} if workload == "digits" else {}
    job = job_of(example(workload), argparse.Namespace(**{**vars(options), **carries_its_data}))
    setting = Setting(job, ElasticBatch(options.policy))
    shares = sorted(parse_moment(each, 1.0) for each in options.come)
    load_data(job.spec.training.dataset)  # downloads and decodes once

    file = options.work_dir / f"{workload}.jsonl"
    costs = kept_costs(file)
    if costs is None:
        progress("measuring what steps cost")
        costs = measured(setting, options.rounds)
        if options.scaling == "ideal":
            costs = costs.ideal(0.5 if setting.policy is ElasticBatch.KEEP_GLOBAL else 1.0)
    head = Head(
        job=job.metadata.name,
        budget_seconds=job.spec.time_budget_seconds,
        length=parse_moment(options.length, 1.0),
        policy=setting.policy,
        scaling=options.scaling,
        costs=costs,
    )
    runs = Runs(head, file)
    train_missing(runs, setting, shares, options.seeds, options.processes)
    yield (
        f"{head.job}: budget {head.budget_seconds:g} s, a GPU more for {head.length:.0%} of it, {head.policy}, "
        f"{options.seeds} seeds; a step costs one worker {costs.one.base * 1e3:.2f} ms, two "
        f"{costs.two.base * 1e3:.2f} ms ({head.scaling})\n"
    )
    yield "\n".join(lines(runs, shares))
    yield {workload: [each.model_dump(mode="json") for each in runs]}
    if options.picture:
        draw(runs, shares, options.picture.with_name(f"{options.picture.stem}-{workload}{options.picture.suffix}"))
