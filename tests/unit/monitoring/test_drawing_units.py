"""Numbers are written as Grafana writes them, and axes are marked at numbers that people count in."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_monitoring.canvas import UNITS, text_of, ticks
from espalier_monitoring.outputs import BOARDS

FACTORS = {" ": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "Mil": 1e6, "Bil": 1e9, "Tri": 1e12}
SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "hour": 3600, "day": 86400, "week": 604800}


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0, "short", None, "0"),
        (7, "short", None, "7"),
        (0.5, "short", None, "0.500"),
        (1234, "short", None, "1.23 K"),
        (2_500_000, "short", None, "2.50 Mil"),
        (999.96, "short", 1, "1.0 K"),
        (-1500, "short", None, "-1.50 K"),
        (0.453, "percentunit", None, "45.3%"),
        (1, "percentunit", None, "100%"),
        (0, "s", None, "0 s"),
        (0.0004, "s", None, "400 µs"),
        (0.5, "s", None, "500 ms"),
        (0.5409, "s", 1, "540.9 ms"),
        (25, "s", None, "25 s"),
        (60, "s", None, "1 min"),
        (90, "s", None, "1.50 mins"),
        (7200, "s", None, "2 hours"),
        (86400, "s", None, "1 day"),
        (1_209_600, "s", None, "2 weeks"),
        (0.25, "ops", None, "0.250 ops/s"),
        (1200, "reqps", None, "1.20 K req/s"),
        (12, "cpm", None, "12 c/m"),
        (math.nan, "s", None, "NaN"),
        (-math.inf, "short", None, "-∞"),
    ],
)
def test_a_number_with_its_unit(value: float, unit: str, decimals: int | None, text: str) -> None:
    assert text_of(value, unit, decimals) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (1.0, "1"), (0.0, "0"), (1500.0, "1.5 K"), (100.0, "100")])
def test_on_an_axis_zeros_at_the_end_are_left_out(value: float, text: str) -> None:
    assert text_of(value, "short", bare=True) == text


def test_all_units_of_the_dashboards_are_known() -> None:
    used = {panel.unit for board in BOARDS.values() for row in board.rows for panel in row.panels}
    assert used <= UNITS
    with pytest.raises(ValueError, match=r"unit 'furlong' is not known here; known: cpm, ops"):
        text_of(1, "furlong")


@given(st.floats(1e-8, 1e13), st.sampled_from(sorted(UNITS)))
def test_what_is_written_is_the_number_to_three_digits(value: float, unit: str) -> None:
    text = text_of(value, unit)
    if unit == "percentunit":
        read = float(text.removesuffix("%")) / 100
    else:
        number, _, rest = text.partition(" ")
        word = rest.split(" ")[0] if unit in ("short", "s") or " " in rest else ""
        factors = SECONDS if unit == "s" else FACTORS
        read = float(number) * factors.get(word.removesuffix("s") if len(word) > 2 else word, 1.0)
    assert read == pytest.approx(value, rel=0.006)


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e9),
    st.sampled_from(["s", "short", "percentunit"]),
    st.integers(2, 8),
    st.booleans(),
)
def test_ticks_lie_on_the_axis_evenly_and_are_no_more_than_fit(
    low: float, length: float, unit: str, most: int, whole: bool
) -> None:
    high = low + length
    made = ticks(low, high, unit, most, whole=whole)
    room = 1e-6 * max(abs(low), abs(high), length)
    assert len(made) <= most + 1
    assert all(low - room <= tick <= high + room for tick in made)
    steps = [after - before for before, after in pairwise(made)]
    assert all(step == pytest.approx(steps[0], rel=1e-3) for step in steps)
    if whole:
        assert all(tick == round(tick) for tick in made)


def test_seconds_are_counted_in_minutes_and_hours() -> None:
    assert [text_of(tick, "s", bare=True) for tick in ticks(0, 700, "s", 4)] == ["0 s", "5 mins", "10 mins"]
    assert [text_of(tick, "s", bare=True) for tick in ticks(0, 2.2, "s", 5)] == ["0 s", "500 ms", "1 s", "1.5 s", "2 s"]
