"""Results of a policy's advice at the moments of one case and seed, alone and with trials: `Confirm`, `Race`, `Auto`.

The rules on arms, durations and winners are the trainer's (`espalier_trainer.trials.rules`). The base continues to
train meanwhile; `Confirm` has one extra GPU, which tries its arms in turn, `Race` and `Auto` have `RACE_GPUS`. An
arm of a race trains as it does without one, so the winner ends as its arm does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from espalier_agent.policies.advice import answer_of, decide
from espalier_agent.policies.policy import Policy
from espalier_core.estimates.gains import ACCURACY_SCALE, SHARES, LossScale
from espalier_core.types.advice import Action, ExpectedGain, familiarity_by
from espalier_core.types.job import Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, CaseRecord, MomentRecord
from espalier_core.types.report import Arm, Slice
from espalier_lab.growth.judge.case import JudgeCase
from espalier_lab.growth.judge.case_run import CaseRun
from espalier_lab.growth.judge.deciding import Setting
from espalier_lab.growth.judge.records import TrialRecord, TrialsRecord, rounded
from espalier_trainer.trials.rules import arms, behind, best, keeps_winner, lent, ranked, slices, worth

RACE_GPUS: Final = 4
"""Extra GPUs of a race: three growths and nothing."""
TRIED: Final = (Trials.CONFIRM, Trials.RACE, Trials.AUTO)
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
    known: bool = True
    """Whether the policy knows such models; if not, it states no gains."""


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
    familiarity = familiarity_by(answer_of(policy, decision, "judge").familiarity, record.task, bool(gains))
    known = familiarity is None or familiarity.known
    gains = gains if known else {}
    return Proposal(decision.action, ranked(decision.action, allowed, given, gains), gains, scale, known)


def tried(case: JudgeCase, record: CaseRecord, setting: Setting, policy: Policy) -> TrialsRecord:
    """Return the results of the policy's trials. Losses come from `record`; late growths are trained."""
    run: CaseRun | None = None
    moments = []
    for moment in record.moments:
        proposed = proposal(policy, record, moment)
        outcome = {str(arm.action): arm.accuracy for arm in moment.every}
        # `Confirm` with one extra GPU.
        ways = {mode: decided_by(mode, proposed, moment, 1 if mode is Trials.CONFIRM else RACE_GPUS) for mode in TRIED}
        ends = {}
        for mode, way in ways.items():
            ends[mode] = outcome[str(way.action)]
            if way.delay > 0:
                run = run or CaseRun.begin(case, record.seed, setting.operations)
                run.advance(moment.share * run.budget)
                ends[mode] = _late(run, way)
        confirmed = None if not ways[Trials.CONFIRM].lent else ways[Trials.CONFIRM].action.grows
        moments.append(
            TrialRecord(
                share=moment.share,
                advice=proposed.action,
                confirmed=confirmed,
                confirm_accuracy=ends[Trials.CONFIRM],
                race_winner=ways[Trials.RACE].action,
                race_accuracy=ends[Trials.RACE],
                auto_accuracy=ends[Trials.AUTO],
                lent={str(mode): rounded((1 - moment.share) * way.lent) for mode, way in ways.items()},
            )
        )
    return TrialsRecord(case=case.name, seed=record.seed, policy=version_of(policy), moments=tuple(moments))


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision at a moment, and what it took."""

    action: Action
    lent: float = 0.0
    """Time of lent workers, in that of one for the remaining time."""
    delay: float = 0.0
    """Share of the remaining time by which a growth is later."""

    def accuracy(self, moment: MomentRecord) -> float:
        """Return the accuracy at the end; what is later is taken to gain less by that share."""
        ends = {str(arm.action): arm.accuracy for arm in moment.every}
        return (1 - self.delay) * ends[str(self.action)] + self.delay * ends[_NOTHING]


def decided_by(mode: Trials, proposed: Proposal, moment: MomentRecord, gpus: int = RACE_GPUS) -> Decided:
    """Return the decision with `gpus` extra GPUs by a kind of trial, from the losses of arms."""
    alone = Decided(proposed.action if proposed.known or mode is not Trials.AUTO else _DO_NOTHING)
    if mode is Trials.AUTO:
        found = worth(proposed.growths, proposed.gains, proposed.scale.task, gpus)
        if found is None or not found.pays:
            return alone
        mode, gpus = found.kind, found.workers
    wanted = arms(mode, proposed.growths, gpus)
    if not wanted:
        return alone
    if keeps_winner(mode, wanted):
        return Decided(race_winner(proposed, moment, gpus), lent(mode, wanted))
    delay = SHARES[Trials.CONFIRM] * max(map(len, wanted))
    won = best(confirmation(proposed, moment), Trials.CONFIRM, proposed.gains, proposed.scale)
    grows = won is not None and won.action != _NOTHING
    return Decided(proposed.growths[0] if grows else _DO_NOTHING, lent(Trials.CONFIRM, wanted), delay if grows else 0.0)


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


def _late(run: CaseRun, way: Decided) -> float:
    """Return the final accuracy of a growth after its trial."""
    late = run.restarted()
    late.advance(run.used + way.delay * (run.budget - run.used))
    return rounded(late.grown(way.action).finish().accuracy)


def version_of(policy: Policy) -> str:
    """Return name and version in one text, with those of its parts."""
    return ", ".join(f"{each.name}@{each.version}" for each in (policy, *policy.parts))
