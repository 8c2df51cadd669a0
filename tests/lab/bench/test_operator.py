"""Benchmarks of the operator: a core of its own, ratios of cases, and a tick in which a GPU that comes free is lent."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from bench.cases.operator import table
from bench.cases.plan import Cluster
from bench.load.objects import Case
from bench.load.processes import running, shared_out


def test_a_process_runs_on_the_cores_that_it_is_given(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
    with running("one", command, tmp_path, frozenset((core,))) as process:
        while not (said := process.log.read_text()):
            os.sched_yield()
    assert said.strip() == str({core})


def test_the_last_core_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 0, 1})
    assert shared_out() == (frozenset((3,)), frozenset((0, 1)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2})
    with pytest.raises(ValueError, match="two cores"):
        shared_out()


def test_the_last_column_compares_the_last_case_with_the_first() -> None:
    cases = [Case(nodes=nodes, jobs=10, events=0) for nodes in (100, 200)]
    lines = table(cases, [{"planMs": 10.0, "events": 0.0}, {"planMs": 15.0, "events": None}]).text().splitlines()[1:]
    found = {" ".join(line.split()[:-3]): line.split()[-3:] for line in lines}
    assert lines[0].endswith("200 / 100")
    assert found["plan() alone, median ms"] == ["10.0", "15.0", "1.50"]
    assert found["GPUs freed"] == ["0", "–", "–"]


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
