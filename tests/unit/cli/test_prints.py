"""What a job's code prints is on the terminal, once, and does not bury the rest."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from espalier_cli.terminal import Prints


def test_new_lines_are_shown_once_without_the_librarys_own(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("of an earlier run\n")
    prints, stream = Prints("mine", log), io.StringIO()
    console = Console(file=stream, width=60)
    prints.skip("AgentUnavailable: no agent is known")
    with log.open("ab") as file:
        file.write(
            b"hello [bold]there[/bold]\n2026-11-25 03:11:08,975 INFO POST\nAgentUnavailable: no agent is known\n\n"
        )
        file.write(b" 10%\r 90%\r100%\r\nbroken \xff byte\nhalf a")
    prints.show(console)
    with log.open("ab") as file:
        file.write(b" line\nno end")
    prints.show(console)
    prints.show(console, ended=True)
    assert stream.getvalue().splitlines() == [
        "mine  | hello [bold]there[/bold]",
        "mine  | 100%",
        "mine  | broken \ufffd byte",
        "mine  | half a line",
        "mine  | no end",
    ]


def test_a_script_that_prints_a_lot_is_cut_short(tmp_path: Path) -> None:
    log, stream = tmp_path / "trainer.log", io.StringIO()
    prints = Prints("mine", log)
    prints.show(Console(file=stream))  # there is no log yet
    log.write_text("".join(f"step {step}\n" for step in range(1000)))
    prints.show(Console(file=stream, width=300))
    lines = stream.getvalue().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (11, "mine  | step 0", f"mine  | ... 990 more lines in {log}")
