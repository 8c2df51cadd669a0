"""Gains of growths in accuracy: their spread, the limit of harm, and estimates from the losses of a trial. Pure.

Trainers decide on trials by it (`espalier_trainer.trials.rules`), and agents learn from what the arms have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from espalier_core.types.adaptation import Trials
from espalier_core.types.advice import Action
from espalier_core.types.report import Arm

SPREAD: Final = 0.03
"""How much gains differ: about the deviation of those in the corpora. Learners count gains in this unit, and so do
the trees of stored policies: it cannot change without these."""
HARM: Final = 0.002
"""Who ends further than this below doing nothing is harmed."""
SHARES: Final[Mapping[Trials, float]] = {Trials.CONFIRM: 0.1, Trials.RACE: 0.6}
"""The slice of an arm as a share of the remaining budget.

Validation loss after a tenth, the rate falling to 0 within it, tells a good growth from a bad one; an arm of a race
continues as the job would, so that the winner's run can be kept, and errs less the longer it trains."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The relation of a trial's losses to the gain: `slope` · log(loss of nothing / loss of the arm), give or take."""

    slope: float
    """In accuracy."""
    deviation: float
    """Standard deviation of that measurement, in accuracy."""


RACING: Final[Mapping[float, Evidence]] = {
    0.2: Evidence(1.47, 0.067),
    0.4: Evidence(1.08, 0.051),
    SHARES[Trials.RACE]: Evidence(0.88, 0.039),
}
"""Of arms that train as the job would, by the share of the remaining budget after which they are compared."""
EVIDENCE: Final[Mapping[Trials, Evidence]] = {
    Trials.CONFIRM: Evidence(3.6, 0.11),
    Trials.RACE: RACING[SHARES[Trials.RACE]],
}
"""Measured on the first seed of the corpus `free`, by first decisions without widening: what a slice of a tenth ends
with correlates with the gain in the end by .25, where an arm of a race then stands by .58, and after two fifths by .49.
`make bench-trial-evidence` measures it on all that is carried."""
LIMIT: Final = 0.3
"""Of the logarithm of losses: a loss that is lower by half gains no more than one that is lower by a quarter."""


def seen(nothing: float, grown: float) -> float:
    """Return how much lower the loss of a growth is: log(nothing / grown), within the limit.

    Losses below 0, as some loss functions of users give, have no ratio: then only the sign counts.
    """
    if nothing <= 0 or grown <= 0:
        return math.copysign(LIMIT, nothing - grown) if nothing != grown else 0.0
    return max(-LIMIT, min(LIMIT, math.log(nothing) - math.log(grown)))


@dataclass(frozen=True, slots=True)
class TrialGain:
    """The gain of one growth as a trial shows it."""

    gain: float
    """In accuracy, in the end."""
    deviation: float
    """Standard deviation of that."""


def trial_gains(arms: Iterable[Arm]) -> dict[str, TrialGain]:
    """Return what a trial shows of each growth, by the longest slice that `Nothing` has finished, too.

    Empty where it has finished none: then there is nothing to compare with.
    """
    by_action = {arm.action: arm for arm in arms}
    nothing = by_action.pop(str(Action.nothing()), None)
    if nothing is None:
        return {}
    compared = {one.share: one.loss for one in nothing.slices if math.isfinite(one.loss)}
    found = {}
    for action, arm in by_action.items():
        ends = [one for one in arm.slices if one.share in compared and math.isfinite(one.loss)]
        evidence = _evidence(arm, ends[-1].share) if ends and arm.annealed == nothing.annealed else None
        if evidence is not None:
            ratio = seen(compared[ends[-1].share], ends[-1].loss)
            found[action] = TrialGain(evidence.slope * ratio, evidence.deviation)
    return found


def _evidence(arm: Arm, share: float) -> Evidence | None:
    return EVIDENCE[Trials.CONFIRM] if arm.annealed else RACING.get(share)
