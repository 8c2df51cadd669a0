"""Numbers with their units, and variables of queries."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_monitoring.canvas import UNITS, text_of, ticks
from espalier_monitoring.outputs import BOARDS
from espalier_monitoring.reading import label_values, legend, length_of, quoted, rate_interval, seconds_of, substituted

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


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)


def test_variables_are_replaced_whole() -> None:
    values = {"name": "a", "name_space": "b", "__rate_interval": "1m"}
    assert substituted('x{y="$name_space", z="${name}"}[$__rate_interval] and w =~ "q$"', values) == (
        'x{y="b", z="a"}[1m] and w =~ "q$"'
    )
    with pytest.raises(ValueError, match=r"\$job in 'x\[\$job\]' has no value; known: name"):
        substituted("x[$job]", {"name": "a"})


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(NAMES))
def test_each_variable_becomes_its_value_and_nothing_else_changes(values: dict[str, str], words: list[str]) -> None:
    text = " ".join(f"${word} ${{{word}}} {word}" for word in words)
    if set(words) <= set(values):
        assert substituted(text, values) == " ".join(f"{values[word]} {values[word]} {word}" for word in words)
    else:
        with pytest.raises(ValueError, match="has no value"):
            substituted(text, values)


@given(VALUES)
def test_a_quoted_value_is_read_as_it_was(value: str) -> None:
    """PromQL reads strings as Go does, of which JSON's escapes here are a part."""
    text = quoted(value)
    assert "\n" not in text
    assert not re.search(r'(?<!\\)(\\\\)*"', text)
    readable = "".join(character if character >= " " else f"\\u{ord(character):04x}" for character in text)
    assert json.loads(f'"{readable}"') == value


def test_legends_name_labels() -> None:
    labels = {"__name__": "m", "code": "200", "route": "/v1"}
    assert legend("{{route}} {{ code }}", labels) == "/v1 200"
    assert legend("{{gone}} {{code}}", labels) == "200"
    assert legend("used", labels) == "used"
    assert legend("", labels) == 'm{code="200", route="/v1"}'


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_a_legend_of_all_labels_has_all_values(labels: dict[str, str]) -> None:
    assert legend("|".join(f"{{{{{name}}}}}" for name in labels), labels) == "|".join(labels.values()).strip()


def test_the_query_of_a_variable() -> None:
    assert label_values('label_values(info{namespace="a, b"}, job_name)') == ('info{namespace="a, b"}', "job_name")
    with pytest.raises(ValueError, match=r"must be label_values\(SELECTOR, LABEL\), not 'up'"):
        label_values("up")


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("1h30m", 5400), ("2d", 172800)])
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "-5m", "5 m", "1w", "0s", "5mm", "٣m0"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length of time; write it as 30s"):
        seconds_of(text)


@given(st.integers(1, 10**6))
def test_whole_seconds_are_read_back(seconds: int) -> None:
    assert seconds_of(length_of(seconds)) == seconds


def test_a_rate_spans_four_scrapes_or_more() -> None:
    assert length_of(0.25) == "250ms"
    assert rate_interval(step=15, scrape=15) == 60
    assert rate_interval(step=300, scrape=15) == 315
