"""The driver by rounds: what holds whatever the trace and the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.jobs import FixedJob, SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision, Elasticity, Share, View
from small_simulations import COMMON_POLICIES, JOBS, NODES

POLICIES = (*COMMON_POLICIES, "goodput")


def jobs_of(drawn: Sequence[tuple[float, int, float]]) -> list[SimulatedJob]:
    return [FixedJob(f"j{index}", *each) for index, each in enumerate(drawn)]


class Watched(Rounds):
    """Checks what is held after each decision."""

    def _carry_out(self, decision: Decision, active: Sequence[SimulatedJob]) -> None:
        super()._carry_out(decision, active)
        used = Counter(node for nodes in self._held.values() for node in nodes)
        assert all(used[index] <= node.gpus for index, node in enumerate(NODES)), "over-allocated"
        for job in active:
            assert job.workers == len(self._held.get(job.name, ()))
            assert job.workers in (0, job.requested) or self._policy.elasticity is not Elasticity.FIXED


@given(JOBS, st.sampled_from(POLICIES))
@settings(max_examples=200)
def test_all_jobs_complete_and_no_gpu_is_given_twice(drawn: list[tuple[float, int, float]], policy: str) -> None:
    jobs = jobs_of(drawn)
    Watched(jobs, NODES, configured(policy)).run()
    for job, (submitted, gpus, duration) in zip(jobs, drawn, strict=True):
        assert job.completed_at - submitted >= duration - 1e-6, "faster than alone"
        assert job.service >= gpus * duration - 1e-3
    assert outcome_of(jobs, 6).utilisation <= 1 + 1e-9


@pytest.mark.parametrize(
    "driver", [Rounds, partial(Planned, latencies=LATENCIES["realistic"])], ids=["rounds", "plans"]
)
@given(JOBS, st.sampled_from(POLICIES))
@settings(max_examples=sweeps.examples(20), deadline=None)
def test_a_run_repeats_itself(driver: Any, drawn: list[tuple[float, int, float]], policy: str) -> None:
    ends = []
    for _ in range(2):
        jobs = jobs_of(drawn)
        driver(jobs, NODES, configured(policy)).run()
        ends.append([job.completed_at for job in jobs])
    assert ends[0] == ends[1]


def test_a_short_job_passes_a_long_one_by_least_attained_service() -> None:
    """And not first in, first out."""

    def completed(policy: str) -> list[float | None]:
        jobs = jobs_of([(0.0, 6, 20_000.0), (100.0, 6, 60.0)])
        Rounds(jobs, NODES, configured(policy)).run()
        return [job.completed_at for job in jobs]

    long, short = completed("fifo")
    assert short > long
    long, short = completed("las:thresholds=1000")
    assert short < 1000


def test_a_job_that_waits_for_long_returns_to_the_first_queue() -> None:
    """Without promotion it waits for all that come after it."""
    stream = [(600.0 * index, 6, 540.0) for index in range(1, 40)]

    def first(policy: str) -> float:
        jobs = jobs_of([(0.0, 6, 1200.0), *stream])
        Rounds(jobs, NODES, configured(policy)).run()
        return jobs[0].completed_at or 0.0

    assert first("las:thresholds=3600,promote=2") < first("las:thresholds=3600") / 2


def test_a_policy_is_asked_again_only_when_something_may_have_changed() -> None:
    asked = []

    class Counted:
        name, queue_order, elasticity = "counted", "by age", Elasticity.FIXED

        def decide(self, view: View) -> Decision:
            asked.append(view.now)
            return configured("fifo").decide(view)

    Rounds(jobs_of([(0.0, 1, 100_000.0), (50_000.0, 1, 10.0)]), NODES, Counted()).run()
    assert asked == [60.0, 50_040.0, 50_100.0]


@pytest.mark.parametrize("driver", [Rounds, Planned])
def test_a_policy_that_runs_nothing_is_named(driver: type[Rounds | Planned]) -> None:
    """It is asked once, and what it decided holds for ever."""

    class Idle:
        name, queue_order, elasticity = "idle", "by nothing", Elasticity.FIXED

        def decide(self, view: View) -> Decision:
            return Decision(shares=())

    with pytest.raises(TraceError, match="policy idle: lets all of j0, j1 wait for ever"):
        driver(jobs_of([(0.0, 1, 1.0), (90.0, 2, 1.0)]), NODES, Idle()).run()


@pytest.mark.parametrize("driver", [Rounds, Planned])
def test_a_job_that_never_fits_is_refused_by_name(driver: type[Rounds | Planned]) -> None:
    with pytest.raises(TraceError, match="job j0: needs 7 GPUs; the cluster has 6"):
        driver(jobs_of([(0.0, 7, 1.0)]), NODES, configured("fifo"))


def test_a_job_that_kept_its_node_makes_room_for_a_wish_for_it() -> None:
    """And is placed where there is room."""

    class Swapping:
        name, queue_order, elasticity = "swapping", "by age", Elasticity.FIXED

        def decide(self, view: View) -> Decision:
            shares = [Share(job=job.key, workers=job.min_workers) for job in view.jobs]
            if len(shares) > 1:
                shares[1] = replace(shares[1], nodes=("a",) * 4)
            return Decision(shares=tuple(shares))

    rounds = Rounds(jobs_of([(0.0, 2, 600.0), (100.0, 4, 600.0)]), NODES, Swapping())
    held = []
    rounds.run(lambda completed: held.append(dict(rounds._held)))
    assert held[0] == {"j0": [1, 1], "j1": [0, 0, 0, 0]}
    assert outcome_of(rounds._jobs, 6).utilisation <= 1


@pytest.mark.parametrize("policy", ["fair", "fifo", "value"])
@pytest.mark.parametrize(("driver", "evictions"), [(Rounds, 1), (Planned, 0)])
def test_by_rounds_an_earlier_job_takes_the_gpus_of_a_later_one(
    driver: type[Rounds | Planned], evictions: int, policy: str
) -> None:
    """Also by policies that preempt no job through the planner."""
    first, second, third = jobs = jobs_of([(0.0, 4, 600.0), (60.0, 8, 600.0), (120.0, 4, 6000.0)])
    driver(jobs, [SimulatedNode("a", 8)], configured(policy)).run()
    assert [job.evictions for job in jobs] == [0, 0, evictions]
    assert first.completed_at is not None
    assert (second.completed_at < third.completed_at) is bool(evictions)
