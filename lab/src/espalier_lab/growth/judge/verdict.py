"""The verdict from the records of all cases: regret, harm, and their uncertainty. Pure.

Regret is the lead of the best arm of a decision (a case at a moment) over an advisor on the test split, in the measure
of the task, both means over the seeds. The best is chosen by the same seeds, so a part of the regret is their luck,
which no advisor can know. An advisor does harm if it ends more than `HARM` worse than doing nothing. Intervals are
95 %, by a bootstrap over families: models of a family resemble each other, so cases are not independent. One family has
none.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from espalier_core.estimates.gains import HARM
from espalier_core.types.advice import Action
from espalier_core.types.outcomes import CaseRecord, MomentRecord
from espalier_core.types.task import MEASURE_OF, Measure, Task, score_of
from espalier_lab.growth.judge.records import TrialRecord, TrialsRecord
from espalier_lab.intervals import Interval

RESAMPLES: Final = 2000
_SEED: Final = 18


@dataclass(frozen=True, slots=True)
class JudgedMoment:
    """One case at one moment: the scores of arms and of advisors, by seed.

    A score is in the measure of the task; bits per character are negative, so that more is better everywhere.
    """

    case: str
    family: str
    share: float
    arms: Mapping[str, tuple[float, ...]]
    """Score of each seed, by action."""
    advised: Mapping[str, tuple[float, ...]]
    """Score of each seed, by advisor. None: never grow; first: always the first growth that the model offers;
    advice: the policy alone; confirm, race and auto: with trials."""
    task: Task = Task.CLASSIFICATION

    @property
    def best(self) -> str:
        """The action with the highest mean."""
        return max(self.arms, key=lambda action: statistics.fmean(self.arms[action]))

    def regret(self, advisor: str) -> float:
        """Return the lead of the best arm; with a race's or a late growth it can be negative."""
        return statistics.fmean(self.arms[self.best]) - statistics.fmean(self.advised[advisor])

    def harm(self, advisor: str) -> bool:
        """Return whether the advisor does harm."""
        return statistics.fmean(self.advised["none"]) - statistics.fmean(self.advised[advisor]) > HARM[self.task]


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """Figures over all decisions."""

    decisions: tuple[JudgedMoment, ...]
    regret: Mapping[str, float]
    worse: Mapping[str, float]
    interval: Mapping[str, tuple[float, float]]
    """Interval of the regret, by advisor; empty for one family."""
    paired: Mapping[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)
    """For an advisor and a simpler one: the mean difference of their regrets, and its interval."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures of the cases: one, or accuracy and R², which are both shares."""
        return tuple(dict.fromkeys(MEASURE_OF[one.task] for one in self.decisions))

    @property
    def title(self) -> str:
        """The measure for people."""
        return " or ".join(measure.title for measure in self.measures)

    @property
    def families(self) -> int:
        """Number of families."""
        return len({decision.family for decision in self.decisions})

    @property
    def cases(self) -> int:
        """Number of cases."""
        return len({decision.case for decision in self.decisions})

    def document(self) -> dict[str, object]:
        """Return the JSON for scripts."""
        return {
            "cases": self.cases,
            "families": self.families,
            "measures": [measure.name for measure in self.measures],
            "regret": {name: round(value, 5) for name, value in self.regret.items()},
            "worseThanNone": {name: round(value, 4) for name, value in self.worse.items()},
            "interval": {name: [round(low, 5), round(high, 5)] for name, (low, high) in self.interval.items()},
        }


Rule = Callable[[CaseRecord, MomentRecord], Action | float]
"""An advisor that needs no training: returns its action at a moment, or the accuracy that it reaches."""


