"""Gains of growths in the task's own measure: their spread, the limit of harm, and estimates from a trial. Pure.

Gains are positive where the model gets better, whatever the measure: accuracy, R², or bits per character saved.
Trainers use this module to decide on trials (`espalier_trainer.trials.rules`), and agents learn from the results of the
arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from espalier_core.types.adaptation import Trials
from espalier_core.types.advice import Action, ExpectedGain
from espalier_core.types.report import Arm
from espalier_core.types.task import BITS_PER_CHARACTER, Task

SPREAD: Final[Mapping[Task, float]] = {Task.CLASSIFICATION: 0.03, Task.REGRESSION: 0.03, Task.LANGUAGE_MODEL: 0.1}
"""Unit of gains: about the standard deviation of the gains in the corpora. Learners count gains in this unit, and so do
the trees of stored policies: a change needs new policies."""
HARM: Final[Mapping[Task, float]] = {Task.CLASSIFICATION: 0.002, Task.REGRESSION: 0.002, Task.LANGUAGE_MODEL: 0.01}
"""Loss against doing nothing beyond which a growth counts as harmful."""
SHARES: Final[Mapping[Trials, float]] = {Trials.CONFIRM: 0.1, Trials.RACE: 0.6}
"""The slice of an arm as a share of the remaining budget.

The validation loss after a tenth, with the rate falling to 0 within it, distinguishes a good growth from a bad one; an
arm of a race continues as the job would, so that the winner's run can be kept, and errs less the longer it trains."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The relation of a trial's losses to the gain: `slope` times what was seen (`LossScale.seen`), with an error."""

    slope: float
    """Gain for each unit of what was seen."""
    deviation: float
    """Standard deviation of the error, in the task's measure."""


_BY_RATIO: Final = {0.2: Evidence(1.47, 0.067), 0.4: Evidence(1.08, 0.051), SHARES[Trials.RACE]: Evidence(0.88, 0.039)}
_BY_BITS: Final = {0.2: Evidence(1.52, 0.065), 0.4: Evidence(1.19, 0.039), SHARES[Trials.RACE]: Evidence(0.99, 0.023)}
RACING: Final[Mapping[Task, Mapping[float, Evidence]]] = {
    Task.CLASSIFICATION: _BY_RATIO,
    Task.REGRESSION: _BY_RATIO,
    Task.LANGUAGE_MODEL: _BY_BITS,
}
"""Evidence of arms that train as the job would, by the share of the remaining budget after which they are compared.

Measured for classification and language models (see `EVIDENCE`). Regression takes the same as classification until a
corpus of it is measured."""
_BY_TASK: Final = {
    Task.CLASSIFICATION: Evidence(3.6, 0.11),
    Task.REGRESSION: Evidence(3.6, 0.11),
    Task.LANGUAGE_MODEL: Evidence(3.13, 0.094),
}
EVIDENCE: Final[Mapping[Task, Mapping[Trials, Evidence]]] = {
    task: {Trials.CONFIRM: short, Trials.RACE: RACING[task][SHARES[Trials.RACE]]} for task, short in _BY_TASK.items()
}
"""Evidence by the kind of trial, for classification measured on the first seed of the corpus `free`, by first decisions
without widening: the loss after a slice of a tenth correlates with the final gain by 0.25, the loss of an arm of a race
at that time by 0.58, and after two fifths by 0.49. For language models on the corpus `language` (28 families,
330 growths, one seed): 0.60, 0.97 and 0.90. `make bench-trial-evidence` measures it on all corpora in the
repository."""
LIMIT: Final[Mapping[Task, float]] = {Task.CLASSIFICATION: 0.3, Task.REGRESSION: 0.3, Task.LANGUAGE_MODEL: 0.5}
"""Limit on what is seen: a loss that is lower by half counts as one that is lower by a quarter."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """The relation of a model's validation loss to the measure of its task."""

    task: Task = Task.CLASSIFICATION
    characters_per_token: float = 1.0
    """For a language model, whose loss is in nats per token."""

    @classmethod
    def of(cls, task: Task, figures: Mapping[str, float]) -> Self:
        """Return the scale by the named figures of a run.

        Characters per token are those by which its validation loss gave its bits per character; 1 where one is unknown.
        """
        loss, bits = (figures.get(f"validation_{name}", 0.0) for name in ("loss", BITS_PER_CHARACTER.name))
        characters = loss / math.log(2) / bits if loss > 0 and bits > 0 else 1.0
        return cls(task, characters if math.isfinite(characters) else 1.0)

    def seen(self, nothing: float, grown: float) -> float:
        """Return the reduction of the loss by a growth, within the limit: log(nothing / grown).

        For a language model, the difference in bits per character. Losses of 0 or below, which some users' loss
        functions return, have no ratio: then only the sign counts.
        """
        limit = LIMIT[self.task]
        if self.task is Task.LANGUAGE_MODEL:
            found = (nothing - grown) / math.log(2) / self.characters_per_token
        elif nothing <= 0 or grown <= 0:
            found = math.copysign(limit, nothing - grown) if nothing != grown else 0.0
        else:
            found = math.log(nothing) - math.log(grown)
        return max(-limit, min(limit, found))


ACCURACY_SCALE: Final = LossScale()


@dataclass(frozen=True, slots=True)
class TrialGain:
    """The gain of one growth, estimated from a trial."""

    gain: float
    """Gain in the task's measure at the end."""
    deviation: float
    """Standard deviation of the gain."""


def trial_gains(arms: Iterable[Arm], scale: LossScale = ACCURACY_SCALE) -> dict[str, TrialGain]:
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
        evidence = _evidence(arm, ends[-1].share, scale.task) if ends and arm.annealed == nothing.annealed else None
        if evidence is not None:
            difference = scale.seen(compared[ends[-1].share], ends[-1].loss)
            found[action] = TrialGain(evidence.slope * difference, evidence.deviation)
    return found


def _evidence(arm: Arm, share: float, task: Task) -> Evidence | None:
    return EVIDENCE[task][Trials.CONFIRM] if arm.annealed else RACING[task].get(share)


INTERVAL: Final = 2 * 1.2816
"""Width, in standard deviations, of a policy's intervals, which cover four cases of five."""
_UNEXPLAINED: Final = 2 / 3
"""Deviation of gains not covered by a policy's interval, in `SPREAD`: its estimates differ less than models do."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal distribution of a growth's gain."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, expected: ExpectedGain | None, task: Task) -> Self:
        """Return the belief before a trial: the policy's expectation, or the task's spread around 0 without one."""
        mean, width = (
            (0.0, SPREAD[task]) if expected is None else (expected.mean, (expected.high - expected.low) / INTERVAL)
        )
        return cls(mean, math.hypot(width, _UNEXPLAINED * SPREAD[task]))

    def after(self, seen: float, evidence: Evidence) -> float:
        """Return the mean after a trial: two normal distributions combined by Bayes' rule."""
        trust = self.deviation**2 / (self.deviation**2 + evidence.deviation**2)
        return (1 - trust) * self.mean + trust * evidence.slope * seen
