"""The arms of the language model's benchmark that decide on growth themselves: the agent's advice, and a race."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.gpt import gpt
from bench.flagship.subject import Arm, Cell
from bench.flagship.training import Bench

BUDGET, MOMENT = 0.6, 0.2


def test_a_race_goes_on_as_its_winner_alone_and_counts_its_copies(tmp_path: Path) -> None:
    bench = Bench(gpt(), (MOMENT,), tmp_path)

    def made(arm: Arm, moment: float | None) -> tuple[float, int, int, tuple[str, ...], float]:
        run = bench.run(Cell(budget=BUDGET, arm=arm, moment=moment, rate=0.004, seed=0))
        return run.figure, run.steps, run.blocks, run.answered, run.trial_seconds

    small, steps, _, answered, none = made(Arm.ONE, None)
    assert (answered, none) == ((), 0.0)
    raced, its_steps, blocks, answered, spent = made(Arm.RACED, MOMENT)
    assert spent == pytest.approx(2 * 0.6 * (1 - MOMENT) * BUDGET)
    if blocks == 1:
        assert (raced, its_steps, answered) == (small, steps, ("Nothing",))
    else:
        assert (blocks, answered) == (2, ("AddBlock(blocks.0, Unfold)",))
        assert its_steps < steps
    _, its_steps, blocks, answered, _ = made(Arm.ADVISED, MOMENT)
    assert answered, "the agent was not asked"
    assert blocks == 2 ** sum(each.startswith("AddBlock") for each in answered)
    assert (its_steps < steps) == (blocks > 1)
