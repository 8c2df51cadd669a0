"""Goodput on GPUs of several types: below the completion times of Gavel, and what holds whatever the jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espalier_lab.simulator.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.typed import TypedRounds
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View
from small_simulations import on_types


def test_mean_completion_times_are_below_those_of_gavel(gavel: Path) -> None:
    """Published, of Gavel's least attained service: 14,622.8 and 35,659.0 s; makespans of 63,945 and 68,521.8 s."""
    one, other = (on_types(gavel / f"{name}.trace", "goodput") for name in ("max_min_fairness", "minimize_makespan"))
    assert one.average_jct <= 14_622.8 * 0.95
    assert other.average_jct <= 35_659.0 * 0.85
    assert one.makespan <= 63_945
    assert other.makespan <= 68_521.8 * 1.02


def test_the_makespan_is_below_that_of_gavel_where_it_is_the_objective(gavel: Path) -> None:
    """Published, of its policy for makespans, which knows how long jobs take too: 64,720.8 s."""
    assert on_types(gavel / "minimize_makespan.trace", "goodput:objective=makespan").makespan <= 64_720.8


class Speeds:
    """Of each job, on types `a` and `b`."""

    def __init__(self, *speeds: tuple[float, float]) -> None:
        self._speeds = speeds

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return self._speeds[int(job)]["ab".index(gpu_type)]


def decided(jobs: tuple[Candidate, ...], speeds: Speeds, now: float = 0.0, memory: object = None) -> Decision:
    types = {"a": 2, "b": 2}
    view = View(now=now, gpus=4, jobs=jobs, gpu_types=types, speeds=speeds, memory=memory or {})  # type: ignore[arg-type]
    return configured("goodput").decide(view)


def job(key: int, gpus: int, **facts: float) -> Candidate:
    return Candidate(key=str(key), submitted_at=0.0, min_workers=gpus, max_workers=gpus, **facts)  # type: ignore[arg-type]


def types_of(decision: Decision) -> dict[str, str | None]:
    return {share.job: share.gpu_type for share in decision.shares if share.workers}


def test_who_is_sped_up_most_by_a_type_gets_it() -> None:
    jobs = (job(0, 2), job(1, 2))
    assert types_of(decided(jobs, Speeds((2.0, 1.0), (10.0, 1.0)))) == {"1": "a", "0": "b"}
    assert types_of(decided(jobs, Speeds((2.0, 0.0), (10.0, 1.0)))) == {"0": "a", "1": "b"}, "one runs on `a` only"


def test_a_job_that_has_waited_goes_first_in_the_end() -> None:
    speeds = Speeds((1.0, 1.0), *[(1.0, 1.0)] * 4)
    small = [job(key, 1) for key in (1, 2, 3, 4)]
    assert "0" not in types_of(decided((job(0, 2), *small), speeds))
    served = [job(key, 1, service=40_000.0) for key in (1, 2, 3, 4)]
    assert "0" in types_of(decided((job(0, 2), *served), speeds, now=40_000.0))


class Rest:
    """What is known of a job with so many steps left."""

    tried_workers = 1

    def __init__(self, steps: float) -> None:
        self.remaining_steps = steps

    def step_seconds(self, workers: int) -> float:
        return 1.0

    def goodput(self, nodes: int, workers: int) -> float:
        return 1.0


@pytest.mark.parametrize(("steps", "runs"), [(9000.0, True), (1000.0, False), (None, False)])
def test_a_job_that_would_be_the_last_one_goes_before_those_that_are_due(steps: float | None, runs: bool) -> None:
    """Job 0 has had much, the others nothing; all the others together take less than half as long as it does."""
    jobs = (job(0, 1, service=3e4), *(job(key, 2) for key in (1, 2, 3)))
    speed_models = {str(key): Rest(1000.0) for key in (1, 2, 3)} | ({} if steps is None else {"0": Rest(steps)})
    view = View(
        now=3e4,
        gpus=4,
        jobs=jobs,
        gpu_types={"a": 2, "b": 2},
        speeds=Speeds(*[(1.0, 1.0)] * 4),
        speed_models=speed_models,
    )
    assert ("0" in types_of(configured("goodput").decide(view))) == runs


def test_a_job_moves_only_for_more_than_a_restart_costs() -> None:
    jobs = (job(0, 2, workers=2), job(1, 2, workers=2))
    first = decided(jobs, Speeds((1.00, 1.0), (1.01, 1.0)))
    assert types_of(first) == {"0": "b", "1": "a"}
    again = decided(jobs, Speeds((1.02, 1.0), (1.01, 1.0)), memory=first.memory)
    assert types_of(again) == types_of(first)
    gained = decided(jobs, Speeds((2.00, 1.0), (1.01, 1.0)), memory=first.memory)
    assert types_of(gained) == {"0": "a", "1": "b"}


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.tuples(st.floats(0, 9), st.floats(0, 9)), st.integers(-2, 3)), max_size=9
)


@example([(1, (0.0, 5e-324), 0)], 0.0)
@given(JOBS, st.floats(0, 1e6))
def test_no_type_is_given_twice_and_a_share_that_fits_is_served(
    drawn: list[tuple[int, tuple[float, float], int]], now: float
) -> None:
    jobs = tuple(job(key, gpus, priority=priority) for key, (gpus, _, priority) in enumerate(drawn))
    decision = decided(jobs, Speeds(*(speeds for _, speeds, _ in drawn)), now)
    used = Counter[str]()
    for share in decision.shares:
        if share.workers:
            assert share.gpu_type is not None
            used[share.gpu_type] += share.workers
    assert all(used[gpu_type] <= 2 for gpu_type in "ab")
    assert sorted(share.job for share in decision.shares) == sorted(each.key for each in jobs)
    for share in decision.shares:
        gpus, speeds, _ = drawn[int(share.job)]
        if not share.workers:
            assert not any(speed > 0 and used[each] + gpus <= 2 for each, speed in zip("ab", speeds, strict=True))


@pytest.mark.parametrize("cluster", ["8:0:0", "0:9:48", "36:36:36"])
def test_all_jobs_complete_on_other_clusters(cluster: str, gavel: Path) -> None:
    jobs = read_gavel(gavel / "minimize_makespan.trace", Throughputs(gavel))
    TypedRounds(jobs, nodes_by_type(cluster), configured("goodput")).run()
    assert all(each.completed_at is not None for each in jobs)
