"""A dashboard on a sheet: everything has its place, whatever the data and the names."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from grafana_foundation_sdk.models.dashboard import GridPos
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from espalier_monitoring.boards import Panel
from espalier_monitoring.reading import DrawnBoard, DrawnPanel, Marked, Series, Window
from espalier_monitoring.sheet import WIDTH, LegendEntry, arranged, box, caption, drawn, span, time_ticks

WINDOW = Window(1_700_000_000, 1_700_000_900, 15)
PLACES = {
    "left": GridPos(x=0, y=1, w=12, h=8),
    "right": GridPos(x=12, y=1, w=12, h=8),
    "one": GridPos(x=0, y=9, w=4, h=8),
    "two": GridPos(x=4, y=9, w=4, h=8),
    "three": GridPos(x=8, y=9, w=4, h=8),
    "last": GridPos(x=12, y=9, w=12, h=8),
}
PANEL = Panel(title="Lines", about="", unit="s", queries=())
SINGLE = replace(PANEL, single=True)


def lines(*found: Series, panel: Panel = PANEL, place: str = "left") -> DrawnPanel:
    """Return a panel with these lines."""
    return DrawnPanel(panel, PLACES[place], found)


def board(*panels: DrawnPanel, marks: tuple[Marked, ...] = ()) -> DrawnBoard:
    """Return a dashboard with these panels."""
    return DrawnBoard(
        title="Board",
        chosen=(("Job", "one"),),
        window=WINDOW,
        headings=(("Row", GridPos(x=0, y=0, w=24, h=1)),),
        panels=panels,
        marks=marks,
    )


def line(name: str, *values: float) -> Series:
    """Return a line that begins with these values and has nothing after them."""
    whole = np.full(WINDOW.points, math.nan)
    whole[: len(values)] = values
    return Series(name, whole)


def colored(picture: bytes, panel: DrawnPanel) -> int:
    """Return how many pixels of a panel are no grey."""
    at, whole = box(panel.place), imread(io.BytesIO(picture))[:, :, :3]
    inside = whole[int(at.top) + 3 : int(at.top + at.height) - 3, int(at.left) + 3 : int(at.left + at.width) - 3]
    return int((inside.max(axis=2) - inside.min(axis=2) > 0.2).sum())


def test_panels_with_and_without_data() -> None:
    """An isolated point is seen; marks are where there are lines; a panel without data says so in grey."""
    point = lines(line("it's $all$ \\one", 3.0))
    stacked = lines(line("a", 1, 2), line("b", math.nan, 3), panel=replace(PANEL, stacked=True), place="right")
    single = lines(Series("x", np.array([1.5])), panel=SINGLE, place="one")
    names = lines(Series("a name " * 9, np.array([1.0])), panel=replace(SINGLE, names=True), place="two")
    many = lines(*(Series(f"n{n}", np.array([n])) for n in range(9)), panel=SINGLE, place="three")
    empty = lines(place="last")
    picture = drawn(board(point, stacked, single, names, many, empty, marks=(Marked("grew", (1_700_000_300.0,)),)))
    assert imread(io.BytesIO(picture)).shape[1] == WIDTH
    for panel in (point, stacked, single, names, many):
        assert colored(picture, panel) > 30, panel.place
    assert colored(picture, empty) == 0


def test_a_mark_is_drawn_and_named() -> None:
    panel = lines(line("x", *(1.0 for _ in range(WINDOW.points))))
    without = drawn(board(panel))
    marked = drawn(board(panel, marks=(Marked("grew", (1_700_000_300.0,)),)))
    assert colored(marked, panel) > colored(without, panel) + 50
    assert drawn(board(panel, marks=(Marked("grew", ()),))) == without


def test_what_was_chosen_and_when_is_reported() -> None:
    assert caption(board(lines())) == "Job one  ·  2023-11-14 22:13:20 to 22:28:20 UTC  ·  a point every 15s"


@given(
    st.lists(st.floats(-1e9, 1e9) | st.just(math.nan), min_size=1, max_size=9).filter(
        lambda v: not all(map(math.isnan, v))
    ),
    st.sampled_from([None, 0.0]),
)
def test_an_axis_holds_all_values(values: list[float], least: float | None) -> None:
    low, high = span(np.array([values]), least)
    there = [value for value in values if not math.isnan(value)]
    assert low <= min(there)
    assert high >= max(there)
    assert low < high
    assert least is None or low <= least


@given(st.integers(0, 2 * 10**9), st.integers(0, 10**7), st.integers(2, 9))
def test_times_are_round_and_not_too_many(start: int, length: int, most: int) -> None:
    window = Window(start, start + length, 15)
    made = time_ticks(window, most)
    assert len(made) <= most + 1
    for moment, text in made.items():
        assert window.start <= moment <= window.end
        assert len(text) == len("22:13:20" if length <= 86400 else "14 Nov 22:13")


@given(st.lists(st.text(min_size=1, max_size=30), max_size=30), st.floats(100, 800), st.integers(1, 5))
def test_legends_fit_and_leave_nothing_out_unsaid(names: list[str], width: float, most: int) -> None:
    made = arranged([LegendEntry(name, "#000000") for name in names], width, most, lambda name: 6.0 * len(name))
    entries = [entry for row in made for entry, _ in row]
    shown = [entry.name for entry in entries if entry.color]
    assert len(made) <= most
    assert shown == names[: len(shown)]
    left_out = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
    assert [entry.name for entry in entries if not entry.color] == left_out
    for row in made:
        assert len(row) == 1 or sum(wide for _, wide in row) - 20 <= width


@given(st.floats(1e9, 2e9), st.integers(1, 10**7), st.sampled_from([1.0, 15.0, 60.0]))
def test_windows_end_now_and_have_few_points(now: float, seconds: int, least: float) -> None:
    window = Window.until(now, seconds, least, 360)
    assert window.points <= 361
    assert window.step >= least
    assert 0 <= now - window.end < window.step
    assert len(window.times) == window.points
    assert window.start % window.step == pytest.approx(0, abs=1e-6)
