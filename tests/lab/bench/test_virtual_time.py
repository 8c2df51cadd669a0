"""Benchmarks that train in virtual time: what time costs, what is kept, and tables of paired differences."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cases.shrinking import Case, Prices, draw, run_seed, table
from bench.paying.arms import Arm, Costs, ElasticClock, LayerCosts, timeline
from bench.paying.runs import Head, Run, Runs, kept_costs, lines
from espalier_core.validation.reading import load_job, with_spec
from espalier_lab.growth.collect.cost import StepCost

COSTS = Costs(
    one=LayerCosts(base=0.01, added={"block0": 0.002}),
    two=LayerCosts(base=0.008, added={"block0": 0.001}),
    join_s=0.1,
    leave_s=0.2,
    growth_s=0.3,
)
HEAD = Head(job="digits", budget_seconds=20, length=0.3, policy="keepGlobal", scaling="measured", costs=COSTS)


def run_of(arm: Arm, come: float | None, seed: int, accuracy: float) -> Run:
    return Run(arm=arm, come=come, seed=seed, accuracy=accuracy, depth=7, steps=100, joint_steps=10)


@given(st.floats(0, 0.94), st.floats(0.01, 1), st.floats(1, 1e6))
def test_a_gpu_comes_before_it_goes_and_goes_before_the_end(share: float, length: float, budget: float) -> None:
    times = timeline(share, length, budget)
    assert 0 <= times.come < times.gone <= 0.95 * budget


def test_time_moves_by_what_is_measured() -> None:
    clock = ElasticClock(1.0, COSTS.one.of, joint_seconds=COSTS.two.of)
    clock.step_finished(None)
    assert clock.used_seconds() == pytest.approx(0.01)
    clock.charge(0.5)
    assert clock.used_seconds() == pytest.approx(0.51)


def test_ideal_workers_cost_their_part_of_the_work_alone() -> None:
    ideal = COSTS.ideal(0.5)
    assert ideal.two == LayerCosts(base=0.005, added={"block0": 0.001})
    assert (ideal.join_s, ideal.leave_s, ideal.growth_s) == (0, 0, COSTS.growth_s)


def test_runs_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert kept_costs(path) is None
    runs = Runs(HEAD, path)
    runs.add(run_of(Arm.ALONE, None, 0, 0.8))
    runs.add(run_of(Arm.AGENT, 0.35, 0, 0.9))
    again = Runs(HEAD, path)
    assert list(again) == list(runs)
    assert kept_costs(path) == COSTS
    assert again.missing([(Arm.ALONE, None, 0), (Arm.ALONE, None, 1)]) == [(Arm.ALONE, None, 1)]
    assert again.difference(Arm.AGENT, Arm.ALONE, 0.35).mean == pytest.approx(0.1)
    with pytest.raises(
        ValueError, match=r"runs\.jsonl: holds other runs; name another file \(length: 0.3 there, 0.5 here\)"
    ):
        Runs(HEAD.model_copy(update={"length": 0.5}), path)


def test_the_table_compares_seed_by_seed() -> None:
    runs = Runs(HEAD, None)
    for seed in range(3):
        for place, arm in enumerate(Arm):
            runs.add(run_of(arm, None if arm is Arm.ALONE else 0.1, seed, 0.5 + 0.1 * place + 0.01 * seed))
    rows = list(lines(runs, [0.1]))
    assert rows[2].startswith("| 10% | 0.510 ± 0.010 | 0.610 ± 0.010 |")
    assert rows[6] == (
        "| 10% | **+0.100 (+0.100, +0.100)** | **+0.200 (+0.200, +0.200)** | **+0.300 (+0.300, +0.300)** | "
        "**+0.100 (+0.100, +0.100)** | **-0.100 (-0.100, -0.100)** | **+0.300 (+0.300, +0.300)** |"
    )


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
