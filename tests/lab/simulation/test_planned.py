"""The driver by plans: what holds whatever the trace, the policy and the latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_lab.simulator.jobs import RESTART_SECONDS, FixedJob, SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.rounds import Rounds
from espalier_operator.policies.settings import configured
from small_simulations import COMMON_POLICIES, GPUS, JOBS, NODES

POLICIES = (*COMMON_POLICIES, "value")

NONE, REALISTIC = LATENCIES["none"], LATENCIES["realistic"]


class Elastic(FixedJob):
    """A job of a fixed work that any number of workers up to so many share, and that counts what it has done."""

    def __init__(self, name: str, submitted_at: float, workers: int, duration: float, most: int) -> None:
        super().__init__(name, submitted_at, workers, duration)
        self.most_workers = max(workers, most)
        self.work = 0.0

    def _train(self, now: float, seconds: float) -> bool:
        ended = super()._train(now, seconds)
        trained = seconds if self.completed_at is None else self.completed_at - now
        self.work += trained * self.workers
        return ended


def jobs_of(drawn: Sequence[tuple[float, int, float]], most: int = 1) -> list[Elastic]:
    return [Elastic(f"j{index}", *each, most) for index, each in enumerate(drawn)]


class Watched(Planned):
    """Checks what is held after each plan."""

    def _plan(self) -> float:
        due = super()._plan()
        jobs = self._backend.jobs.values()
        used = Counter(worker.node for job in jobs for worker in job.workers)
        assert all(used[node.name] <= node.gpus for node in NODES), "over-allocated"
        for job in jobs:
            held = sum(1 for _ in job.workers)
            assert held == 0 or job.terms.min_replicas <= held <= job.terms.max_replicas, "a gang in part"
            assert job.job.completed_at is not None or job.job.workers + job.job.idle_gpus == held
        return due


@given(JOBS, st.integers(1, GPUS), st.sampled_from(POLICIES), st.sampled_from(sorted(LATENCIES)), st.booleans())
@settings(max_examples=sweeps.size("lives of planned jobs", 150), deadline=None)
def test_all_jobs_complete_all_their_work_and_no_gpu_is_given_twice(
    drawn: list[tuple[float, int, float]], most: int, policy: str, latency: str, preemptible: bool
) -> None:
    jobs = jobs_of(drawn, most)
    planned, told = Watched(jobs, NODES, configured(policy), LATENCIES[latency], preemptible=preemptible), list[int]()
    planned.run(told.append)
    assert told[-1] == len(jobs)
    for job, (submitted, gpus, duration) in zip(jobs, drawn, strict=True):
        assert job.work == pytest.approx(gpus * duration), "work was lost, or done twice"
        assert job.service >= job.work - 1e-6
        fastest = duration * gpus / max(gpus, most)
        assert job.completed_at - submitted >= fastest + RESTART_SECONDS + LATENCIES[latency].start_seconds - 1e-6
        assert preemptible or job.evictions == 0
    assert outcome_of(jobs, GPUS).utilisation <= 1 + 1e-9


@given(st.floats(0, 5000), st.integers(1, GPUS), st.floats(0.5, 5000), st.sampled_from(POLICIES))
@settings(max_examples=25, deadline=None)
def test_a_job_alone_takes_as_long_as_by_rounds_and_its_start_comes_on_top(
    submitted: float, gpus: int, duration: float, policy: str
) -> None:
    """Of several jobs, latencies may let one pass another; one alone they can only delay."""

    def completed(latency: str | None) -> float:
        jobs: list[SimulatedJob] = [FixedJob("j", submitted, gpus, duration)]
        if latency is None:
            Rounds(jobs, NODES, configured(policy)).run()
        else:
            Planned(jobs, NODES, configured(policy), LATENCIES[latency]).run()
        return jobs[0].completed_at or 0.0

    assert completed("none") == pytest.approx(completed(None))
    if policy != "optimus":  # a job that begins with one worker and is lent more starts again for them
        assert completed("realistic") == pytest.approx(completed("none") + REALISTIC.start_seconds)


def test_a_short_job_preempts_a_long_one_that_then_goes_on_where_it_was() -> None:
    """The long one is stopped at 180 s: since 90 s it has trained, in 30 s steps of the pause."""

    def run(latency: str, *, preemptible: bool = True) -> list[Elastic]:
        jobs = jobs_of([(0.0, 6, 1200.0), (150.0, 6, 60.0)])
        policy = configured("las:thresholds=600")
        Planned(jobs, NODES, policy, LATENCIES[latency], preemptible=preemptible).run()
        return jobs

    long, short = run("none")
    assert (short.completed_at, long.evictions, long.restarts) == (180 + 30 + 60, 1, 1)
    # It trained from 90 s to 180 s, resumes in the round after the short one, and pauses once more.
    assert long.completed_at == 300 + 30 + (1200 - 90)
    slow_long, slow_short = run("realistic")
    saved = 180 + REALISTIC.save_seconds
    assert slow_short.completed_at == saved + REALISTIC.start_seconds + 30 + 60
    assert slow_long.completed_at > long.completed_at
    assert slow_long.service > slow_long.work
    firm_long, firm_short = run("none", preemptible=False)
    assert firm_long.evictions == 0
    assert firm_long.completed_at == 60 + 30 + 1200
    assert firm_short.completed_at == 1320 + 30 + 60


def test_a_lent_worker_is_given_back_by_notice() -> None:
    """Two of the six GPUs are lent at first; the second job needs them, and gets them when they are let go of."""
    jobs = jobs_of([(0.0, 4, 3000.0)], most=6) + jobs_of([(0.0, 1, 1.0), (1000.0, 2, 600.0)])[1:]
    Planned(jobs, NODES, configured("fair"), REALISTIC).run()
    lent, taker = jobs
    held = [span.gpus for span in lent.held]
    assert (held[0], max(held)) == (4, 6)
    back = next(span.start for span in lent.held if span.start > 1000)
    assert back == 1020 + REALISTIC.acknowledge_seconds
    assert taker.held[0].start == back
    assert taker.completed_at == back + REALISTIC.start_seconds + 30 + 600


def test_a_policy_forgets_no_job_that_it_preempted() -> None:
    """A preempted job keeps its place in its queue: those that came later do not pass it."""
    jobs = jobs_of([(0.0, 6, 300.0), (120.0, 6, 30.0), (130.0, 6, 300.0)])
    Planned(jobs, NODES, configured("las:thresholds=500/100000")).run()
    first, short, later = jobs
    assert (short.completed_at or 0) < (later.completed_at or 0)
    assert first.evictions == 1
