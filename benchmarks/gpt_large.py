"""`gpt.py` at a size that fills a GPU: nets of 13 to 51 million parameters (`make bench-gpt-large DATA=FOLDER`).

python benchmarks/gpt_large.py --data FOLDER [--device cuda] [--budgets 20] [--seeds 3] [--runs FILE] [--picture FILE]

The protocol and the arms of `gpt.py`; controls with `--controls`. The text is the files *.py of the folder. What a
step costs with 1 and 4 blocks is measured first, in seconds of this device, and kept with the runs: after that, time is
virtual.
"""

from __future__ import annotations

from dataclasses import replace

from flagship.arms import Arm
from flagship.command import Quick, carry_out, parser
from flagship.costs import with_cost
from flagship.language import gpt_large

QUICK = Quick(2.0, (Arm.ONE, Arm.FOUR, Arm.UNFOLDED), seeds=1, rate=0.001)


def main() -> None:
    """Make the runs and print the tables."""
    known = parser(__doc__, budgets="20", moments="0.2")
    known.set_defaults(seeds=3)
    known.add_argument("--data", required=True, help="folder of the text")
    known.add_argument("--device", default="cuda")
    known.add_argument("--controls", action="store_true", help="also the controls")
    options = known.parse_args()
    subject = with_cost(gpt_large(options.data, options.device), options.runs)
    if not options.controls:
        subject = replace(subject, kept={})
    print(f"a step costs {subject.cost.base:.4f} s and {subject.cost.block:.4f} s a block on {options.device}")
    carry_out(subject, options, QUICK)


if __name__ == "__main__":
    main()
