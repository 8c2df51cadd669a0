"""A language model that grows, compared with every fixed depth under the same time budget (`make bench-gpt`).

python benchmarks/gpt.py [--budgets 40,80,160] [--seeds 5] [--runs FILE] [--page FILE --picture FILE] [--quick]
    [--rates 0.003,0.002,0.004] [--decided]

A character GPT on the sources of Python's standard library (`flagship/gpt.yaml`), in virtual time: a step costs what it
was measured to cost for that number of blocks, so figures do not depend on the machine's load. Arms:
  1, 2, 4 blocks          all along; each with its own best learning rate, chosen on another seed
  1 → 4, unfolded copies  at the moment the run is copied, and again once it has unfolded; no output changes at once
  1 → 4, scaled copies    the run of blocks is copied twice at the moment, its last projections divided by 4
  1 → 4, exact            three blocks are added that change nothing at first
  controls                at the moment 4 blocks initialised again; or all but the embeddings
With --decided also:
  as the agent advises    the shipped policy is asked from the moment on, and runs unfold when it says so, twice at most
  if a race says so       from the moment on, one extra worker adds a block and one does not, for .6 of the time left
                          (the trainer's rules); the one that wins goes on. Extra GPU-seconds are kept with the run
All that grow begin as the same run of the small net, with its learning rate and one schedule over the whole budget.
Figures are bits per character on the test split (other files), at the end of the budget; differences are paired by
seed. Every run is kept in `--runs`: the same command continues where it was stopped. With `--rates`, no learning rates
are tried: those of 1, 2 and 4 blocks are given. `--page` writes the tables of `--budgets`. One process, one thread.
"""

from __future__ import annotations

from flagship.arms import DECIDED, Arm
from flagship.command import Quick, carry_out, parser
from flagship.language import gpt

QUICK = Quick(2.0, (Arm.ONE, Arm.FOUR, Arm.SCALED), seeds=1)


def main() -> None:
    """Make the runs and print the tables."""
    known = parser(__doc__, budgets="40,80,160", moments="0.2,0.35,0.5")
    known.add_argument("--decided", action="store_true", help="also what the agent and a race decide")
    options = known.parse_args()
    carry_out(gpt(), options, QUICK, DECIDED if options.decided else ())


if __name__ == "__main__":
    main()
