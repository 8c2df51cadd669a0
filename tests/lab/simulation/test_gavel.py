"""Gavel: its fractions of time on types of GPU, the leases that follow them, and its published figures."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_operator.policies.gavel import Rows, largest_smallest, largest_sum
from espalier_operator.policies.leases import ALLOCATION_SECONDS, LEASE_SECONDS, Table, leased
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View
from small_simulations import on_types

SPEED = st.floats(0.1, 100)
PROBLEMS = st.lists(
    st.tuples(st.tuples(SPEED, SPEED), st.sampled_from([1, 2, 4])), min_size=1, max_size=8
)  # values on two types, GPUs


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that hides a package."""
    find = importlib.util.find_spec

    def hide(package: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))

    return hide


@pytest.mark.parametrize(("hidden", "within"), [("", 0.005), ("clarabel", 0.03)])
def test_fairness_and_makespan_are_as_published_also_at_corners_of_the_optima(
    hidden: str, within: float, without: Any, gavel: Path
) -> None:
    without(hidden)
    assert on_types(gavel / "max_min_fairness.trace", "gavel").average_jct == pytest.approx(14_622.8, rel=within)
    found = on_types(gavel / "minimize_makespan.trace", "gavel:objective=makespan")
    assert found.makespan == pytest.approx(64_720.8, rel=0.01)


def test_who_knows_no_types_is_slower_as_published(gavel: Path) -> None:
    fairness = on_types(gavel / "max_min_fairness.trace", "gavel:heterogeneity=false")
    assert fairness.average_jct == pytest.approx(19_989.3, rel=0.005)
    assert fairness.makespan == pytest.approx(77_141, rel=0.05)
    makespan = on_types(gavel / "minimize_makespan.trace", "gavel:objective=makespan,heterogeneity=false")
    assert makespan.makespan == pytest.approx(76_634.7, rel=0.05)


