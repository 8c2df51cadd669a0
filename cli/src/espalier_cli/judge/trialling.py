"""What a policy's advice leads to at the moments of one case and seed, alone, with `Confirm` and with `Race`.

The rules are in `espalier_api.trials`. The base goes on training while trials run; `Confirm` has one extra GPU, `Race`
one for each of its arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_api.advice import Action
from espalier_api.growth_corpus import CaseRecord, MomentRecord
from espalier_api.trials import (
    CONFIRM_SHARE,
    NOTHING,
    RACE_ROUNDS,
    confirmed,
    entrants,
    race_slices,
    slice_of,
    survivors,
    verdict_at,
)
from espalier_cli.judge.case import Case
from espalier_cli.judge.course import Course
from espalier_cli.judge.deciding import Setting
from espalier_cli.judge.records import TrialRecord, TrialsRecord, rounded

RACE_GPUS: Final = 4
"""Extra GPUs of a race: three growths and nothing."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a policy says at a moment."""

    action: Action
    growths: tuple[Action, ...]
    """All growths that were allowed, the most promising first."""


def proposal(policy: Policy, record: CaseRecord, moment: MomentRecord) -> Proposal:
    """Return what the policy proposes; nothing where the model cannot grow."""
    request = record.request(moment)
    if request is None:
        return Proposal(Action.nothing(), ())
    decision = decide(policy, request)
    growths = [entry for entry in decision.probabilities if entry.action.grows]
    order = entrants([entry.probability for entry in growths], len(growths) + 1)
    return Proposal(decision.action, tuple(growths[place].action for place in order))


def tried(case: Case, record: CaseRecord, setting: Setting, policy: Policy) -> TrialsRecord:
    """Train what the policy's trials need, beyond the arms that `record` has."""
    course = Course.begin(case, record.seed, setting.operations)
    moments = []
    for moment in record.moments:
        course.advance(moment.share * course.budget)
        found = proposal(policy, record, moment)
        outcome = {str(arm.action): arm.accuracy for arm in moment.arms}
        verdict, confirm = _confirm(course, found.action, outcome)
        winner, race, losses = _race(course, found.growths[: RACE_GPUS - 1], outcome)
        moments.append(
            TrialRecord(
                share=moment.share,
                advice=found.action,
                confirmed=verdict,
                confirm_accuracy=confirm,
                race_winner=winner,
                race_accuracy=race,
                losses=tuple(loss if math.isfinite(loss) else None for loss in losses),
            )
        )
    return TrialsRecord(case=case.name, seed=record.seed, policy=version_of(policy), moments=tuple(moments))


def version_of(policy: Policy) -> str:
    """Return name and version in one text."""
    return f"{policy.name}@{policy.version}"


def _confirm(course: Course, action: Action, outcome: dict[str, float]) -> tuple[bool | None, float]:
    """Return the verdict of a trial on one extra GPU, and the accuracy in the end."""
    nothing = outcome[str(Action.nothing())]
    if not action.grows:
        return None, nothing
    trial = slice_of(course.used, course.budget, CONFIRM_SHARE)
    losses = []
    for arm in (course.restarted(), course.grown(action)):
        arm.advance(trial.ends, within=trial)
        losses.append(arm.score(course.case.validation).loss)
    if not confirmed(*losses):
        return False, nothing
    late = course.restarted()
    late.advance(verdict_at(course.used, course.budget, share=CONFIRM_SHARE, arms=2, gpus=1))
    return True, rounded(late.grown(action).finish().accuracy)


def _race(
    course: Course, growths: Sequence[Action], outcome: dict[str, float]
) -> tuple[Action, float, tuple[float, ...]]:
    """Return who wins a race, its accuracy in the end, and the losses of the first round."""
    actions = (Action.nothing(), *growths)
    if len(actions) == 1:
        return actions[NOTHING], outcome[str(actions[NOTHING])], ()
    running = {place: course.grown(action) for place, action in enumerate(actions)}
    first: tuple[float, ...] = ()
    for part, round_ in zip(race_slices(course.used, course.budget), RACE_ROUNDS, strict=True):
        places = sorted(running)
        losses = []
        for place in places:
            running[place].advance(part.ends, within=part)
            losses.append(running[place].score(course.case.validation).loss)
        first = first or tuple(map(rounded, losses))
        kept = {places[one] for one in survivors(losses, round_.keep)}
        running = {place: running[place] for place in sorted(kept)}
    (winner,) = running
    if winner == NOTHING:
        # The base went on with the rate of the whole budget.
        return actions[NOTHING], outcome[str(actions[NOTHING])], first
    return actions[winner], rounded(running[winner].finish().accuracy), first
