"""The benchmark of elastic workers reads steps as it says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.joining.models import width
from bench.joining.place import FOLLOWING, Step, StepLog, Steps, first_of, gap, pause, redone, samples_a_second


def steps_of(gaps: Iterable[float], worlds: Iterable[int]) -> list[Step]:
    found, now = [], 100.0
    for number, (seconds, world) in enumerate(zip(gaps, worlds, strict=True)):
        now += seconds
        found.append(Step(now, number, world, 1))
    return found


def test_a_pause_is_the_longest_gap_of_a_change() -> None:
    gaps = [5.0, *[0.1] * 9, 0.5, 0.1, 0.7, *[0.1] * 8, 9.0]
    steps = steps_of(gaps, [1] * 10 + [2] * 12)
    assert first_of(steps, 2, 3) == 10
    assert first_of(steps[:-2], 2, 3) is None, "its steps have not all followed"
    assert first_of(steps, 1, 10) is None
    assert gap(steps, 10) == pytest.approx(0.5)
    assert pause(steps, 10) == pytest.approx(0.7)
    assert len(steps) == 10 + FOLLOWING + 2
    assert samples_a_second(steps, 10, 3, 64) == pytest.approx(3 * 64 / 1.3)


def test_steps_that_are_taken_again_are_counted() -> None:
    steps = [Step(float(second), number, 1, 1) for second, number in enumerate([7, 8, 9, 6, 7])]
    assert redone(steps, 2) == 0
    assert redone(steps, 3) == 4


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    steps = Steps(path)
    assert list(steps.look()) == []
    log = StepLog(path)
    log.ended(1, 2, 3, 4)
    with path.open("a") as file:
        file.write("12.5 2 2")
        file.flush()
        assert [(step.number, step.world, step.batches, step.grown) for step in steps.look()] == [(1, 2, 3, 4)]
        file.write(" 3 4\n")
    assert steps.look()[1] == Step(12.5, 2, 2, 3, 4)


@pytest.mark.parametrize("millions", [0.1, 1.0, 20.0])
def test_perceptrons_have_the_parameters_that_their_names_say(millions: float) -> None:
    wide = width(millions)
    parameters = 64 * wide + wide + 4 * (wide * wide + wide) + wide * 10 + 10
    assert parameters == pytest.approx(millions * 1e6, rel=0.02)
