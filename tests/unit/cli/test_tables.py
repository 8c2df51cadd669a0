"""Tables: no name is cut, and what is left of a terminal that goes."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from espalier_cli.cluster import output
from espalier_cli.run import run_jobs
from espalier_cli.tables import fitting
from espalier_cli.terminal import Terminal, stopping_signals
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_operator.local import LocalSettings

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


@pytest.fixture
def unread() -> Iterator[io.TextIOWrapper]:
    """Give a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        yield stream


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_goes_is_reported_once_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, unread: io.TextIOWrapper, name: str
) -> None:
    monkeypatch.setattr(sys, name, unread)
    gone: list[str] = []
    with Terminal() as terminal:
        terminal.when_gone(lambda: gone.append("gone"))
        for _ in range(3):
            print("a line", file=getattr(sys, name), flush=True)
    assert gone == ["gone"]
    assert getattr(sys, name) is unread
    print("goes nowhere", file=unread, flush=True)


def test_a_full_disk_drops_lines_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    stream = io.TextIOWrapper(io.FileIO(full, "w"), write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stderr", stream)
    with Terminal() as terminal:
        print("a line", file=sys.stderr, flush=True)
    assert not terminal.is_gone
    stream.detach().close()


@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_nobody_reads_any_more_stops_and_keeps_what_it_came_to(
    monkeypatch: pytest.MonkeyPatch, unread: io.TextIOWrapper, tmp_path: Path, before: bool
) -> None:
    """The reader goes before the run starts, or with its first line."""
    container = {"name": "program", "command": ["sleep", "60"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"timeBudgetSeconds": 60, "program": {}, "template": {"spec": {"containers": [container]}}}
    job = AdaptiveTrainingJob.model_validate(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "sleeps"}, "spec": spec}
    )
    monkeypatch.setattr(sys, "stderr", unread)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with Terminal() as terminal:
        if before:
            print("the command has something to say", file=sys.stderr, flush=True)
        settings = LocalSettings(directory=tmp_path / "run", gpus=1, agent_command=None)
        finished = run_jobs([job], settings, Console(stderr=True), terminal)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert finished.interrupted
    assert finished.results["sleeps"].phase == "Stopped"
    assert (tmp_path / "run" / "result.json").exists()


def test_a_closed_terminal_asks_to_stop_but_not_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert signal.SIGHUP in stopping_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert stopping_signals() == (signal.SIGINT, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
