"""The benchmark of a tick measures what it says: jobs that train, and a GPU that comes free is lent."""

from __future__ import annotations

import asyncio

from bench.cases.plan import Cluster
from bench.load.objects import Case


async def lent_after_a_gpu_is_freed() -> tuple[list[bool], int, int]:
    cluster = Cluster(Case(nodes=4, jobs=3, events=2, idle_pods=4))
    for _ in range(3):
        await cluster.tick()
        cluster.report(0, 1, 1.0)
        cluster.clock.time += 1
    cluster.sync_figures()
    jobs = cluster.backend.jobs.values()
    before = sum(job.state.extra for job in jobs)
    cluster.free_one()
    parts = await cluster.tick()
    assert list(parts) == ["look", "plan", "record"]
    return [job.facts is not None and job.facts.training for job in jobs], before, sum(job.state.extra for job in jobs)


def test_a_gpu_that_comes_free_is_lent_to_a_job_that_trains() -> None:
    training, before, after = asyncio.run(lent_after_a_gpu_is_freed())
    assert training == [True] * 3
    assert (before, after) == (0, 1)
