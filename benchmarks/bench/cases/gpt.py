"""A language model that grows, compared with every fixed depth under the same time budget.

A character GPT on the sources of Python's standard library (`bench/flagship/gpt.yaml`), in virtual time: a step costs
what it was measured to cost for that number of blocks, so figures do not depend on the machine's load. Arms:
  1, 2, 4 blocks          all along; each with its own best learning rate, chosen on another seed
  1 → 4, unfolded copies  at the moment the run is copied, and again once it has unfolded; no output changes at once
  1 → 4, scaled copies    the run of blocks is copied twice at the moment, its last projections divided by 4
  1 → 4, exact            three blocks are added that change nothing at first
  controls                at the moment 4 blocks initialised again; or all but the embeddings
With --decided also:
  as the agent advises    the shipped policy is asked from the moment on, and runs unfold when it says so, twice at most
  if a race says so       from the moment on, one extra worker adds a block and one does not, for .6 of the time left
                          (the trainer's rules); the one that wins goes on. Extra GPU-seconds are kept with the run
With --recipes also published recipes, each compared with unfolded copies: `bench/flagship/recipes.py`.
All that grow begin as the same run of the small net, with its learning rate and one schedule over the whole budget.
Figures are bits per character on the test split (other files), at the end of the budget; differences are paired by
seed. Every run is kept in --work-dir: the same command continues where it was stopped. With --rates, no learning rates
are tried: those of 1, 2 and 4 blocks are given. --page writes the tables of --budgets. One process, one thread. Takes
about 4 hours of a core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import flagship
from bench.command import Option
from bench.flagship.costs import with_cost
from bench.flagship.study import carried_out, options, runs_file
from bench.flagship.subject import DECIDED, RECIPES, Arm, StepCost, Subject
from bench.printing import Parts
from espalier_core.validation.reading import load_job, with_spec

EPOCH_WINDOWS: Final = 128
"""16 steps."""
KEEPS: Final = True
OPTIONS: Final = {
    **options(budgets=[40.0, 80.0, 160.0], moments=[0.2, 0.35, 0.5]),
    "decided": Option(False, "also what the agent and a race decide"),
    "recipes": Option(False, "also published recipes"),
    "width": Option(64, "channels, 32 a head; a step of another net than the shipped costs what is measured first"),
}
QUICK: Final = {
    "budgets": [2.0],
    "moments": [0.2],
    "seeds": 1,
    "rates": [0.004] * 3,
    "arms": [Arm.ONE, Arm.FOUR, Arm.SCALED],
}


def gpt() -> Subject:
    """Return what is trained."""
    return Subject(
        name="gpt",
        job=load_job(Path(flagship.__file__).with_name("gpt.yaml")),
        runs=("blocks.0",),
        cost=StepCost(0.001, 0.004),
        measure="bits per character",
        short="bits",
        kept={Arm.INITIALISED: ("embedding.", "places", "norm.", "head."), Arm.EMBEDDINGS: ("embedding.", "places")},
        first_rate=0.004,
        epoch={"windows": EPOCH_WINDOWS},
    )


def run(options: argparse.Namespace) -> Parts:
    """Make the runs, and give the tables."""
    subject = gpt()
    if options.width != subject.job.spec.training.model.options["width"]:
        model = {"options": {"width": options.width, "heads": options.width // 32}}
        wider = replace(subject, job=with_spec(subject.job, training={"model": model}))
        subject = with_cost(wider, runs_file(options))
    yield from carried_out(subject, options, DECIDED * options.decided + RECIPES * options.recipes)
