"""Does distilling pay? GPUs are taken back from a grown model: go on with it, go back, or teach a smaller one.

python benchmarks/shrinking.py digits [--seeds 6] [--reclaim 50%,80%] [--dearer 1,4] [--picture FILE] [--json FILE]
python benchmarks/shrinking.py cifar8 --data FOLDER [--seeds 5]

A GPU arrives at a fifth of the budget, the first block is deepened three times, and all train together, `--speed` times
as fast as one; at `--reclaim` it is gone again. From that moment, with the same weights, seeds and order of examples:
  keep      the grown model goes on, by itself on one GPU: `onReclaim: Keep`
  return    the model as it was before it grew, from its checkpoint, has the rest
  weights   the original size, filled with what the grown model has learnt, has the rest; nobody teaches it
  distil    the same, taught by the grown model, whatever the comparison after a quarter of the time says
  rule      `onReclaim: Distill`: tried where the rule says so, kept where the comparison says so

Time is virtual: a step costs what was measured for the model (once, at the beginning, or `--step-cost`), so results do
not depend on the machine's load. `--dearer` 4: added layers cost four times as much as they do, as if the grown model
were so much larger. A teacher's forward is counted, and so is the comparison, at the measured share of a step.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
from reclaiming.arms import ARMS, Case, Run, run_seed
from reclaiming.costs import Prices, forward_share
from reclaiming.tables import draw, markdown

from espalier_api.job import AdaptiveTrainingJob
from espalier_api.validation import load_job
from espalier_cli.collect.cost import measure_cost, parse_cost
from espalier_cli.timeline import parse_moment
from espalier_trainer.data import load_data

BUDGETS = {"digits": 6.0, "cifar8": 20.0}
"""Virtual seconds: the models are then trained, not over-trained."""
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
POINTS = ("block0", "block1", "block2")


def main() -> None:
    """Run all arms and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=sorted(BUDGETS))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--time-budget", type=float, help="virtual seconds")
    parser.add_argument("--reclaim", default="50%,80%", help="moments of the budget, with commas between")
    parser.add_argument("--dearer", default="1,4", help="factors on what added layers cost")
    parser.add_argument("--speed", type=float, default=3.0, help="of all GPUs together, in steps of one")
    parser.add_argument("--step-cost", help="ms a step and ms more for a layer at each block, instead of measuring")
    parser.add_argument("--data", help="instead of spec.training.dataset.path")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = load_job(EXAMPLES / f"{arguments.workload}.yaml").model_dump(mode="json", by_alias=True, exclude_none=True)
    budget = arguments.time_budget or BUDGETS[arguments.workload]
    job["spec"]["timeBudgetSeconds"] = budget
    if arguments.data:
        job["spec"]["training"]["dataset"]["path"] = arguments.data
    whole = AdaptiveTrainingJob.model_validate(job)
    data = load_data(whole.spec.training.dataset)
    cost = (
        parse_cost(arguments.step_cost, POINTS)
        if arguments.step_cost
        else measure_cost(whole, data, POINTS, torch.device("cpu"))
    )
    forward = forward_share(whole, data)
    print(f"{cost}; a forward alone costs {forward:.2f} of a step", file=sys.stderr)
    cases = [
        Case(job, parse_moment(moment, budget), Prices(cost, float(dearer), forward, arguments.speed))
        for dearer in arguments.dearer.split(",")
        for moment in arguments.reclaim.split(",")
    ]
    runs: list[Run] = []
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        # Seed by seed, so that those that are done have all cases.
        waiting = [pool.submit(run_seed, case, seed) for seed in seeds for case in cases]
        for future in as_completed(waiting):
            runs += future.result()
            if arguments.json:  # after each, so that a study that is broken off is not lost
                arguments.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
            last = runs[-1]
            told = ", ".join(f"{run.arm} {run.accuracy:.3f}" for run in runs[-len(ARMS) :])
            where = f"x{last.dearer:g}, reclaim at {last.reclaim:g} s"
            print(f"{len(runs) // len(ARMS)}/{len(waiting)}: seed {last.seed}, {where}: {told}", file=sys.stderr)
    runs.sort(key=lambda run: (run.dearer, run.reclaim, run.seed, ARMS.index(run.arm)))
    print(f"{arguments.workload}: budget {budget:g} s, {cost}, together {arguments.speed:g} times as fast\n")
    print(markdown(runs, budget))
    print(
        f"\n{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}; "
        f"{arguments.seeds} seeds from {arguments.first_seed}, 95 % intervals of paired differences (Student's t)"
    )
    if arguments.picture:
        draw(runs, arguments.workload, budget, arguments.picture)


if __name__ == "__main__":
    main()
