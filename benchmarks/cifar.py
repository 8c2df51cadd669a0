"""A residual net that grows, compared with fixed depths under the same time budget: CIFAR-10 (`make bench-cifar`).

python benchmarks/cifar.py --data PATH [--budgets 40] [--seeds 5] [--runs FILE] [--page FILE --picture FILE] [--quick]

The protocol of `gpt.py`, for images of 32x32 pixels: a ResNet of three stages with 8, 16 and 32 channels
(`flagship/resnet.yaml`). Its first convolution halves the height and the width. Arms:
  1, 2, 4 blocks          in each stage, all along; each with its own best learning rate, chosen on another seed
  1 → 4, unfolded copies  at the moment each stage is copied, one after the other within 32 steps, and again once it
                          has unfolded; no output changes at once
  1 → 4, scaled copies    each stage is copied twice at the moment, the last convolutions of its blocks divided by 4
  1 → 4, exact            at the moment three blocks a stage are added that change nothing at first
  a control               at the moment all blocks are initialised again, the rest is kept
Figures are the error (share of the images of the test split that are classified wrongly) at the end of the budget.
`PATH` is a folder or an archive of images (train/<class>/*, test/<class>/*), or torchvision's copy.
"""

from __future__ import annotations

from flagship.arms import Arm
from flagship.command import Quick, carry_out, parser
from flagship.images import cifar

QUICK = Quick(1.5, (Arm.ONE, Arm.UNFOLDED), seeds=1)


def main() -> None:
    """Make the runs and print the tables."""
    known = parser(__doc__, budgets="40", moments="0.2")
    known.add_argument("--data", help="folder or archive of the images")
    options = known.parse_args()
    carry_out(cifar(options.data), options, QUICK)


if __name__ == "__main__":
    main()
