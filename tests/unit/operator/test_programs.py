"""What is read in the lines and the metrics of programs, whatever they write."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.program import MAX_VALUES, LogProgress, MetricsProgress
from espalier_core.types.report import MAX_NAME, Metric
from espalier_operator.programs import (
    MAX_LINE_BYTES,
    NOTHING,
    LineReader,
    ProgramReading,
    lines_of,
    number_of,
    values_of_page,
    values_of_post,
)

PATTERN = LineReader(LogProgress(pattern=r"step (?P<step>\S+)/(?P<steps>\S+)(?:.*loss (?P<loss>\S+))?"))
KEYS = LineReader(LogProgress.model_validate({"json": {"step": "global_step", "train/loss": "loss"}}))
PAGE = MetricsProgress(port=1, series={"step": "steps_total", "loss": 'loss{split="test"}'})


def test_the_newest_value_of_each_name_counts() -> None:
    lines = ["warming up", "step 3/10, loss 0.5", "step 4/10", "step x/10"]
    assert PATTERN.values(lines) == {"step": 4.0, "steps": 10.0, "loss": 0.5}
    assert NOTHING.then(PATTERN.values(lines)).fraction == 0.4


def test_json_lines_are_read_by_key_and_other_lines_left_aside() -> None:
    lines = ['{"global_step": 7, "loss": "0.25"}', "{", "[1]", '{"loss": true}', '{"loss": NaN}', '{"global_step": []}']
    assert KEYS.values(lines) == {"step": 7.0, "train/loss": 0.25}


def test_a_progress_bar_writes_a_line_each_time_it_returns() -> None:
    data = b"\rstep 1/9\rstep 2/9\r\nstep " + b"9" * MAX_LINE_BYTES + b"/9\n\xff step 3/9"
    assert list(lines_of(data)) == ["step 1/9", "step 2/9", "\ufffd step 3/9"]


def test_a_post_names_what_the_trainer_of_hugging_face_measures() -> None:
    """As `transformers.integrations.KubeflowCallback` posts it."""
    metrics = [{"name": name, "value": value} for name, value in (("loss", "0.5"), ("current_step", "7"), ("a b", "1"))]
    status = {"lastUpdatedTime": "2026-01-01T00:00:00Z", "progressPercentage": 70, "metrics": [*metrics, 3, {}]}
    assert values_of_post(json.dumps({"trainerStatus": status}).encode()) == {"percent": 70.0, "loss": 0.5, "step": 7.0}
    assert values_of_post(b'{"trainerStatus": {"estimatedRemainingSeconds": 9}}') == {"remaining_seconds": 9.0}


@given(
    st.one_of(
        st.binary(), st.recursive(st.none() | st.text() | st.floats(), st.lists).map(lambda x: json.dumps(x).encode())
    )
)
def test_whatever_is_posted_gives_numbers_or_a_reason(body: bytes) -> None:
    try:
        found = values_of_post(
            b'{"trainerStatus": {"progressPercentage": %b, "metrics": [{"name": "a", "value": %b}]}}' % (body, body)
        )
    except ValueError:
        return
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"trainerStatus": 1}', b'{"trainerStatus": {"metrics": 1}}', b"[" * 9999]
)
def test_what_is_no_post_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        values_of_post(body)


def test_series_are_chosen_by_name_and_labels() -> None:
    page = b"""# HELP loss The loss.