class Speeds:
    """Three jobs: two that are much faster on `a`, and a third that is as fast on both types."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return {"j0": {"a": 3.0, "b": 1.0}, "j1": {"a": 9.0, "b": 1.0}, "j2": {"a": 2.0, "b": 2.0}}[job][gpu_type]


@dataclass(frozen=True)
class Rest:
    remaining_steps: float

    def step_seconds(self, workers: int) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        # 3 × 1 + 1 × 1 for j0 on a and j2 on b is more than 2 × 1 + 1 × 1 for j1 on a.
        ("fifo", {"j0": (1.0, 0.0), "j1": (0.0, 0.0), "j2": (0.0, 1.0)}),
        # j2 has 400 steps, and b to itself for 200 s; j0 and j1 divide a: 300 steps at 3, 900 at 9 a second.
        ("makespan", {"j0": (0.5, 0.0), "j1": (0.5, 0.0), "j2": (0.0, 1.0)}),
    ],
)
def test_each_objective_on_paper(objective: str, expected: dict[str, tuple[float, float]]) -> None:
    rest = {"j0": Rest(300), "j1": Rest(900), "j2": Rest(400)}
    view = View(now=0.0, gpus=2, jobs=jobs_of(1, 1, 1), speed_models=rest, gpu_types={"a": 1, "b": 1}, speeds=Speeds())
    table = {
        tuple(group): row for group, row in configured(f"gavel:objective={objective}").decide(view).memory["allocation"]
    }
    assert {job: (row["a"], row["b"]) for (job,), row in table.items()} == {
        job: (pytest.approx(on_a, abs=1e-3), pytest.approx(on_b, abs=1e-3)) for job, (on_a, on_b) in expected.items()
    }


@given(PROBLEMS, st.tuples(st.integers(1, 8), st.integers(1, 8)), st.booleans())
@settings(max_examples=40, deadline=None)
def test_both_solvers_find_an_optimum_that_fits(
    problem: list[tuple[tuple[float, float], int]], gpus: tuple[int, int], smallest: bool
) -> None:
    values, sizes = [row for row, _ in problem], [size for _, size in problem]
    optimum = largest_smallest if smallest else largest_sum

    def worth(rows: Rows) -> float:
        each = [sum(map(mul, row, value)) for row, value in zip(rows, values, strict=True)]
        return min(each) if smallest else sum(each)

    found = []
    for hidden in ("", "clarabel"):
        with pytest.MonkeyPatch.context() as patch:
            find = importlib.util.find_spec
            patch.setattr(importlib.util, "find_spec", lambda name: None if name == hidden else find(name))  # noqa: B023
            rows = optimum(values, sizes, gpus)
        for row in rows:
            assert all(0 <= fraction <= 1 for fraction in row)
            assert sum(row) <= 1 + 1e-6
        for column, number in enumerate(gpus):
            assert sum(size * row[column] for size, row in zip(sizes, rows, strict=True)) <= number + 1e-5
        found.append(worth(rows))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_without_scipy_the_remedy_is_named_at_the_start(without: Any) -> None:
    without("scipy")
    with pytest.raises(ValueError, match="gavel: needs SciPy, which is not installed: pip install 'espalier-operator"):
        configured("gavel")


def test_where_nothing_is_known_of_types_the_oldest_go_first() -> None:
    jobs = tuple(
        Candidate(key=key, submitted_at=at, min_workers=1, max_workers=2) for key, at in (("young", 9.0), ("old", 1.0))
    )
    decision = configured("gavel").decide(View(now=9.0, gpus=2, jobs=jobs))
    assert [(share.job, share.workers, share.spare) for share in decision.shares] == [("old", 1, 1), ("young", 1, 1)]


def jobs_of(*gpus: int, held: float = 0.0) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(key=f"j{place}", submitted_at=0.0, min_workers=size, max_workers=size, held_seconds=held)
        for place, size in enumerate(gpus)
    )


def granted(decision: Decision) -> list[tuple[str, str | None]]:
    return [(share.job, share.gpu_type) for share in decision.shares if share.workers]


def test_leases_follow_the_fractions() -> None:
    """In the long run each job has the part of time that it was allocated, to half a lease."""
    fractions = {("j0",): {"a": 0.6, "b": 0.1}, ("j1",): {"a": 0.3, "b": 0.7}, ("j2",): {"a": 0.1, "b": 0.2}}
    counted = {(job, each): 0 for job in ("j0", "j1", "j2") for each in "ab"}
    memory: Mapping[str, Any] = {}
    held = dict.fromkeys(("j0", "j1", "j2"), 0.0)
    for lease in range(1000):
        jobs = tuple(
            Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=1, held_seconds=held[key]) for key in held
        )
        view = View(now=lease * LEASE_SECONDS, gpus=2, jobs=jobs, gpu_types={"a": 1, "b": 1}, memory=memory)
        decision = leased(view, lambda _: (fractions, {}), ["a", "b"])
        memory = json.loads(json.dumps(decision.memory))
        held = dict.fromkeys(held, 0.0)
        for job, gpu_type in granted(decision):
            counted[job, gpu_type] += 1
            held[job] = LEASE_SECONDS
    for (job,), row in fractions.items():
        for gpu_type, fraction in row.items():
            assert counted[job, gpu_type] / 1000 == pytest.approx(fraction, abs=0.05)


def test_an_allocation_lasts_and_who_comes_meanwhile_waits() -> None:
    asked = []

    def allocate(memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
        asked.append(memory)
        return {(job.key,): {"a": 1.0} for job in jobs}, {"asked": len(asked)}

    memory: Mapping[str, Any] = {}
    seen = []
    for jobs, now in (
        (jobs_of(1), 100.0),
        (jobs_of(1, 1), 100.0 + ALLOCATION_SECONDS - 1),
        (jobs_of(1, 1), 100.0 + ALLOCATION_SECONDS),
        (jobs_of(1, 1), 100.0 + 3 * ALLOCATION_SECONDS),
    ):
        decision = leased(View(now=now, gpus=2, jobs=jobs, gpu_types={"a": 2}, memory=memory), allocate, ["a"])
        memory = decision.memory
        seen.append([job for job, _ in granted(decision)])
        assert decision.until == now + LEASE_SECONDS
    assert seen == [["j0"], ["j0"], ["j0", "j1"], ["j0", "j1"]]
    assert asked == [{}, {"asked": 1}], "no need to ask while the jobs are the same"


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("factor", "again"), [(1.05, False), (0.5, True), (2.0, True), (0.0, True)])
def test_an_allocation_is_worked_out_again_where_a_measured_speed_is_another(
    factor: float, again: bool, continuous: bool
) -> None:
    """Not by what differs from one measurement to the next, and not before its time; once a change."""
    asked: list[float] = []

    def allocate(memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
        asked.append(now)
        return {("j0",): {"a": 1.0}}, {}

    memory: Mapping[str, Any] = {}
    for now, speed in ((100.0, 3.0), (110.0, 3.0 * factor), (4000.0, 3.0 * factor), (8000.0, 3.0 * factor)):
        view = View(now=now, gpus=2, jobs=jobs_of(1), gpu_types={"a": 2}, memory=memory, continuous=continuous)
        memory = json.loads(json.dumps(leased(view, allocate, ["a"], speeds={"j0": {"a": speed}}).memory))
    assert asked == ([100.0, 4000.0] if again else [100.0])


class Learnt:
    """Speeds that are known only after a while."""

    def __init__(self, **rows: tuple[float, float]) -> None:
        self.rows = rows

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return 0.0 if beside else self.rows[job]["ab".index(gpu_type)]


@pytest.mark.parametrize("continuous", [False, True])
def test_jobs_get_the_types_on_which_they_prove_to_be_fast(continuous: bool) -> None:
    """All seem alike at first; nobody comes or ends."""
    memory: Mapping[str, Any] = {}
    jobs = jobs_of(1, 1)
    for step in range(40):
        learnt = Learnt(j0=(9.0, 1.0), j1=(1.0, 9.0)) if step > 5 else Learnt(j0=(1.0, 1.0), j1=(1.0, 1.0))
        view = View(
            now=1000.0 + step * LEASE_SECONDS,
            gpus=2,
            jobs=jobs,
            gpu_types={"a": 1, "b": 1},
            speeds=learnt,
            memory=memory,
            continuous=continuous,
        )
        decision = configured("gavel").decide(view)
        memory = decision.memory
        types = {share.job: share.gpu_type for share in decision.shares if share.workers}
        jobs = tuple(
            replace(each, held_seconds=LEASE_SECONDS, service=each.service + LEASE_SECONDS, gpu_type=types[each.key])
            for each in jobs
        )
        if step > 20:
            assert types == {"j0": "a", "j1": "b"}


@pytest.mark.parametrize(("fills", "expected"), [(True, [("j0", "a"), ("j1", "a")]), (False, [("j0", "a")])])
def test_idle_gpus_go_to_jobs_without_a_fraction(fills: bool, expected: list[tuple[str, str]]) -> None:
    table: Table = {("j0",): {"a": 0.5}, ("j1",): {"a": 0.0}}
    view = View(now=0.0, gpus=4, jobs=jobs_of(2, 2), gpu_types={"a": 4})
    assert granted(leased(view, lambda _: (table, {}), ["a"], fills=fills)) == expected
