"""Tables in a terminal: columns that say nothing go before a digit is cut, and then rows become lists."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from espalier_cli.cluster import output
from espalier_cli.tables import fitting, table_for

COLUMNS = ("TRACE", "POLICY", "MEAN-JCT", "RESTARTS", "MAKESPAN")
ROWS = [["helios-earth", "tiresias", "181,234.5", "0", "678,901"], ["helios-earth", "fifo", "22,000.1", "0", "678,902"]]
RIGHT = COLUMNS[2:]
_CELLS = st.text("ab 1-", max_size=12)


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(output, "console_of_stdout", lambda: Console(width=width, highlight=False, markup=False))
    output.print_table(COLUMNS, ROWS, right=RIGHT)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 40, 48, 52, 80])
def test_no_name_and_no_figure_is_ever_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(width, monkeypatch, capsys)
    assert "…" not in said
    for cell in {cell for row in ROWS for cell in row} - {"0"}:
        assert cell in said
    assert ("RESTARTS" in said) == (width == 80 or width < 48), "lists have all that there is"


@given(
    rows=st.integers(1, 4).flatmap(lambda size: st.lists(st.lists(_CELLS, min_size=size, max_size=size), min_size=1)),
    width=st.integers(1, 60),
)
def test_what_is_left_out_says_nothing_and_what_is_shown_fits(rows: list[list[str]], width: int) -> None:
    columns = [f"C{index}" for index in range(len(rows[0]))]
    chosen = fitting(columns, rows, width, right=columns)
    if chosen is not None:
        for index in {*range(len(columns))} - {*chosen}:
            assert all(row[index] in ("", "-", "0", "0.0") for row in rows)
        sizes = [max(map(len, (columns[index], *(row[index] for row in rows)))) for index in chosen]
        assert sum(sizes) + 2 * (len(sizes) - 1) <= width or not sizes


def test_a_change_of_a_figure_stays_on_a_line() -> None:
    console = Console(width=40, file=io.StringIO(), highlight=False)
    console.print(table_for(40, ("job", "depth", "ended"), [("a", "4 -> 7", "Complete, its time budget is used up")]))
    assert "4 -> 7" in console.file.getvalue()  # type: ignore[attr-defined]
