"""When simulated GPUs come and go."""

from __future__ import annotations

import pytest

from espalier_cli.run import TimelineError, parse_arrival, parse_departure, parse_moment, require_in_time
from espalier_operator.local.settings import GpuChange


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("20", 20), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("30%", 12), ("0.5m", 30), ("12.5%", 5)],
)
def test_moments(text: str, seconds: float) -> None:
    assert parse_moment(text, budget_seconds=40) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "20 s", "20x", "1s1", "%", "nan", "1e3", "٣s"])
def test_what_is_no_moment_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(TimelineError, match=r"is not a moment; write 20s, 1m30s, 500ms or 30%"):
        parse_moment(text, budget_seconds=40)


def test_changes() -> None:
    assert parse_arrival("20s:1", 40) == GpuChange(at_seconds=20, change=1)
    assert parse_departure("50%:2", 40, notice_seconds=3) == GpuChange(at_seconds=20, change=-2, notice_seconds=3)


def test_a_departure_cannot_be_announced_before_the_run() -> None:
    assert parse_departure("1s:1", 40, notice_seconds=30).notice_seconds == 1


@pytest.mark.parametrize("text", ["20s", "20s:", "20s:0", "20s:-1", "20s:1.5", ":"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(TimelineError, match="write MOMENT:COUNT"):
        parse_arrival(text, 40)


def test_what_comes_after_the_end_is_refused() -> None:
    with pytest.raises(TimelineError, match=r"'300%:1' is after the end of the time budget; write at most 100%"):
        parse_arrival("300%:1", 40)
    with pytest.raises(TimelineError, match=r"--depart: the departure at 50 s never comes: the time budget ends at 40"):
        require_in_time([parse_departure("50s:1", 40, 1)], [40], {})
    # A second job may train after the first, and a third may be submitted after both.
    require_in_time([parse_arrival("100%:1", 40), parse_arrival("75s:1", 40)], [40, 40], {})
    require_in_time([parse_arrival("99s:1", 40)], [40, 40], {"c": 30})