def decisions_of(
    arms: Sequence[CaseRecord], trials: Sequence[TrialsRecord] = (), rules: Mapping[str, Rule] = MappingProxyType({})
) -> tuple[JudgedMoment, ...]:
    """Gather the seeds of each case and moment.

    The advisors are none, first and those of `rules`, and with trials of all seeds also advice, confirm, race and auto.
    """
    tried = {(one.case, one.seed): one for one in trials}
    found = []
    for case in dict.fromkeys(record.case for record in arms):
        seeds = [record for record in arms if record.case == case]
        for place, moment in enumerate(seeds[0].moments):
            moments = [record.moments[place] for record in seeds]
            task = seeds[0].task
            outcomes = [_outcomes(task, one) for one in moments]
            common = [action for action in outcomes[0] if all(action in one for one in outcomes)]
            pairs = [(one, tried[case, record.seed].moments[place]) for one, record in zip(outcomes, seeds, strict=True)
                     if (case, record.seed) in tried]  # fmt: skip
            plain = [str(arm.action) for arm in moment.arms]
            first = next((action for action in plain[1:] if action in common), _NOTHING)
            advised = {
                "none": tuple(one[_NOTHING] for one in outcomes),
                "first": tuple(one[first] for one in outcomes),
            }
            for name, rule in rules.items():
                said = [rule(record, one) for record, one in zip(seeds, moments, strict=True)]
                advised[name] = tuple(
                    one[str(each)] if isinstance(each, Action) else _lead(task, each)
                    for one, each in zip(outcomes, said, strict=True)
                )
            if len(pairs) == len(seeds):
                for name, read in _TRIED.items():
                    advised[name] = tuple(read(task, one, trial) for one, trial in pairs)
            found.append(
                JudgedMoment(
                    case=case,
                    family=seeds[0].family,
                    share=moment.share,
                    arms={action: tuple(one[action] for one in outcomes) for action in common},
                    advised=advised,
                    task=task,
                )
            )
    return tuple(found)


_NOTHING: Final = str(Action.nothing())
_TRIED: Final[dict[str, Callable[[Task, dict[str, float], TrialRecord], float]]] = {
    "advice": lambda _, outcomes, trial: outcomes[str(trial.advice)],
    "confirm": lambda task, _, trial: _lead(task, trial.confirm_accuracy),
    "race": lambda task, _, trial: _lead(task, trial.race_accuracy),
    "auto": lambda task, _, trial: _lead(task, trial.auto_accuracy),
}


def _outcomes(task: Task, moment: MomentRecord) -> dict[str, float]:
    """Return the score of each arm, inexact insertions among them."""
    return {str(arm.action): _lead(task, arm.accuracy) for arm in moment.every}


def _lead(task: Task, quality: float) -> float:
    """Return the score of a model in its task's measure, negative where lower is better."""
    score = score_of(task, quality)
    return score.value if score.by.higher_is_better else -score.value


