"""The decision to try a smaller model after a reclaim, by measured step times and the time left. Pure.

1. *Carried?* The grown model was planned to take a certain number of steps in the time left. If a step takes hardly
   longer than it did with the GPUs that are gone, the remaining GPUs can carry it, and nothing is done.
2. *Cheaper?* Of the earlier sizes, the rule takes the largest one that these GPUs train as fast as the grown model was
   trained before; otherwise the smallest, if its steps are clearly cheaper than the grown model's are now.
3. *In time?* A share of the time left is spent on teaching the smaller model, and must allow a minimum number of steps.

Then both are compared on the validation split, and the smaller one trains for the rest if it is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from espalier_core.types.reasons import Reason


@dataclass(frozen=True, slots=True)
class ShrinkRule:
    """Thresholds of the rule."""

    slower: float = 1.25
    """The grown model is carried while its steps take at most this many times their duration before the reclaim."""
    cheaper: float = 1.25
    """The grown model's steps must cost at least this many times as much as the smaller model's."""
    share: float = 0.25
    """Share of the time left that is spent on the trial."""
    least_steps: int = 50
    """Minimum number of steps of a trial; with fewer, running means of gradients hardly change."""


@dataclass(frozen=True, slots=True)
class ShrinkFacts:
    """Measurements after GPUs were taken back."""

    time_left: float
    """Remaining seconds of the budget."""
    large: float
    """Seconds per step of the grown model, with the remaining GPUs."""
    before: float | None
    """Seconds per step of the grown model at its fastest, with more GPUs; None where not measured."""
    sizes: Sequence[float | None]
    """Seconds per step of each earlier size with the remaining GPUs, the largest first; None where not measured."""
    comparing: float = 0.0
    """Seconds of comparing the two models on the validation split."""

    def __str__(self) -> str:
        """Return the measurements as text."""
        before = "not measured" if self.before is None else f"{self.before:.3g} s"
        sizes = ", ".join("not measured" if each is None else f"{each:.3g} s" for each in self.sizes) or "none"
        return (
            f"a step takes {self.large:.3g} s, before the reclaim {before}, of smaller models {sizes}; "
            f"{self.time_left:.3g} s are left"
        )


@dataclass(frozen=True, slots=True)
class ShrinkVerdict:
    """The decision."""

    size: int | None
    """Index of the size to try; None to keep the grown model."""
    reason: Reason
    seconds: float = 0.0
    """Budget seconds of the trial, comparison included."""


def decide(facts: ShrinkFacts, rule: ShrinkRule | None = None) -> ShrinkVerdict:
    """Return whether to try a smaller model, which one, and for how long."""
    rule = rule or ShrinkRule()
    if facts.before is not None and facts.large <= rule.slower * facts.before:
        return ShrinkVerdict(None, Reason.STILL_CARRIED)
    size = _chosen(facts, rule)
    if size is None:
        return ShrinkVerdict(None, Reason.NOT_CHEAPER)
    trial = rule.share * facts.time_left
    # A size that was never measured is assumed to cost as much as the grown model, which is an upper bound.
    step = facts.sizes[size] or facts.large
    if (trial - facts.comparing) < rule.least_steps * step:
        return ShrinkVerdict(None, Reason.TOO_LATE_TO_DISTIL)
    return ShrinkVerdict(size, Reason.DISTILLING, trial)


def _chosen(facts: ShrinkFacts, rule: ShrinkRule) -> int | None:
    affordable = [
        place for place, seconds in enumerate(facts.sizes) if seconds is None or facts.large >= rule.cheaper * seconds
    ]
    if not affordable:
        return None
    for place in affordable:
        seconds = facts.sizes[place]
        if facts.before is not None and seconds is not None and seconds <= rule.slower * facts.before:
            return place
    return affordable[-1]


def better(smaller: float, larger: float, examples: int) -> bool:
    """Return whether the smaller model is kept, given both accuracies on the same split of `examples` examples.

    It must be ahead by more than one standard error of a difference of two such accuracies. If they are equal, the
    larger one continues: it was not trained meanwhile, resumes at a higher learning rate, and gains more from the
    remaining time.
    """
    error = math.sqrt((smaller * (1 - smaller) + larger * (1 - larger)) / examples)
    return smaller - larger > error
