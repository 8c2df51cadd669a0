"""What a plan only tries leaves nothing behind: neither GPUs and other resources, nor reclaim requests."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_operator.model import Snapshot
from espalier_operator.model.queues import QueueUsage
from espalier_operator.planner.cycle import OpenJobs, PlanningCycle
from espalier_operator.planner.lifecycle import JobLimits, PlanBuilder
from espalier_operator.planner.placement import WorkerIndex
from espalier_operator.policies.fair import FairPolicy
from operator_world.crowds import NOW, crowd


def cycle_of(snapshot: Snapshot) -> PlanningCycle:
    """A cycle in which nothing is decided yet but what each job alone says."""
    record, ledger = PlanBuilder(NOW), QueueUsage(snapshot.queues, snapshot.held_claims())
    jobs = [job for job in snapshot.jobs if not job.finished and job.ended is None]
    limits = JobLimits(record, ledger, snapshot.rules, NOW)
    open_jobs = OpenJobs.by(FairPolicy(), snapshot, record, jobs, NOW)
    kept = {job.key: job.extra for job in open_jobs.running}
    return PlanningCycle(snapshot, open_jobs, WorkerIndex(snapshot.workers), record, ledger, limits, kept, NOW)


def standing(cycle: PlanningCycle) -> Any:
    """What of a cycle a try may change."""
    capacity, reclaims = cycle.capacity, cycle.reclaims
    left = None if capacity._headroom is None else {node: capacity._headroom.left_on(node) for node in capacity._now}
    asked = {key: (made.extra, made.deadline) for key, made in reclaims._reclaim_requests.made.items()}
    first = {gpu_type: line.first for gpu_type, line in reclaims._lines.items()}
    return deepcopy((capacity._now, capacity._later, left, asked, first, cycle.transaction.mark()))


gangs = st.lists(st.tuples(st.integers(0, 59), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4)


@given(seed=st.integers(0, 10**6), kept=gangs, tried=gangs)
@settings(max_examples=50, deadline=None)
def test_a_trial_leaves_nothing_behind(
    seed: int, kept: list[tuple[int, int, int]], tried: list[tuple[int, int, int]]
) -> None:
    cycle = cycle_of(crowd(seed, nodes=30, jobs=60))

    def place(asked: list[tuple[int, int, int]]) -> None:
        for number, gpus, workers in asked:
            job = cycle.snapshot.jobs[number % len(cycle.snapshot.jobs)]
            for node_pool in cycle.places.node_pools(None, job.terms.constraints):
                cycle.pool.await_gang(node_pool, gpus, workers)

    place(kept)
    before = standing(cycle)
    with cycle.transaction.trial():
        place(tried)
    assert standing(cycle) == before
