"""A language model that grows, compared with every fixed depth under the same time budget (`make bench-gpt`).

python benchmarks/gpt.py [--budgets 40,80,160] [--seeds 5] [--runs FILE] [--page FILE --picture FILE] [--quick]
    [--decided]

A character GPT on the sources of Python's standard library (`flagship/job.yaml`), in virtual time: a step costs what it
was measured to cost for that number of blocks, so figures do not depend on the machine's load. Arms:
  1, 2, 4 blocks          all along; each with its own best learning rate, chosen on another seed
  1 → 4, unfolded copies  at the moment the run is copied, and again once it has unfolded; no output changes at once
  1 → 4, scaled copies    the run of blocks is copied twice at the moment, its last projections divided by 4
  1 → 4, exact            three blocks are added that change nothing at first
  controls                at the moment 4 blocks drawn anew; or all but the embeddings
With --decided also:
  as the agent advises    the shipped policy is asked from the moment on, and runs unfold when it says so, twice at most
  if a race says so       from the moment on, one extra worker adds a block and one does not, for .6 of the time left
                          (the trainer's rules); the one that wins goes on. Extra GPU-seconds are kept with the run
All that grow begin as the same run of the small net, with its learning rate and one schedule over the whole budget.
Figures are bits per character on the test split (other files), at the end of the budget; differences are paired by
seed. Every run is kept in `--runs`: the same command continues where it was stopped. One process, one thread.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from flagship.arms import DECIDED, Arm, Run, StepCost
from flagship.page import draw, lines, write_page
from flagship.results import TRIED_SEED, Results, head_of, make
from flagship.training import Bench, prepare_process
from harness.printed import command, environment, progress

from espalier_api.validation import load_job

MOMENTS = (0.2, 0.35, 0.5)
QUICK_BUDGETS, QUICK_RATE, QUICK_ARMS = (2.0,), 0.004, (Arm.ONE, Arm.FOUR, Arm.SCALED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="40,80,160", help="virtual seconds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, help="file of JSON lines that keeps the runs")
    parser.add_argument("--page", type=Path, help="page whose tables are written again, between its marks")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true", help="2 s, two seeds, three arms at one learning rate")
    parser.add_argument("--decided", action="store_true", help="also what the agent and a race decide")
    parser.add_argument("--only-report", action="store_true", help="make no runs: tables of those that are done")
    return parser.parse_args()


def main() -> None:
    """Make the runs and print the tables."""
    options = _options()
    prepare_process()
    budgets = QUICK_BUDGETS if options.quick else tuple(float(each) for each in options.budgets.split(","))
    moments, seeds = (MOMENTS[:1], 2) if options.quick else (MOMENTS, options.seeds)
    job, cost = load_job(Path(__file__).parent / "flagship" / "job.yaml"), StepCost()
    results = Results(head_of(job, moments, cost), options.runs, QUICK_RATE if options.quick else None)

    def done(run: Run) -> None:
        cell = run.cell
        what = f"rate {cell.rate:g}" if cell.seed == TRIED_SEED else f"seed {cell.seed}"
        when = "" if cell.moment is None else f" at {cell.moment:.0%}"
        said = f", {' '.join(run.said) or 'never'}, {run.blocks} blocks" if cell.arm in DECIDED else ""
        progress(f"{cell.budget:g} s, {cell.arm}{when}, {what}: {run.bits:.3f} bits ({run.seconds:.0f} s){said}")

    with tempfile.TemporaryDirectory(prefix="espalier-gpt-") as temporary:
        trunks = Path(temporary) if options.runs is None else options.runs.with_suffix(".trunks")
        if not options.only_report:
            arms = QUICK_ARMS if options.quick else tuple(arm for arm in Arm if arm not in DECIDED)
            arms += DECIDED if options.decided else ()
            make(results, Bench(job, moments, trunks, cost).run, budgets, seeds, done, arms)
    for line in lines(results, budgets, whole=not options.quick):
        print(line)
    print(f"\n{environment('torch')}; {command()}")
    if options.picture:
        draw(results, budgets, options.picture)
    if options.page:
        write_page(results, budgets, options.page)


if __name__ == "__main__":
    main()
