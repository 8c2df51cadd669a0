"""The table of a judgement, checked by hand."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping

import pytest

from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import ArmRecord, CaseRecord, InsertedRecord, MomentRecord
from espalier_core.types.task import Task
from espalier_lab.growth.judge.verdict import (
    JudgedMoment,
    JudgeVerdict,
    decisions_of,
    gain_of,
    judged,
    sentence,
    unseen_gain,
)


def decision(family: str, arms: Mapping[str, tuple[float, ...]], **advised: tuple[float, ...]) -> JudgedMoment:
    return JudgedMoment(f"{family}-case", family, 0.2, arms, {"none": arms["Nothing"], **advised})


ARMS = {"Nothing": (0.5, 0.5), "Deepen(a)": (0.6, 0.8), "Deepen(b)": (0.4, 0.4)}


def test_regret_harm_and_pairs() -> None:
    one = decision("f", ARMS, first=ARMS["Deepen(a)"], advice=ARMS["Deepen(a)"])
    other = decision("g", ARMS, first=ARMS["Deepen(b)"], advice=ARMS["Nothing"])
    found = judged([one, other])
    assert found.regret == pytest.approx({"none": 0.2, "first": 0.15, "advice": 0.1})
    assert found.worse == {"none": 0.0, "first": 0.5, "advice": 0.0}
    assert found.interval["advice"] == pytest.approx((0.0, 0.2))
    assert found.interval["none"] == pytest.approx((0.2, 0.2))
    assert found.paired["advice", "none"][0] == pytest.approx(-0.1)
    alone = judged([one])
    assert (alone.interval, alone.paired) == ({}, {}), "one family has no interval"
    assert alone.document()["interval"] == {}


def test_what_is_reported_of_one_model() -> None:
    open_ = judged([decision("f", ARMS, first=ARMS["Deepen(a)"], advice=ARMS["Deepen(a)"])])
    ends = "Deepen(a) at 20% of the budget ends 0.200 higher in accuracy than not growing"
    assert sentence(open_).startswith(f"The seeds do not agree whether growing pays for this model: {ends} (-")
    sure = ARMS | {"Deepen(a)": (0.7, 0.702)}
    paying = judged([decision("f", sure, first=sure["Deepen(a)"], advice=sure["Deepen(a)"])])
    assert sentence(paying).startswith("Growing pays for this model: Deepen(a) at 20% of the budget ends 0.201 higher")
    single = {name: values[:1] for name, values in sure.items()}
    one_seed = judged([decision("f", single, first=single["Deepen(a)"], advice=single["Deepen(a)"])])
    assert sentence(one_seed).startswith("One seed cannot tell whether growing pays for this model: Deepen(a) at 20%")
    losing = {"Nothing": (0.5, 0.5), "Deepen(b)": (0.4, 0.4)}
    assert "does not pay" in sentence(judged([decision("f", losing, first=(0.4, 0.4), advice=(0.5, 0.5))]))
    stuck = judged([decision("f", {"Nothing": (0.5, 0.5)}, first=(0.5, 0.5), advice=(0.5, 0.5))])
    assert "no model has a place to grow" in sentence(stuck)


def noise(chance: random.Random, growths: int, seeds: int, share: float, case: str = "f") -> JudgedMoment:
    names = ["Nothing", *(f"Deepen({place})" for place in range(growths))]
    arms = {name: tuple(chance.gauss(0.5, 0.05) for _ in range(seeds)) for name in names}
    return JudgedMoment(case, case, share, arms, {"none": arms["Nothing"], "advice": arms["Nothing"]})


@pytest.mark.parametrize(("moments", "growths"), [((0.2, 0.5), 8), ((0.2,), 1)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_noise_seldom_pays_for_sure(moments: tuple[float, ...], growths: int, seeds: int) -> None:
    chance, many = random.Random(seeds), 1000
    found = [
        sentence(JudgeVerdict(tuple(noise(chance, growths, seeds, share) for share in moments), {}, {}, {}))
        for _ in range(many)
    ]
    sure = sum(text.startswith("Growing pays") for text in found)
    assert sure / many < 0.04, "the nominal level is .025"
    assert sure > 0


def test_of_many_cases_the_best_growth_gains_nothing_by_luck() -> None:
    chance = random.Random(0)
    cases = [noise(chance, 8, 3, 0.2, f"case-{number}") for number in range(2000)]
    assert statistics.fmean(gain_of(one) for one in cases) > 0.03
    assert statistics.fmean(unseen_gain(one) for one in cases) == pytest.approx(0, abs=0.003)


def test_what_is_reported_of_several_cases() -> None:
    arms = {"Nothing": (0.5, 0.5), "Deepen(a)": (0.9, 0.2), "Deepen(b)": (0.2, 0.8)}
    two = [decision(family, arms, first=arms["Deepen(a)"], advice=arms["Nothing"]) for family in "fg"]
    assert sentence(judged(two)) == (
        "The best growth, chosen by all seeds but one, and judged by that one, beats not growing in 0 of 2 decisions, "
        "by -0.300 (accuracy) on average over all; the advice gains +0.000."
    )
    one_seed = {name: values[:1] for name, values in arms.items()}
    two = [decision(family, one_seed, first=(0.9,), advice=(0.9,)) for family in "fg"]
    assert "judged by the same seed, which flatters it, beats not growing in 2 of 2 decisions" in sentence(judged(two))


def arm(action: Action, accuracy: float) -> ArmRecord:
    return ArmRecord(action=action, accuracy=accuracy, step_cost=1.0)


def test_a_language_model_is_judged_in_bits_and_each_way_to_insert_blocks_is_an_arm() -> None:
    block = Action(kind="AddBlock", target="blocks.0")
    unfolding = InsertedRecord(insertion=Insertion.UNFOLD, arm=arm(block, 2**-2.0))
    moment = MomentRecord(
        share=0.2,
        validation_accuracy=0.2,
        arms=(arm(Action.nothing(), 2**-2.5), arm(block, 2**-2.75)),
        inserted=(unfolding,),
    )
    record = CaseRecord(
        case="c", family="f", seed=0, steps=10, batch_size=2, task=Task.LANGUAGE_MODEL, architecture=None,
        moments=(moment,),
    )  # fmt: skip
    found = judged(decisions_of([record]))
    (one,) = found.decisions
    assert one.arms == {
        "Nothing": (pytest.approx(-2.5),),
        "AddBlock(blocks.0)": (pytest.approx(-2.75),),
        "AddBlock(blocks.0, Unfold)": (pytest.approx(-2.0),),
    }
    assert found.regret == pytest.approx({"none": 0.5, "first": 0.75})
    assert found.worse == {"none": 0.0, "first": 1.0}
    assert found.document()["measures"] == ["bits_per_character"]
    assert "AddBlock(blocks.0, Unfold) at 20% of the budget ends 0.500 lower in bits per character" in sentence(found)


def test_nothing_to_judge() -> None:
    with pytest.raises(ValueError, match="no decision"):
        judged([])