# TYPE loss gauge
loss{split="train"} 3
loss{split="test",note="a \\"b\\", {c}"} 2.5
loss{split="test"} 9
loss{split="test"
steps_total 1.2e3 1700000000
steps_total_more 5
"""
    assert values_of_page(page, PAGE) == {"step": 1200.0, "loss": 2.5}


@pytest.mark.parametrize(
    ("values", "fraction"),
    [
        ({}, None),
        ({"step": 3}, None),
        ({"step": 3, "steps": 0}, None),
        ({"step": 3, "steps": 4}, 0.75),
        ({"epoch": 1, "epochs": 4}, 0.25),
        ({"epoch": 1, "epochs": 4, "step": 3, "steps": 4}, 0.75),
        ({"percent": 30, "step": 3, "steps": 4}, 0.3),
        ({"fraction": 0.2, "percent": 30}, 0.2),
        ({"fraction": 7}, 1.0),
        ({"percent": -1}, 0.0),
    ],
)
def test_the_part_that_is_done(values: dict[str, float], fraction: float | None) -> None:
    assert ProgramReading(values).fraction == (None if fraction is None else pytest.approx(fraction))


def test_steps_in_all_may_be_those_of_the_job_and_those_of_the_program_go_first() -> None:
    assert NOTHING.then({"step": 5.0}, 10).fraction == 0.5
    assert NOTHING.then({"step": 5.0, "steps": 20.0}, 10).then({"loss": 1.0}, 10).fraction == 0.25


def test_steps_that_are_changed_in_the_specification_count_at_once() -> None:
    """The first number that was ever given was taken for one that the program had said."""
    assert NOTHING.then({"step": 5.0}, 10).then({"step": 6.0}, 20).fraction == 0.3
    assert NOTHING.then({"step": 5.0}, 10).then({"step": 5.0}, 20).fraction == 0.25
    assert NOTHING.then({"step": 5.0}, 10).then({"step": 5.0}).fraction is None


def test_figures_are_what_has_no_meaning_of_its_own() -> None:
    reading = NOTHING.then({"step": 2.9, "epoch": -1.0, "loss": 0.5})
    assert (reading.step, reading.epoch, reading.figures) == (2, 0, (Metric(name="loss", value=0.5),))


@pytest.mark.parametrize(
    ("value", "number"),
    [("1e3", 1000.0), (" 45% ", 45.0), ("nan", None), ("inf", None), ("9" * 65, None), (10**400, None), (True, None)],
)
def test_numbers(value: Any, number: float | None) -> None:
    assert number_of(value) == number


ANY_LINE = st.one_of(
    st.text(max_size=80),
    st.builds("step {}/{} loss {}".format, st.text(max_size=9), st.floats(), st.text("0123456789.e-%_", max_size=80)),
    st.dictionaries(
        st.sampled_from(["global_step", "loss"]), st.floats() | st.integers() | st.text() | st.lists(st.none())
    ).map(json.dumps),
    st.builds("loss{{{}}} {}".format, st.text('split="test,\\ ', max_size=30), st.text("0123456789.e ", max_size=9)),
    st.builds("steps_total{}".format, st.text(' {}"=,#', max_size=20)),
)


@given(st.lists(ANY_LINE, max_size=8), st.binary(max_size=60))
def test_any_output_gives_finite_numbers_and_a_reading_within_bounds(lines: list[str], noise: bytes) -> None:
    data = "\n".join(lines).encode("utf-8", errors="surrogatepass") + noise
    reading = NOTHING
    for found in (PATTERN.values(lines_of(data)), KEYS.values(lines_of(data)), values_of_page(data, PAGE)):
        assert all(math.isfinite(value) for value in found.values())
        reading = reading.then(found, 10)
    assert len(reading.values) <= MAX_VALUES + 1
    assert 0 <= reading.step <= 2**53
    assert reading.fraction is None or 0 <= reading.fraction <= 1
    assert all(len(figure.name) <= MAX_NAME for figure in reading.figures)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_lines_do_not_depend_on_what_is_no_end_of_a_line(data: bytes, ends: list[int]) -> None:
    whole = b"\n".join(piece for piece in (data[at:] for at in ends) if piece)
    assert all("\n" not in line and "\r" not in line and line for line in lines_of(whole))


def test_a_pattern_that_would_stall_a_backtracking_engine_does_not() -> None:
    """`re` needs 2^n steps for this line; RE2 is linear, which the suite's time limit would show."""
    reader = LineReader(LogProgress(pattern=r"(?P<x>(a*)*)b$"))
    assert reader.values(["a" * MAX_LINE_BYTES] * 20) == {}
