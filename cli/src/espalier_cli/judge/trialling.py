"""What a policy's advice leads to at the moments of one case and seed, alone, with `Confirm` and with `Race`.

The rules of what is tried, how long, and who wins are the trainer's (`espalier_trainer.trials.rules`). The base goes on
training meanwhile; `Confirm` has one extra GPU, which tries its arms in turn, and `Race` `RACE_GPUS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_api.advice import Action
from espalier_api.growth_corpus import CaseRecord, MomentRecord
from espalier_api.job import Trials
from espalier_api.report import Arm
from espalier_cli.judge.case import Case
from espalier_cli.judge.course import Course, Slice
from espalier_cli.judge.deciding import Setting
from espalier_cli.judge.records import TrialRecord, TrialsRecord, rounded
from espalier_trainer.trials.rules import SHARES, arms, best

RACE_GPUS: Final = 4
"""Extra GPUs of a race: three growths and nothing."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a policy says at a moment."""

    action: Action
    allowed: tuple[Action, ...] = ()
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """By the action's text."""


def proposal(policy: Policy, record: CaseRecord, moment: MomentRecord) -> Proposal:
    """Return what the policy proposes; nothing where the model cannot grow."""
    request = record.request(moment)
    if request is None:
        return Proposal(Action.nothing())
    decision = decide(policy, request)
    given = {str(entry.action): entry.probability for entry in decision.probabilities}
    return Proposal(decision.action, tuple(entry.action for entry in decision.probabilities), given)


def tried(case: Case, record: CaseRecord, setting: Setting, policy: Policy) -> TrialsRecord:
    """Train what the policy's trials need, beyond the arms that `record` has."""
    found = [proposal(policy, record, moment) for moment in record.moments]
    course = None
    if any(one.action.grows for one in found):
        course = Course.begin(case, record.seed, setting.operations)
    moments = []
    for said, moment in zip(found, record.moments, strict=True):
        outcome = {str(arm.action): arm.accuracy for arm in moment.arms}
        nothing = outcome[str(Action.nothing())]
        confirmed, confirm, winner, race = None, nothing, Action.nothing(), nothing
        if course is not None:
            course.advance(moment.share * course.budget)
        if course is not None and said.action.grows:
            confirmed, confirm = _confirm(course, said, nothing)
            winner, race = _race(course, said, nothing)
        moments.append(
            TrialRecord(
                share=moment.share,
                advice=said.action,
                confirmed=confirmed,
                confirm_accuracy=confirm,
                race_winner=winner,
                race_accuracy=race,
            )
        )
    return TrialsRecord(case=case.name, seed=record.seed, policy=version_of(policy), moments=tuple(moments))


def version_of(policy: Policy) -> str:
    """Return name and version in one text, and those of the policy for strangers."""
    own = f"{policy.name}@{policy.version}"
    return own if policy.strangers is None else f"{own}, {version_of(policy.strangers)}"


def _trial(course: Course, action: Action, part: Slice) -> tuple[Course, Arm]:
    """Return the copy that tried an action in a slice, and what came of it."""
    copy = course.grown(action)
    copy.advance(part.ends, within=part)
    loss = copy.score(course.case.validation).loss
    return copy, Arm(action=str(action), loss=loss if math.isfinite(loss) else None, steps=copy.steps - course.steps)


def _slice(course: Course, manner: Trials) -> Slice:
    return Slice(course.used, course.used + SHARES[manner] * (course.budget - course.used))


def _confirm(course: Course, said: Proposal, nothing: float) -> tuple[bool, float]:
    """Return whether a trial on one extra GPU spoke for the advice, and the accuracy in the end."""
    ((*actions,),) = arms(Trials.CONFIRM, said.action, said.allowed, said.probabilities, 1)
    part = _slice(course, Trials.CONFIRM)
    won = best(_trial(course, action, part)[1] for action in actions)
    if won is None or won.action != str(said.action):
        return False, nothing
    late = course.restarted()
    late.advance(course.used + len(actions) * (part.ends - part.begins))
    return True, rounded(late.grown(said.action).finish().accuracy)


def _race(course: Course, said: Proposal, nothing: float) -> tuple[Action, float]:
    """Return who wins a race, and its accuracy in the end; the base goes on where nothing wins."""
    part = _slice(course, Trials.RACE)
    copies = {}
    results = []
    for (action,) in arms(Trials.RACE, said.action, said.allowed, said.probabilities, RACE_GPUS):
        copy, arm = _trial(course, action, part)
        copies[arm.action] = (action, copy)
        results.append(arm)
    won = best(results)
    if won is None or won.action == str(Action.nothing()):
        return Action.nothing(), nothing
    action, copy = copies[won.action]
    return action, rounded(copy.finish().accuracy)
