"""What `benchmarks/shrinking.py` counts: paired differences, and virtual time in which teaching is paid for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from reclaiming.arms import Case, Run, run_seed  # noqa: E402
from reclaiming.costs import Prices  # noqa: E402
from shrinking import difference, draw, markdown  # noqa: E402

from espalier_core.validation.reading import load_job, with_spec  # noqa: E402
from espalier_lab.growth.collect.cost import StepCost  # noqa: E402


def run_of(arm: str, seed: int, accuracy: float) -> Run:
    return Run(arm, seed, 1.0, 1.0, accuracy, 10, 4, "")


def test_differences_are_paired_by_seed_with_students_interval() -> None:
    runs = [run_of("keep", seed, 0.5 + seed / 10) for seed in range(3)]
    runs += [run_of("distil", seed, 0.5 + seed / 10 + gain) for seed, gain in enumerate((0.01, 0.02, 0.03))]
    gain = difference(runs, "distil")
    assert gain.mean == pytest.approx(0.02)
    # t(0.975, 2) = 4.3027, times .01 / sqrt(3)
    reach = pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert (gain.high - gain.mean, gain.mean - gain.low) == (reach, reach)
    assert gain.wins == 3


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
    assert markdown(runs, 0.5).count("\n") == 1 + 5 + 1
    draw(runs * 2, "digits", 0.5, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
