"""The table of a judgement, checked by hand."""

from __future__ import annotations

import pytest

from espalier_cli.judge.verdict import Decision, judged, sentence


def decision(family: str, arms: dict[str, tuple[float, ...]], **advised: tuple[float, ...]) -> Decision:
    return Decision(f"{family}-case", family, 0.2, arms, {"none": arms["Nothing"], **advised})


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


def test_what_is_said_of_one_model() -> None:
    paying = judged([decision("f", ARMS, first=ARMS["Deepen(a)"], advice=ARMS["Deepen(a)"])])
    assert sentence(paying).startswith("Growing pays for this model: Deepen(a) at 20% of the budget ends +0.200")
    losing = {"Nothing": (0.5, 0.5), "Deepen(b)": (0.4, 0.4)}
    assert "does not pay" in sentence(judged([decision("f", losing, first=(0.4, 0.4), advice=(0.5, 0.5))]))
    stuck = judged([decision("f", {"Nothing": (0.5, 0.5)}, first=(0.5, 0.5), advice=(0.5, 0.5))])
    assert "no model has a place to grow" in sentence(stuck)


def test_nothing_to_judge() -> None:
    with pytest.raises(ValueError, match="no decision"):
        judged([])
