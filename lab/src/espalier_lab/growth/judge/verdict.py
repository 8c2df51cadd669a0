"""The verdict from the records of all cases: regret, harm, and their uncertainty. Pure.

Regret is test accuracy below the best arm of a decision (a case at a moment), both means over the seeds. The best is
chosen by the same seeds, so a part of the regret is their luck, which no advisor can know. An advisor does harm if it
ends more than `HARM` below doing nothing. Intervals are 95 %, by a bootstrap over families: models of a family resemble
each other, so cases are not independent.
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
from espalier_core.types.task import Task
from espalier_lab.growth.judge.records import TrialRecord, TrialsRecord
from espalier_lab.intervals import Interval

RESAMPLES: Final = 2000
_HARM: Final = HARM[Task.CLASSIFICATION]
"""Records hold the quality of each task's model as a number between 0 and 1, like an accuracy."""
_SEED: Final = 18


@dataclass(frozen=True, slots=True)
class JudgedMoment:
    """One case at one moment: accuracies of arms and of advisors, means over seeds."""

    case: str
    family: str
    share: float
    arms: Mapping[str, tuple[float, ...]]
    """Accuracy of each seed, by action."""
    advised: Mapping[str, tuple[float, ...]]
    """Accuracy of each seed, by advisor. None: never grow; first: always the first growth that the model offers;
    advice: the policy alone; confirm, race and auto: with trials."""

    @property
    def best(self) -> str:
        """The action with the highest mean."""
        return max(self.arms, key=lambda action: statistics.fmean(self.arms[action]))

    def regret(self, advisor: str) -> float:
        """Return the accuracy below the best arm; with a race's or a late growth it can be negative."""
        return statistics.fmean(self.arms[self.best]) - statistics.fmean(self.advised[advisor])

    def harm(self, advisor: str) -> bool:
        """Return whether the advisor does harm."""
        return statistics.fmean(self.advised["none"]) - statistics.fmean(self.advised[advisor]) > _HARM


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """Figures over all decisions."""

    decisions: tuple[JudgedMoment, ...]
    regret: Mapping[str, float]
    worse: Mapping[str, float]
    interval: Mapping[str, tuple[float, float]]
    """Interval of the regret, by advisor."""
    paired: Mapping[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)
    """For an advisor and a simpler one: the mean difference of their regrets, and its interval."""

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
            outcomes = [_outcomes(one) for one in moments]
            common = [action for action in outcomes[0] if all(action in one for one in outcomes)]
            pairs = [(one, tried[case, record.seed].moments[place]) for one, record in zip(outcomes, seeds, strict=True)
                     if (case, record.seed) in tried]  # fmt: skip
            advised = {
                "none": tuple(one[_NOTHING] for one in outcomes),
                "first": tuple(one[common[1] if len(common) > 1 else _NOTHING] for one in outcomes),
            }
            for name, rule in rules.items():
                said = [rule(record, one) for record, one in zip(seeds, moments, strict=True)]
                advised[name] = tuple(
                    one[str(each)] if isinstance(each, Action) else each
                    for one, each in zip(outcomes, said, strict=True)
                )
            if len(pairs) == len(seeds):
                for name, read in _TRIED.items():
                    advised[name] = tuple(read(one, trial) for one, trial in pairs)
            found.append(
                JudgedMoment(
                    case=case,
                    family=seeds[0].family,
                    share=moment.share,
                    arms={action: tuple(one[action] for one in outcomes) for action in common},
                    advised=advised,
                )
            )
    return tuple(found)


_NOTHING: Final = str(Action.nothing())
_TRIED: Final[dict[str, Callable[[dict[str, float], TrialRecord], float]]] = {
    "advice": lambda outcomes, trial: outcomes[str(trial.advice)],
    "confirm": lambda outcomes, trial: trial.confirm_accuracy,
    "race": lambda outcomes, trial: trial.race_accuracy,
    "auto": lambda outcomes, trial: trial.auto_accuracy,
}


def _outcomes(moment: MomentRecord) -> dict[str, float]:
    return {str(arm.action): arm.accuracy for arm in moment.arms}


def judged(decisions: Sequence[JudgedMoment]) -> JudgeVerdict:
    """Return the figures over the decisions; raise `ValueError` without one."""
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
    paired: dict[tuple[str, str], tuple[float, float, float]] = {}
    for name in names:
        for simple in ("none", "first", "advice"):
            if simple in names and name not in ("none", "first", simple):
                differences = [a - b for a, b in zip(means[name], means[simple], strict=True)]
                paired[name, simple] = (regret[name] - regret[simple], *_interval(differences))
    return JudgeVerdict(
        decisions=tuple(decisions),
        regret=regret,
        worse={name: statistics.fmean(one.harm(name) for one in decisions) for name in names},
        interval={name: _interval(means[name]) for name in names},
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
    if gain_of(best) <= _HARM:
        return "Growing does not pay for this model: no growth ends above the model as it is."
    low, high = _bounds(best, growths)
    sure = "" if low > 0 else ", but the seeds do not agree enough to be sure"
    chosen = f", allowing for the choice among {growths}" if growths > 1 else ""
    return (
        f"Growing pays for this model: {best.best} at {best.share:.0%} of the budget ends {gain_of(best):+.3f} above "
        f"not growing ({low:+.3f} to {high:+.3f}{chosen}){sure}."
    )


def _of_many(verdict: JudgeVerdict) -> str:
    """Return a sentence on the gain of the best growths on seeds that did not choose them, if there are several."""
    several = all(len(one.advised["none"]) > 1 for one in verdict.decisions)
    gains = [(unseen_gain if several else gain_of)(one) for one in verdict.decisions]
    chosen = (
        "by all seeds but one, and judged by that one" if several else "and judged by the same seed, which flatters it"
    )
    return (
        f"The best growth, chosen {chosen}, beats not growing in {sum(gain > _HARM for gain in gains)} of {len(gains)} "
        f"decisions, by {statistics.fmean(gains):+.3f} on average over all; "
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
    """Return the interval of the best arm's gain, paired by seed; one seed excludes no possible gain.

    The arm is the best of `growths`, by the same seeds. Without a correction, an interval of noise would exclude 0 from
    below in a tenth of the judgements.
    """
    pairs = zip(decision.arms[decision.best], decision.advised["none"], strict=True)
    _, low, high = Interval.of([grown - nothing for grown, nothing in pairs], growths)
    return (-1.0 if low is None else low), (1.0 if high is None else high)
