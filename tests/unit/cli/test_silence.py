"""A job of which nothing has been printed for long gets a line that says what it is doing."""

from __future__ import annotations

from espalier_cli.terminal import Silences
from espalier_core.types.allocation import Allocation
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.status import JobPhase
from espalier_operator.local.run import JobView


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
