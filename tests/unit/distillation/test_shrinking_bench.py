"""What `make bench-shrinking` counts: paired differences, and virtual time in which teaching is paid for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.shrinking import Case, Prices, draw, run_seed, table
from espalier_core.validation.reading import load_job, with_spec
from espalier_lab.growth.collect.cost import StepCost


def test_arms_share_all_up_to_the_reclaim_and_teaching_costs_steps(tmp_path: Path) -> None:
    job = with_spec(load_job(Path(__file__).parents[3] / "examples" / "digits.yaml"), timeBudgetSeconds=0.5)
    cost = StepCost(0.002, (("block0", 0.001), ("block1", 0.001), ("block2", 0.001)))
    runs = run_seed(Case(job, 0.3, Prices(cost, 1.0, 0.25, 3.0)), 0)
    by_arm = {run.arm: run for run in runs}
    # 0.2 s are left: 40 steps of 5 ms, or 100 of 2 ms, less what is measured first, and less what teaching costs.
    assert by_arm["keep"].steps == pytest.approx(40, abs=1)
    assert by_arm["return"].steps == pytest.approx(100, abs=1)
    assert by_arm["weights"].steps == pytest.approx(10 + 75, abs=1)
    assert by_arm["distil"].steps < by_arm["weights"].steps - 3
    assert [by_arm[arm].depth for arm in ("keep", "return", "weights", "distil", "rule")] == [7, 4, 4, 4, 7]
    assert by_arm["rule"].reason == "TooLateToDistil"
    assert by_arm["rule"].accuracy == by_arm["keep"].accuracy
    assert len(table(runs, "digits", 0.5).rows) == 5 + 1
    draw(runs * 2, "digits", 0.5, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
