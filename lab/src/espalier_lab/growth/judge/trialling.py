"""Results of a policy's advice at the moments of one case and seed, alone, with `Confirm` and with `Race`.

The rules on arms, durations and winners are the trainer's (`espalier_trainer.trials.rules`). The base continues to
train meanwhile; `Confirm` has one extra GPU, which tries its arms in turn, and `Race` `RACE_GPUS`. An arm of a race
trains as it does without one, so the winner ends as its arm does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_core.estimates.gains import ACCURACY_SCALE, SHARES, LossScale
from espalier_core.types.advice import Action, ExpectedGain
from espalier_core.types.job import Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, CaseRecord, MomentRecord
from espalier_core.types.report import Arm, Slice
from espalier_lab.growth.judge.case import JudgeCase
from espalier_lab.growth.judge.case_run import CaseRun
from espalier_lab.growth.judge.deciding import Setting
from espalier_lab.growth.judge.records import TrialRecord, TrialsRecord, rounded
from espalier_trainer.trials.rules import arms, behind, best, ranked, slices

RACE_GPUS: Final = 4
"""Extra GPUs of a race: three growths and nothing."""
_DO_NOTHING: Final = Action.nothing()
_NOTHING: Final = str(Action.nothing())


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposal of a policy at a moment."""

    action: Action
    growths: tuple[Action, ...] = ()
    """Growths to try, the most promising first."""
    gains: Mapping[str, ExpectedGain] = field(default_factory=dict)
    """Expected gains by the action's text."""
    scale: LossScale = ACCURACY_SCALE


def proposal(policy: Policy, record: CaseRecord, moment: MomentRecord) -> Proposal:
    """Return the policy's proposal; nothing if the model cannot grow."""
    request = record.request(moment)
    if request is None:
        return Proposal(Action.nothing())
    decision = decide(policy, request)
    given = {str(entry.action): entry.probability for entry in decision.probabilities}
    gains = {str(entry.action): entry.gain for entry in decision.probabilities if entry.gain is not None}
    allowed = tuple(entry.action for entry in decision.probabilities)
    scale = LossScale.of(record.task, {each.name: each.value for each in request.progress.metrics})
    return Proposal(decision.action, ranked(decision.action, allowed, given, gains), gains, scale)


def tried(case: JudgeCase, record: CaseRecord, setting: Setting, policy: Policy) -> TrialsRecord:
    """Return the results of the policy's trials. Losses come from `record`; late growths are trained."""
    run: CaseRun | None = None
    moments = []
    for moment in record.moments:
        proposed = proposal(policy, record, moment)
        outcome = {str(arm.action): arm.accuracy for arm in moment.every}
        confirmed = best(confirmation(proposed, moment), Trials.CONFIRM, proposed.gains, proposed.scale)
        confirm = outcome[_NOTHING]
        if confirmed is not None and confirmed.action != _NOTHING:
            run = run or CaseRun.begin(case, record.seed, setting.operations)
            run.advance(moment.share * run.budget)
            confirm = _late(run, proposed.growths[0])
        moments.append(
            TrialRecord(
                share=moment.share,
                advice=proposed.action,
                confirmed=None if confirmed is None else confirmed.action != _NOTHING,
                confirm_accuracy=confirm,
                race_winner=(winner := race_winner(proposed, moment)),
                race_accuracy=outcome[str(winner)],
            )
        )
    return TrialsRecord(case=case.name, seed=record.seed, policy=version_of(policy), moments=tuple(moments))


def confirmation(proposed: Proposal, moment: MomentRecord) -> tuple[Arm, ...]:
    """Return the results of the arms of `Confirm`, tried in turn on one extra GPU."""
    found = {arm.action: arm.slice_loss for arm in moment.every}
    wanted = [action for actions in arms(Trials.CONFIRM, proposed.growths, 1) for action in actions]
    return tuple(Arm(action=str(action), loss=found[action]) for action in wanted)


def race_winner(proposed: Proposal, moment: MomentRecord, gpus: int = RACE_GPUS) -> Action:
    """Return the winner of a race with `gpus` extra GPUs."""
    won = best(raced(proposed, moment, gpus), Trials.RACE, proposed.gains, proposed.scale)
    return next((arm.action for arm in moment.every if won is not None and str(arm.action) == won.action), _DO_NOTHING)


def raced(proposed: Proposal, moment: MomentRecord, gpus: int = RACE_GPUS) -> tuple[Arm, ...]:
    """Return the results of the arms of a `Race`: each trains on as without one; with one GPU, against the base."""
    wanted = [action for actions in arms(Trials.RACE, proposed.growths, gpus) for action in actions]
    if wanted and Action.nothing() not in wanted:
        wanted.append(Action.nothing())
    growths = sum(action.grows for action in wanted)
    trained = {arm.action: arm for arm in moment.every}
    found = {action: _run(trained[action], slices(Trials.RACE, growths)) for action in wanted}
    gone: set[str] = set()
    for share in slices(Trials.RACE, growths)[:-1]:
        left = [arm for action, arm in found.items() if action.grows and arm.action not in gone]
        gone |= behind(share, left, found[Action.nothing()], proposed.gains, proposed.scale)
    return tuple(arm.model_copy(update={"loss": None}) if arm.action in gone else arm for arm in found.values())


def _run(arm: ArmRecord, shares: tuple[float, ...]) -> Arm:
    """Return an arm of a race in the form of its worker's report."""
    losses = {share: arm.losses[MARKS.index(share)] for share in shares}
    ends = tuple(Slice(share=share, loss=loss) for share, loss in losses.items() if loss is not None)
    return Arm(action=str(arm.action), loss=losses[shares[-1]], slices=ends)


def _late(run: CaseRun, action: Action) -> float:
    """Return the final accuracy of a growth after both arms of `Confirm` have been tried in turn."""
    late = run.restarted()
    late.advance(run.used + 2 * SHARES[Trials.CONFIRM] * (run.budget - run.used))
    return rounded(late.grown(action).finish().accuracy)


def version_of(policy: Policy) -> str:
    """Return name and version in one text, with those of the policy for strangers."""
    own = f"{policy.name}@{policy.version}"
    return own if policy.strangers is None else f"{own}, {version_of(policy.strangers)}"
