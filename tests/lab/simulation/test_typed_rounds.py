"""The driver by rounds on GPUs of several types: what holds whatever the jobs and the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.gavel import nodes_by_type
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.typed import RoundAllocation, TypedNode, TypedRounds
from espalier_lab.simulator.typed_jobs import Kind, TypedJob
from espalier_operator.policies.leases import LEASE_SECONDS
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision, Share, View
from small_simulations import on_types

POLICIES = (
    "fifo",
    "fifo:seed=3",
    "fair",
    "las",
    "tiresias",
    "gittins",
    "gavel",
    "gavel:heterogeneity=false",
    "optimus",
)
NODES = (TypedNode("fast", 4), TypedNode("fast", 2), TypedNode("slow", 4))
SPEEDS = {"a": {"fast": 4.0, "slow": 1.0}, "b": {"fast": 1.5, "slow": 1.5}, "c": {"fast": 0.001, "slow": 0.0}}
JOBS = st.lists(
    st.tuples(st.floats(0, 5000), st.sampled_from("aabbc"), st.integers(1, 6), st.integers(1, 6000)),
    min_size=1,
    max_size=12,
)  # submitted at, what it trains, GPUs, steps


class Measured:
    """Throughputs; two on the same GPUs get .7 of their speed each."""

    def steps_per_second(self, gpu_type: str, kind: Kind, beside: Kind | None = None) -> float:
        return SPEEDS[kind[0]][gpu_type] * (1.0 if beside is None else 0.7)


def jobs_of(drawn: Sequence[tuple[float, str, int, int]]) -> list[TypedJob]:
    return [
        TypedJob(f"j{index:02}", at, (model, gpus), 1 + steps // 1000 if model == "c" else steps, Measured())
        for index, (at, model, gpus, steps) in enumerate(drawn)
    ]


class Watched(TypedRounds):
    """Checks what is held in each round."""

    def _granted(self, decision: Decision) -> dict[str, RoundAllocation]:
        leases = super()._granted(decision)
        used = Counter[int]()
        for name, lease in leases.items():
            job = self._active[name]
            assert len(lease.nodes) == job.gpus, "all or none"
            assert {self._nodes[node].gpu_type for node in lease.nodes} == {lease.gpu_type}, "one type at a time"
            assert job.speed(lease.gpu_type) > 0
            if lease.beside is None or name < lease.beside:
                used.update(lease.nodes)
            if lease.beside is not None:
                other = leases[lease.beside]
                assert (other.beside, other.nodes) == (name, lease.nodes), "shared by two"
        assert all(used[index] <= node.gpus for index, node in enumerate(self._nodes)), "a GPU given twice"
        return leases


@given(JOBS, st.sampled_from(POLICIES))
@settings(max_examples=150, deadline=None)
def test_all_jobs_complete_and_no_gpu_is_given_twice(drawn: list[tuple[float, str, int, int]], policy: str) -> None:
    jobs = jobs_of(drawn)
    Watched(jobs, NODES, configured(policy)).run()
    for job, (submitted, model, _, _) in zip(jobs, drawn, strict=True):
        assert not job.remaining_steps
        assert job.completed_at >= submitted
        assert job.restarts >= 0
        assert model == "c" or job.service <= job.gpus * (job.completed_at - submitted) + 1e-6
    assert outcome_of(jobs, 10).utilisation <= 1 + 1e-9


@given(JOBS, st.sampled_from(POLICIES))
@settings(max_examples=30, deadline=None)
def test_a_run_repeats_itself(drawn: list[tuple[float, str, int, int]], policy: str) -> None:
    ends = []
    for _ in range(2):
        jobs = jobs_of(drawn)
        TypedRounds(jobs, NODES, configured(policy)).run()
        ends.append([job.completed_at for job in jobs])
    assert ends[0] == ends[1]


def test_a_round_ends_with_its_last_whole_step() -> None:
    """540 steps fit in a lease at 1.5 steps a second, 2 in one of 719 s at least."""
    jobs = jobs_of([(0.0, "b", 4, 600), (0.0, "a", 1, 4)])
    TypedRounds(jobs, NODES, configured("fifo")).run()
    assert [job.completed_at for job in jobs] == [LEASE_SECONDS + 60 / 1.5, 1.0]


def test_a_step_longer_than_a_lease_is_made() -> None:
    jobs = [TypedJob("slow", 0.0, ("c", 1), 2, Measured())]
    TypedRounds(jobs, NODES, configured("fifo")).run()
    assert jobs[0].completed_at == 2000.0


def test_a_job_stays_on_its_gpus_while_it_stays_on_a_type() -> None:
    """The third job needs both GPUs of a node that the second one leaves."""
    jobs = jobs_of([(0.0, "b", 2, 6000), (0.0, "b", 2, 600), (400.0, "b", 2, 6000)])
    TypedRounds(jobs, [TypedNode("fast", 4)], configured("fair")).run()
    assert [job.restarts for job in jobs] == [0, 0, 0]


def test_two_jobs_on_the_same_gpus_are_as_fast_as_measured_together() -> None:
    class Packed:
        name, queue_order = "packed", "by name"

        def decide(self, view: View) -> Decision:
            first, *others = (job.key for job in view.jobs)
            shares = [Share(job=first, workers=1, gpu_type="slow")]
            return Decision(shares=(*shares, *(Share(job=job, workers=1, beside=first) for job in others)))

    jobs = jobs_of([(0.0, "a", 1, 70), (0.0, "b", 1, 210)])
    Watched(jobs, NODES, Packed()).run()
    # The lease is over for both when the slower one's steps are made.
    assert [job.completed_at for job in jobs] == [pytest.approx(200.0)] * 2
    assert [job.service for job in jobs] == [pytest.approx(100.0)] * 2


def test_a_policy_that_runs_nothing_is_named() -> None:
    class Idle:
        name, queue_order = "idle", "by nothing"

        def decide(self, view: View) -> Decision:
            return Decision(shares=())

    with pytest.raises(TraceError, match="policy idle: lets all of j00 wait for ever"):
        TypedRounds(jobs_of([(0.0, "a", 1, 1)]), NODES, Idle()).run()


def test_a_job_that_never_fits_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match="job j00: needs 7 GPUs of one type .*; the cluster has 6 fast, 4 slow"):
        TypedRounds(jobs_of([(0.0, "a", 7, 1)]), NODES, configured("fifo"))


def test_the_cluster_by_type() -> None:
    assert nodes_by_type("6:0:8") == [TypedNode("v100", 4), TypedNode("v100", 2), TypedNode("k80", 8)]


@pytest.mark.parametrize(
    ("trace", "jct", "makespan"),
    [("max_min_fairness", 35_904.574, 196_524.281), ("minimize_makespan", 211_550.984, 274_227.734)],
)
def test_first_in_first_out_as_in_the_simulator_of_gavel(trace: str, jct: float, makespan: float, gavel: Path) -> None:
    found = on_types(gavel / f"{trace}.trace", "fifo")
    assert (found.average_jct, found.makespan) == (pytest.approx(jct, abs=5e-4), pytest.approx(makespan, abs=5e-4))
