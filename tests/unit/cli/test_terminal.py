"""What becomes of a run whose terminal is closed, or whose output nobody reads any more."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from espalier_cli.run import run_jobs
from espalier_cli.terminal import Terminal, stopping_signals
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_operator.local import LocalSettings


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
