"""The arms of the language model's benchmark that decide on growth themselves: the agent's advice, and a race."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# Benchmarks are no package of the workspace.
sys.path.insert(0, str(BENCHMARKS))

from flagship.arms import Arm, Cell  # noqa: E402
from flagship.language import gpt  # noqa: E402
from flagship.training import Bench  # noqa: E402

BUDGET, MOMENT = 0.6, 0.2


def test_a_race_goes_on_as_its_winner_alone_and_counts_its_copies(tmp_path: Path) -> None:
    bench = Bench(gpt(), (MOMENT,), tmp_path)

    def made(arm: Arm, moment: float | None) -> tuple[float, int, int, tuple[str, ...], float]:
        run = bench.run(Cell(budget=BUDGET, arm=arm, moment=moment, rate=0.004, seed=0))
        return run.figure, run.steps, run.blocks, run.said, run.trial_seconds

    small, steps, _, said, none = made(Arm.ONE, None)
    assert (said, none) == ((), 0.0)
    raced, its_steps, blocks, said, spent = made(Arm.RACED, MOMENT)
    assert spent == pytest.approx(2 * 0.6 * (1 - MOMENT) * BUDGET)
    if blocks == 1:
        assert (raced, its_steps, said) == (small, steps, ("Nothing",))
    else:
        assert (blocks, said) == (2, ("AddBlock(blocks.0)",))
        assert its_steps < steps
    _, its_steps, blocks, said, _ = made(Arm.ADVISED, MOMENT)
    assert said, "the agent was not asked"
    assert blocks == 2 ** sum(each.startswith("AddBlock") for each in said)
    assert (its_steps < steps) == (blocks > 1)
