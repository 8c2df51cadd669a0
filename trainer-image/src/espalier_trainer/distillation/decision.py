"""Whether to try a smaller model after GPUs were taken back: a pure decision on measured step times and time left.

1. *Carried?* The grown model was to take a certain number of steps in the time left. Where a step takes hardly longer
   than it did with the GPUs that are gone, the GPUs left carry it, and nothing is done.
2. *Cheaper?* Of the earlier sizes, the largest is taken that these GPUs carry as fast as they carried the grown one
   before; else the smallest, if its steps are clearly cheaper than the grown model's are now.
3. *In time?* A share of the time left is spent on teaching it, and must be enough steps to teach anything.

After that share, both are compared on the validation split, and the smaller one has the rest if it is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from espalier_api.reasons import Reason


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule's figures."""

    slower: float = 1.25
    """The grown model is carried while its steps take at most this many times what they took."""
    cheaper: float = 1.25
    """The grown model's steps must cost at least this many times as much as the smaller model's."""
    share: float = 0.25
    """Of the time left, spent on the trial."""
    least_steps: int = 50
    """In a trial; with fewer, running means of gradients have hardly turned over."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured when GPUs had been taken."""

    time_left: float
    """Budget seconds."""
    large: float
    """Seconds a step of the grown model, with the GPUs left."""
    before: float | None
    """Seconds a step of the grown model at its fastest, with more GPUs; None where that was not measured."""
    sizes: Sequence[float | None]
    """Seconds a step of each earlier size with the GPUs left, the largest first; None where not measured."""
    comparing: float = 0.0
    """Seconds that comparing the two on the validation split takes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do."""

    size: int | None
    """Place among the sizes of the one to try; None: keep the grown model."""
    reason: Reason
    seconds: float = 0.0
    """Budget seconds of the trial, comparing included."""


def decide(facts: Facts, rule: Rule | None = None) -> Verdict:
    """Return whether to try a smaller model, which, and for how long."""
    rule = rule or Rule()
    if facts.before is not None and facts.large <= rule.slower * facts.before:
        return Verdict(None, Reason.STILL_CARRIED)
    size = _chosen(facts, rule)
    if size is None:
        return Verdict(None, Reason.NOT_CHEAPER)
    trial = rule.share * facts.time_left
    # A size that was never measured is taken to cost what the grown model costs: at most that, in all likelihood.
    step = facts.sizes[size] or facts.large
    if (trial - facts.comparing) < rule.least_steps * step:
        return Verdict(None, Reason.TOO_LATE_TO_DISTIL)
    return Verdict(size, Reason.DISTILLING, trial)


def _chosen(facts: Facts, rule: Rule) -> int | None:
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

    It must be ahead by more than one standard error of a difference of two such accuracies. Of equals the larger one
    goes on: it has stood still meanwhile, at a higher learning rate, and has the more to gain from the rest.
    """
    error = math.sqrt((smaller * (1 - smaller) + larger * (1 - larger)) / examples)
    return smaller - larger > error
