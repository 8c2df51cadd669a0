"""Gains of growths in accuracy: their spread, the limit of harm, and estimates from the losses of a trial. Pure.

Trainers use it to decide on trials (`espalier_trainer.trials.rules`), and agents learn from the results of the arms.
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
"""Unit of gains: about the standard deviation of the gains in the corpora. Learners count gains in this unit, and so do
the trees of stored policies: a change needs new policies."""
HARM: Final = 0.002
"""Loss of accuracy against doing nothing beyond which a growth counts as harmful."""
SHARES: Final[Mapping[Trials, float]] = {Trials.CONFIRM: 0.1, Trials.RACE: 0.6}
"""The slice of an arm as a share of the remaining budget.

The validation loss after a tenth, with the rate falling to 0 within it, distinguishes a good growth from a bad one; an
arm of a race continues as the job would, so that the winner's run can be kept, and errs less the longer it trains."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The relation of a trial's losses to the gain: `slope` · log(loss of nothing / loss of the arm), with an error."""

    slope: float
    """Gain in accuracy for each unit of the logarithm."""
    deviation: float
    """Standard deviation of the error, in accuracy."""


RACING: Final[Mapping[float, Evidence]] = {
    0.2: Evidence(1.47, 0.067),
    0.4: Evidence(1.08, 0.051),
    SHARES[Trials.RACE]: Evidence(0.88, 0.039),
}
"""Evidence of arms that train as the job would, by the share of the remaining budget after which they are compared."""
EVIDENCE: Final[Mapping[Trials, Evidence]] = {
    Trials.CONFIRM: Evidence(3.6, 0.11),
    Trials.RACE: RACING[SHARES[Trials.RACE]],
}
"""Evidence by the kind of trial, measured on the first seed of the corpus `free`, by first decisions without widening:
the loss after a slice of a tenth correlates with the final gain by 0.25, the loss of an arm of a race at that time by
0.58, and after two fifths by 0.49. `make bench-trial-evidence` measures it on all corpora in the repository."""
LIMIT: Final = 0.3
"""Limit on the logarithm of losses: a loss that is lower by half counts as one that is lower by a quarter."""


def seen(nothing: float, grown: float) -> float:
    """Return the reduction of the loss by a growth: log(nothing / grown), within the limit.

    Losses of 0 or below, which some users' loss functions return, have no ratio: then only the sign counts.
    """
    if nothing <= 0 or grown <= 0:
        return math.copysign(LIMIT, nothing - grown) if nothing != grown else 0.0
    return max(-LIMIT, min(LIMIT, math.log(nothing) - math.log(grown)))


@dataclass(frozen=True, slots=True)
class TrialGain:
    """The gain of one growth, estimated from a trial."""

    gain: float
    """Gain in final accuracy."""
    deviation: float
    """Standard deviation of the gain."""


def trial_gains(arms: Iterable[Arm]) -> dict[str, TrialGain]:
    """Return the gain of each growth in a trial, by the longest slice that `Nothing` has finished too.

    Empty if `Nothing` has finished no slice: then there is nothing to compare with.
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
