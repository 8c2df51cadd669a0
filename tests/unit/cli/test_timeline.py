"""When simulated GPUs come and go."""

from __future__ import annotations

import pytest

from espalier_cli.timeline import GpuChange, TimelineError, parse_change, parse_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("20", 20), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("30%", 12), ("0.5m", 30), ("12.5%", 5)],
)
def test_moments(text: str, seconds: float) -> None:
    assert parse_moment(text, budget_seconds=40) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "20 s", "20x", "1s1", "%", "nan", "1e3", "٣s"])
def test_what_is_no_moment_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(TimelineError, match=r"is no moment; write 20s, 1m30s, 500ms or 30%"):
        parse_moment(text, budget_seconds=40)


def test_changes() -> None:
    assert parse_change("20s:1", 1, 40) == GpuChange(at=20, count=1)
    assert parse_change("50%:2", -1, 40) == GpuChange(at=20, count=-2)


@pytest.mark.parametrize("text", ["20s", "20s:", "20s:0", "20s:-1", "20s:1.5", ":"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(TimelineError, match="write MOMENT:COUNT"):
        parse_change(text, 1, 40)
