"""Does distillation pay? GPUs of a grown model are reclaimed: keep it, return to the original, or distil a smaller one.

python benchmarks/shrinking.py digits [--seeds 6] [--reclaim 50%,80%] [--dearer 1,4] [--picture FILE] [--json FILE]
python benchmarks/shrinking.py cifar8 --data FOLDER [--seeds 5]

A GPU arrives at a fifth of the budget, the first block is deepened three times, and all GPUs train together, `--speed`
times as fast as one; at `--reclaim` the GPU is taken back. From then on, with the same weights, seeds and order of
examples:
  keep      train the grown model on one GPU: `onReclaim: Keep`
  return    train the model from before the growth, from its checkpoint
  weights   train a model of the original size with weights from the grown model, without a teacher
  distil    the same, with the grown model as teacher, whatever the result of the comparison after a quarter of the time
  rule      `onReclaim: Distill`: tried if the rule applies, kept if the comparison favours it

Time is virtual: a step costs the time measured for the model (once, at the beginning, or `--step-cost`), so results do
not depend on the machine's load. With `--dearer` 4 added layers cost four times their measured time, as in a larger
model. The teacher's forward and the comparison are counted, at their measured share of a step.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from harness.printed import environment, progress
from harness.runs import job_of, parser, run_all
from harness.statistics import Paired, error_bars, mean_and_deviation, paired
from matplotlib.figure import Figure
from reclaiming.arms import ARMS, Case, Run, run_seed
from reclaiming.costs import Prices, forward_share

from espalier_cli.run import parse_moment
from espalier_lab.growth.collect.cost import measure_cost, parse_cost
from espalier_trainer.data import load_data

BUDGETS = {"digits": 6.0, "cifar8": 20.0}
"""Virtual seconds: the models are then trained, not over-trained."""
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
POINTS = ("block0", "block1", "block2")
COLORS = {"return": "#757575", "weights": "#1565c0", "distil": "#8d4b1f", "rule": "#2e7d32"}


def difference(runs: Sequence[Run], arm: str) -> Paired:
    """Compare the accuracy of an arm with that of `keep`, seed by seed; all runs are of one case."""
    accuracy = {(run.arm, run.seed): run.accuracy for run in runs}
    return paired([accuracy[arm, run.seed] - run.accuracy for run in runs if run.arm == "keep"])


def cases(runs: Sequence[Run]) -> list[tuple[tuple[float, float], list[Run]]]:
    """Return the runs of each (dearer, reclaim), in order."""
    keys = sorted({(run.dearer, run.reclaim) for run in runs})
    return [(key, [run for run in runs if (run.dearer, run.reclaim) == key]) for key in keys]


def markdown(runs: Sequence[Run], budget: float) -> str:
    """Return the table: accuracies, and differences to `keep` with intervals."""
    lines = [
        "| added layers cost | reclaim at | arm | accuracy | less `keep` (95 %) | better with | steps after |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for (dearer, reclaim), found in cases(runs):
        for arm in ARMS:
            own = [run for run in found if run.arm == arm]
            steps = statistics.median(run.steps for run in own)
            gain = difference(found, arm)
            less = "| | |" if arm == "keep" else f"| {gain} | {gain.wins} of {gain.count} |"
            accuracy = mean_and_deviation([run.accuracy for run in own])
            lines.append(f"| x{dearer:g} | {reclaim / budget:.0%} | {arm} | {accuracy} {less} {steps:,.0f} |")
        reasons = Counter(run.reason for run in found if run.arm == "rule")
        reasons_text = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        lines.append(f"| | | decision of `rule` | {reasons_text} | | | |")
    return "\n".join(lines)


def draw(runs: Sequence[Run], workload: str, budget: float, path: Path) -> None:
    """Draw each arm's paired differences to `keep`: seeds as dots, the mean with its interval."""
    found = cases(runs)
    figure = Figure(figsize=(2.3 * len(found) + 1, 3.8), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, ((dearer, reclaim), own) in zip(panels, found, strict=True):
        base = {run.seed: run.accuracy for run in own if run.arm == "keep"}
        for place, arm in enumerate(ARMS[1:]):
            gain = difference(own, arm)
            dots = [run.accuracy - base[run.seed] for run in own if run.arm == arm]
            axes.plot([place] * len(dots), dots, ".", color=COLORS[arm], alpha=0.35, ms=5)
            axes.errorbar(place, gain.mean, error_bars([gain]), fmt="o", color=COLORS[arm], capsize=4)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(ARMS) - 1), ARMS[1:], rotation=40, ha="right")
        axes.set_title(f"added layers x{dearer:g}\nreclaim at {reclaim / budget:.0%}", fontsize=9)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel(f"{workload}: test accuracy less `keep`")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run all arms and print the table."""
    options = parser(__doc__, seeds=6)
    options.add_argument("workload", choices=sorted(BUDGETS))
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--reclaim", default="50%,80%", help="parts of the budget, separated by commas")
    options.add_argument("--dearer", default="1,4", help="factors on the cost of added layers")
    options.add_argument("--speed", type=float, default=3.0, help="steps of all GPUs in the time of one GPU's step")
    options.add_argument(
        "--step-cost", help="ms per step, and ms for one more layer at each block, instead of measuring"
    )
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    arguments.time_budget = budget = arguments.time_budget or BUDGETS[arguments.workload]
    job = job_of(EXAMPLES / f"{arguments.workload}.yaml", arguments)
    data = load_data(job.spec.training.dataset)
    cost = (
        parse_cost(arguments.step_cost, POINTS)
        if arguments.step_cost
        else measure_cost(job, data, POINTS, torch.device("cpu"))
    )
    forward = forward_share(job, data)
    progress(f"{cost}; a forward alone costs {forward:.2f} of a step")
    cases = [
        Case(job, parse_moment(moment, budget), Prices(cost, float(dearer), forward, arguments.speed))
        for dearer in arguments.dearer.split(",")
        for moment in arguments.reclaim.split(",")
    ]
    runs: list[Run] = []
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)

    def done(count: str, found: list[Run]) -> None:
        runs.extend(found)
        if arguments.json:  # after each, so that an interrupted study is not lost
            arguments.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
        reached = ", ".join(f"{run.arm} {run.accuracy:.3f}" for run in found)
        progress(f"{count}: seed {found[0].seed}, x{found[0].dearer:g}, reclaim at {found[0].reclaim:g} s: {reached}")

    # Seed by seed, so that the seeds that are done have all cases.
    run_all(run_seed, [(case, seed) for seed in seeds for case in cases], arguments.processes, done)
    runs.sort(key=lambda run: (run.dearer, run.reclaim, run.seed, ARMS.index(run.arm)))
    print(f"{arguments.workload}: budget {budget:g} s, {cost}, together {arguments.speed:g} times as fast\n")
    print(markdown(runs, budget))
    print(
        f"\n{environment('torch')}; "
        f"{arguments.seeds} seeds from {arguments.first_seed}, 95 % intervals of paired differences (Student's t)"
    )
    if arguments.picture:
        draw(runs, arguments.workload, budget, arguments.picture)


if __name__ == "__main__":
    main()
