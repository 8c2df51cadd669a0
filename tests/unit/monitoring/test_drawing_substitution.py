"""Variables, legends and lengths of time in the texts of a dashboard."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_monitoring.reading import (
    label_values,
    legend,
    length_of,
    quoted,
    rate_interval,
    seconds_of,
    substituted,
)

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
