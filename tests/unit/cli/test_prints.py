"""What a run says while it goes on: prints of its script, and how long it has been silent."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from espalier_cli.terminal import Prints, Silences
from espalier_core.types.allocation import Allocation
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.status import JobPhase
from espalier_operator.local.run import JobView


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


def _view(doing: TrainerPhase | None, *, gpus: int = 1, step: int = 0) -> JobView:
    return JobView(
        name="a",
        phase=JobPhase.RUNNING,
        reason=Reason.COMPLETED,
        allocation=Allocation(generation=1, gpus=gpus, replicas=gpus),
        gpus=gpus,
        used_seconds=0.0,
        doing=doing,
        step=step,
    )


def test_long_silences_speak_ever_more_rarely() -> None:
    now = 0.0
    silences = Silences(["a"], lambda: now)
    said: dict[int, str] = {}
    for second in range(300):
        now = float(second)
        for _, line in silences.lines([_view(None)]):
            said[second] = line
    assert list(said) == [30, 60, 120, 240]
    assert said[30].startswith("nothing new for 30 s; starting up: it imports, loads data, builds the model")


def test_a_line_begins_the_silence_anew_and_who_has_no_gpu_says_nothing() -> None:
    now = 0.0
    silences = Silences(["a"], lambda: now)
    now = 29.0
    silences.heard("a")
    silences.heard("a program, which is not watched")
    now = 58.0
    assert not list(silences.lines([_view(TrainerPhase.TRAINING)]))
    now = 59.0
    assert list(silences.lines([_view(TrainerPhase.TRAINING, step=1200)])) == [
        ("a", "nothing new for 30 s; training, at step 1,200")
    ]
    now = 200.0
    assert not list(silences.lines([_view(TrainerPhase.EVALUATING, gpus=0)]))
    assert not list(silences.lines([_view(TrainerPhase.EVALUATING)]))
    now = 230.0
    assert list(silences.lines([_view(TrainerPhase.EVALUATING)])) == [("a", "nothing new for 30 s; evaluating")]
