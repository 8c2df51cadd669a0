"""Traces with types of GPU through the cluster's planner: published figures, and what holds whatever the trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.jobs import RESTART_SECONDS
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import SimulationOutcome, outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.planned_types import planned_types
from espalier_lab.simulator.typed import TypedNode
from espalier_lab.simulator.typed_jobs import Kind, TypedJob
from espalier_operator.policies.settings import configured

pytestmark = pytest.mark.slow

NODES = (TypedNode("fast", 2), TypedNode("slow", 2), TypedNode("slow", 2))
GPUS = {"fast": 2, "slow": 4}
POLICIES = ("fair", "fifo", "las:thresholds=600/1200", "gittins:quantum=60", "optimus", "goodput", "gavel", "gandiva")


def simulated(trace: Path, policy: str, latency: str = "none") -> SimulationOutcome:
    typed = read_gavel(trace, Throughputs(trace.parent))
    jobs, nodes, latencies = planned_types(typed, nodes_by_type("8:16:24"), LATENCIES[latency])
    Planned(jobs, nodes, configured(policy), latencies).run()
    return outcome_of(jobs, 48)


@pytest.mark.sweep("traces of Gavel")
@pytest.mark.parametrize(
    ("trace", "policy", "figure", "published", "within"),
    [
        ("max_min_fairness", "gavel", "average_jct", 14_622.8, 0.04),
        ("minimize_makespan", "gavel:objective=makespan", "makespan", 64_720.8, 0.02),
    ],
)
def test_figures_are_near_the_published_ones(
    trace: str, policy: str, figure: str, published: float, within: float, gavel: Path
) -> None:
    """Measured: 2.7 and 0.9 % below. On a cluster what is idle is leased at once, and not once in 360 s."""
    found: float = getattr(simulated(gavel / f"{trace}.trace", policy), figure)
    assert found == pytest.approx(published, rel=within)


@pytest.mark.sweep("traces of Gavel")
@pytest.mark.parametrize(
    ("trace", "latency", "published"),
    [("max_min_fairness", "realistic", 14_622.8), ("minimize_makespan", "none", 35_659.0)],
)
def test_goodput_is_below_the_completion_times_of_gavel(
    trace: str, latency: str, published: float, gavel: Path
) -> None:
    assert simulated(gavel / f"{trace}.trace", "goodput", latency).average_jct <= published * 0.95


class Table:
    """Steps a second by type and number of GPUs."""

    def __init__(self, **speeds: float) -> None:
        self._speeds = speeds

    def steps_per_second(self, gpu_type: str, kind: Kind, beside: Kind | None = None) -> float:
        return self._speeds[gpu_type] * kind[1]


def a_job(name: str, at: float, gpus: int, steps: int, fast: float, slow: float) -> TypedJob:
    return TypedJob(name, at, (name, gpus), steps, Table(fast=fast, slow=slow))


JOBS = st.lists(
    st.tuples(
        st.floats(0, 5000),
        st.integers(1, 4),
        st.integers(1, 20_000),
        st.sampled_from(((4.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1.0, 2.0))),
    ),
    min_size=1,
    max_size=8,
)
"""Submitted at, GPUs, steps, steps per second and GPU on the two types; all fit on the slow one."""


class Watched(Planned):
    """Checks what is held after each plan."""

    def _plan(self) -> float:
        due = super()._plan()
        held = Counter(job.job.gpu_type for job in self._backend.jobs.values() for _ in job.workers if job.job.workers)
        assert all(held[gpu_type] <= gpus for gpu_type, gpus in GPUS.items())
        for job in self._backend.jobs.values():
            types = {(worker.node or "").partition("-")[0] for worker in job.workers}
            assert len(types) <= 1, "a gang on two types"
            assert types <= set(job.job.runs_on), "it cannot run there"
        return due


@given(JOBS, st.sampled_from(POLICIES), st.sampled_from(sorted(LATENCIES)), st.booleans())
@settings(max_examples=sweeps.examples(60), deadline=None)
def test_all_jobs_complete_all_their_steps(
    drawn: list[tuple[float, int, int, tuple[float, float]]], policy: str, latency: str, preemptible: bool
) -> None:
    typed = [a_job(f"j{at}", submitted, gpus, steps, *each) for at, (submitted, gpus, steps, each) in enumerate(drawn)]
    jobs, nodes, latencies = planned_types(typed, NODES, LATENCIES[latency])
    Watched(jobs, nodes, configured(policy), latencies, preemptible=preemptible).run()
    for job, (submitted, gpus, steps, speeds) in zip(jobs, drawn, strict=True):
        assert job.speed_model.remaining_steps == 0
        assert job.completed_at - submitted >= steps / (gpus * max(speeds)) - 1e-6
        assert preemptible or job.evictions == 0
    assert outcome_of(jobs, 6).utilisation <= 1 + 1e-9


def test_a_job_of_one_type_only_waits_for_it_under_policies_that_know_no_types() -> None:
    typed = [a_job(name, 0.0, 2, 1200, 1.0, 0.0) for name in ("a", "b")]
    jobs, nodes, latencies = planned_types(typed, NODES, LATENCIES["none"])
    Planned(jobs, nodes, configured("fifo"), latencies).run()
    assert [job.completed_at for job in jobs] == [60 + 600, 660 + 600]


def test_a_move_costs_a_restart_where_things_take_time() -> None:
    """Alone, `a` is on the slow type while `b` has the fast one, and moves there when `b` has ended."""
    done = {}
    for latency in LATENCIES:
        typed = [a_job("a", 0.0, 2, 40_000, 2.0, 1.0), a_job("b", 0.0, 2, 4000, 20.0, 1.0)]
        typed[1].priority = 2  # else `a`, which is the last one in any case, would have the fast one at once
        jobs, nodes, latencies = planned_types(typed, NODES, LATENCIES[latency])
        Planned(jobs, nodes, configured("goodput"), latencies).run()
        assert [job.restarts for job in jobs] == [1, 0]
        done[latency] = jobs[0].completed_at or 0.0
    slow = LATENCIES["realistic"]
    paid = 2 * (slow.start_seconds + RESTART_SECONDS) + slow.save_seconds
    assert done["realistic"] >= done["none"] + paid - 60


def test_a_job_that_never_fits_is_named() -> None:
    with pytest.raises(TraceError, match="job a: needs 3 GPUs of one type on which it was measured"):
        planned_types([a_job("a", 0.0, 3, 10, 1.0, 0.0)], NODES, LATENCIES["none"])
