"""What trials lead to, read from the records of arms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from espalier_agent.policies.policy import open_policy
from espalier_core.estimates.gains import SHARES
from espalier_core.types.advice import Action, ExpectedGain
from espalier_core.types.job import Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, MomentRecord
from espalier_lab.growth.corpus.families import FREE
from espalier_lab.growth.judge.case import CaseFile
from espalier_lab.growth.judge.case_run import CaseRun
from espalier_lab.growth.judge.deciding import Setting, decided
from espalier_lab.growth.judge.trialling import Decided, Proposal, confirmation, decided_by, raced, tried
from espalier_trainer.trials.rules import best

NOTHING = Action.nothing()
FIRST, SECOND = Action.deepen("a"), Action.deepen("b")


def arm(action: Action, slice_loss: float, *losses: float) -> ArmRecord:
    return ArmRecord(action=action, accuracy=0.5, step_cost=1.0, slice_loss=slice_loss, losses=losses)


def told(mean: float) -> ExpectedGain:
    return ExpectedGain(mean=mean, low=mean - 0.01, high=mean + 0.01)


MOMENT = MomentRecord(
    share=0.2,
    validation_accuracy=0.4,
    arms=(
        arm(NOTHING, 1.0, *(1.0 for _ in MARKS)),
        arm(FIRST, 1.2, *(1.3 for _ in MARKS)),
        arm(SECOND, 0.9, *(0.8 for _ in MARKS)),
    ),
)


def test_one_gpu_tries_the_most_promising_growth_and_four_race() -> None:
    said = Proposal(NOTHING, (FIRST, SECOND), {str(FIRST): told(0.01), str(SECOND): told(-0.001)})
    assert [(one.action, one.loss) for one in confirmation(said, MOMENT)] == [(str(FIRST), 1.2), ("Nothing", 1.0)]
    assert best(confirmation(said, MOMENT), Trials.CONFIRM, said.gains, said.scale).action == "Nothing"
    race = raced(said, MOMENT)
    assert [one.action for one in race] == [str(FIRST), str(SECOND), "Nothing"]
    assert best(race, Trials.RACE, said.gains, said.scale).action == str(SECOND)


def test_auto_finds_out_what_is_unsure_and_follows_advice_that_is_sure() -> None:
    unsure = Proposal(NOTHING, (FIRST, SECOND))
    assert decided_by(Trials.AUTO, unsure, MOMENT) == decided_by(Trials.RACE, unsure, MOMENT)
    assert decided_by(Trials.AUTO, unsure, MOMENT).action == SECOND
    bad = {str(action): ExpectedGain(mean=-0.2, low=-0.2, high=-0.2) for action in (FIRST, SECOND)}
    assert decided_by(Trials.AUTO, Proposal(NOTHING, (FIRST, SECOND), bad), MOMENT) == Decided(NOTHING)
    good = {str(FIRST): ExpectedGain(mean=0.2, low=0.2, high=0.2)}
    assert decided_by(Trials.AUTO, Proposal(FIRST, (FIRST,), good), MOMENT) == Decided(FIRST)
    assert decided_by(Trials.AUTO, Proposal(FIRST, (), {}, known=False), MOMENT) == Decided(NOTHING)
    assert decided_by(Trials.OFF, Proposal(FIRST, (), {}, known=False), MOMENT) == Decided(FIRST)


def test_a_growth_that_is_later_gains_less() -> None:
    arms = (arm(NOTHING, 1.0), arm(FIRST, 1.0).model_copy(update={"accuracy": 0.6}))
    moment = MOMENT.model_copy(update={"arms": arms})
    assert Decided(FIRST).accuracy(moment) == pytest.approx(0.6)
    assert Decided(FIRST, delay=0.2).accuracy(moment) == pytest.approx(0.58)


def test_nothing_is_tried_where_nothing_can_grow() -> None:
    assert raced(Proposal(NOTHING), MOMENT) == confirmation(Proposal(NOTHING), MOMENT) == ()


def test_a_race_ends_as_the_arm_of_its_winner_and_what_a_slice_costs_is_lost() -> None:
    case = next(one for one in CaseFile(str(Path(__file__).parent / "models.py"))() if one.name == "mlp/on a table")
    setting = Setting(moments=(0.2,))
    record = decided(case, 0, setting)
    assert all(len(arm.losses) == len(MARKS) and arm.slice_loss is not None for arm in record.moments[0].arms)
    (moment,) = tried(case, record, setting, open_policy(None)).moments
    accuracy = {arm.action: arm.accuracy for arm in record.moments[0].arms}
    assert moment.race_accuracy == accuracy[moment.race_winner]
    assert moment.confirmed is not None
    assert moment.confirmed or moment.confirm_accuracy == accuracy[NOTHING]
    assert set(moment.lent) == {"Confirm", "Race", "Auto"}
    assert moment.lent["Confirm"] == pytest.approx(0.16)  # two arms of a tenth of the four fifths that are left


def test_an_arm_stands_at_the_end_of_a_race_where_it_would_stand_without_one() -> None:
    case = next(one for one in CaseFile(str(Path(__file__).parent / "models.py"))() if one.name == "mlp/on a table")
    record = decided(case, 0, Setting(moments=(0.5,)))
    grown = record.moments[0].arms[1]
    run = CaseRun.begin(case, 0)
    run.advance(0.5 * run.budget)
    alone = run.grown(grown.action)
    alone.advance(run.used + SHARES[Trials.RACE] * (run.budget - run.used))
    assert abs(alone.score(case.validation).loss - grown.losses[MARKS.index(SHARES[Trials.RACE])]) < 1e-4


def test_free_families_are_the_same_whenever_they_are_drawn_and_can_be_trained() -> None:
    cases, again = FREE(), FREE()
    assert [case.name for case in cases] == [case.name for case in again]
    assert len({case.family for case in cases}) == 80
    for case, other in list(zip(cases, again, strict=True))[::16]:
        ours, theirs = case.built(3).state_dict(), other.built(3).state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        run = CaseRun.begin(case, 3)
        run.advance(2)
        assert run.steps == 2