def judged(decisions: Sequence[JudgedMoment], simple: Sequence[str] = ("none", "first")) -> JudgeVerdict:
    """Return the figures over the decisions, with others paired with the `simple` advisors and the advice.

    Raise `ValueError` without a decision. Those of language models must be alone: bits have no mean with shares.
    """
    if not decisions:
        raise ValueError("there is no decision to judge")
    names = tuple(decisions[0].advised)
    by_family: dict[str, list[JudgedMoment]] = {}
    for decision in decisions:
        by_family.setdefault(decision.family, []).append(decision)
    sums = {
        family: (len(ones), {name: sum(one.regret(name) for one in ones) for name in names})
        for family, ones in by_family.items()
    }
    chance = random.Random(_SEED)
    drawn = [chance.choices(list(sums.values()), k=len(sums)) for _ in range(RESAMPLES)]
    means: dict[str, list[float]] = {
        name: [sum(total[name] for _, total in ones) / sum(count for count, _ in ones) for ones in drawn]
        for name in names
    }
    regret = {name: statistics.fmean(one.regret(name) for one in decisions) for name in names}
    several = len(by_family) > 1
    paired: dict[tuple[str, str], tuple[float, float, float]] = {}
    for name in names:
        for other in (*simple, "advice"):
            if other in names and name not in (*simple, other) and several:
                differences = [a - b for a, b in zip(means[name], means[other], strict=True)]
                paired[name, other] = (regret[name] - regret[other], *_interval(differences))
    return JudgeVerdict(
        decisions=tuple(decisions),
        regret=regret,
        worse={name: statistics.fmean(one.harm(name) for one in decisions) for name in names},
        interval={name: _interval(means[name]) for name in names if several},
        paired=paired,
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[round(0.025 * (len(ordered) - 1))], ordered[round(0.975 * (len(ordered) - 1))]


def sentence(verdict: JudgeVerdict) -> str:
    """Return a sentence on whether growing pays for these models."""
    growths = sum(len(one.arms) - 1 for one in verdict.decisions)
    if not growths:
        return "Growing is not possible: no model has a place to grow (`espalier points` says why)."
    if len(verdict.decisions) > len({one.share for one in verdict.decisions}):
        return _of_many(verdict)
    best = max(verdict.decisions, key=gain_of)
    gain = gain_of(best)
    if gain <= HARM[best.task]:
        return "Growing does not pay for this model: no growth ends better than the model as it is."
    low, high = _bounds(best, growths)
    by = "higher" if MEASURE_OF[best.task].higher_is_better else "lower"
    what = f"{best.best} at {best.share:.0%} of the budget ends {gain:.3f} {by} in {verdict.title} than not growing"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"One seed cannot tell whether growing pays for this model: {what}. --seeds 5 has an interval."
    chosen = f", allowing for the choice among {growths}" if growths > 1 else ""
    within = f"({low:+.3f} to {high:+.3f}{chosen})"
    if low > 0:
        return f"Growing pays for this model: {what} {within}."
    return f"The seeds do not agree whether growing pays for this model: {what} {within}. More --seeds may tell."


def _of_many(verdict: JudgeVerdict) -> str:
    """Return a sentence on the gain of the best growths on seeds that did not choose them, if there are several."""
    several = all(len(one.advised["none"]) > 1 for one in verdict.decisions)
    gains = [(unseen_gain if several else gain_of)(one) for one in verdict.decisions]
    chosen = (
        "by all seeds but one, and judged by that one" if several else "and judged by the same seed, which flatters it"
    )
    better = sum(gain > HARM[one.task] for gain, one in zip(gains, verdict.decisions, strict=True))
    return (
        f"The best growth, chosen {chosen}, beats not growing in {better} of {len(gains)} decisions, by "
        f"{statistics.fmean(gains):+.3f} ({verdict.title}) on average over all; "
        f"the advice gains {verdict.regret['none'] - verdict.regret['advice']:+.3f}."
    )


def gain_of(decision: JudgedMoment) -> float:
    """Return the lead of the best arm over doing nothing: at least 0, as the same seeds choose it."""
    return statistics.fmean(decision.arms[decision.best]) - statistics.fmean(decision.advised["none"])


def unseen_gain(decision: JudgedMoment) -> float:
    """Return the mean lead over doing nothing, on the left-out seed, of the arm that the other seeds choose.

    It favours no arm for its luck, so it may be negative. There must be two seeds.
    """
    nothing = decision.advised["none"]
    totals = {action: math.fsum(values) for action, values in decision.arms.items()}
    gains = []
    for seed, without in enumerate(nothing):
        others = {action: totals[action] - values[seed] for action, values in decision.arms.items()}
        gains.append(decision.arms[max(others, key=others.__getitem__)][seed] - without)
    return statistics.fmean(gains)


def _bounds(decision: JudgedMoment, growths: int) -> tuple[float, float]:
    """Return the interval of the best arm's gain, paired by seed; infinite for one seed.

    The arm is the best of `growths`, by the same seeds. Without a correction, an interval of noise would exclude 0 from
    below in a tenth of the judgements.
    """
    pairs = zip(decision.arms[decision.best], decision.advised["none"], strict=True)
    _, low, high = Interval.of([grown - nothing for grown, nothing in pairs], growths)
    return (-math.inf if low is None else low), (math.inf if high is None else high)
