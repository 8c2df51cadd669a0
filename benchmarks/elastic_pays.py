"""Does it pay? What a job makes of a GPU that comes and goes: train with it, grow into it, both, or nothing.

python benchmarks/elastic_pays.py examples/digits.yaml [--seeds 5] [--come 10% 35% 65% 85%] [--length 30%]
    [--scaling measured | ideal] [--rounds 5] [--runs FILE] [--picture FILE] [--markdown FILE]

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

`--runs FILE` keeps each run and the costs: a stopped benchmark continues, and trains no run twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import torch
from harness.printed import environment, progress
from harness.runs import job_of, parser, run_all
from paying.arms import Arm, timeline
from paying.costs import Costs
from paying.measuring import measure
from paying.runs import Head, Run, Runs, draw, kept_costs, lines
from paying.training import Setting, prepare_process, train

from espalier_cli.run import parse_moment
from espalier_core.types.job import ElasticBatch
from espalier_lab.extra_worker import ExtraWorker
from espalier_trainer.data import load_data

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


def main() -> None:
    """Measure, train, and print the tables."""
    options = parser(__doc__, seeds=5)
    options.add_argument("job", type=Path, nargs="?", default=Path("examples/digits.yaml"))
    options.add_argument("--come", nargs="+", default=["10%", "35%", "65%", "85%"])
    options.add_argument("--length", default="30%")
    options.add_argument("--scaling", choices=("measured", "ideal"), default="measured")
    options.add_argument("--policy", choices=[policy.value for policy in ElasticBatch], default="keepGlobal")
    options.add_argument("--rounds", type=int, default=5, help="in which steps are measured; the fastest counts")
    options.add_argument("--runs", type=Path, help="keeps the runs; continues from there")
    options.add_argument("--markdown", type=Path)
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started ends
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

    job = job_of(arguments.job, arguments)
    setting = Setting(job, ElasticBatch(arguments.policy))
    shares = sorted(parse_moment(each, 1.0) for each in arguments.come)
    load_data(job.spec.training.dataset)  # downloads and decodes once

    costs = kept_costs(arguments.runs)
    if costs is None:
        progress("measuring what steps cost")
        costs = measured(setting, arguments.rounds)
        if arguments.scaling == "ideal":
            costs = costs.ideal(0.5 if setting.policy is ElasticBatch.KEEP_GLOBAL else 1.0)
    head = Head(
        job=job.metadata.name,
        budget_seconds=job.spec.time_budget_seconds,
        length=parse_moment(arguments.length, 1.0),
        policy=setting.policy,
        scaling=arguments.scaling,
        costs=costs,
    )
    runs = Runs(head, arguments.runs)
    train_missing(runs, setting, shares, arguments.seeds, arguments.processes)

    text = "\n".join(
        [
            f"{head.job}: budget {head.budget_seconds:g} s, a GPU more for {head.length:.0%} of it, {head.policy}, "
            f"{arguments.seeds} seeds; a step costs one worker {costs.one.base * 1e3:.2f} ms, two "
            f"{costs.two.base * 1e3:.2f} ms ({head.scaling})",
            "",
            *lines(runs, shares),
            "",
            "Means ± standard deviations; means of paired differences with 95 % intervals, bold where they exclude 0.",
            environment("torch"),
        ]
    )
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n", encoding="utf-8")
    if arguments.picture:
        draw(runs, shares, arguments.picture)


if __name__ == "__main__":
    main()
