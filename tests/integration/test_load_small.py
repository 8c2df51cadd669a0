"""`make bench-operator` at toy size: its stages run to their ends on a real API server, and count what happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.cases.operator import table
from bench.load.cluster import Figures, Tools
from bench.load.objects import Case, gpus_of, layout_of
from bench.load.stages import measure
from tools import tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kwok() -> Path:
    """Return kwok; got as `kubernetes_binaries` are."""
    return tool("kwok", "no kwok to test with")


def gpus_come_free(case: Case, figures: Figures, said: list[str]) -> None:
    """Every GPU that comes free is lent, and that is seen."""
    assert figures["admitted"] == 10, said
    assert figures["workers"] == sum(job["spec"]["minReplicas"] for job in layout_of(case).jobs)
    assert figures["requestsPerJob create services"] == 1.0
    assert figures["requestsPerJob create pods"] == (figures["workers"] or 0) / 10
    assert figures["events"] == 6
    assert (figures["reactionP50Ms"] or 0) > 0
    assert (figures["peakMiB"] or 0) > (figures["idleMiB"] or 0) / 2 > 0
    assert figures["warnings"] == 0, said
    lines = table([case], [figures]).text().splitlines()[1:]
    assert "5 nodes, 10 jobs" in lines[0]
    assert any(line.split() == ["jobs", "admitted", "10"] for line in lines)


def some_do_not_fit(case: Case, figures: Figures, said: list[str]) -> None:
    """They wait, and nothing is freed."""
    assert layout_of(case).foreign == []
    assert 0 < (figures["admitted"] or 0) < 10, said
    assert "events" not in figures


CASES = {
    "all fit": (Case(nodes=5, jobs=10, events=6, spacing=0.2, report_seconds=1.0, idle_pods=50), gpus_come_free),
    "some do not": (Case(nodes=1, jobs=10, events=6), some_do_not_fit),
}


@pytest.mark.sweep("cases of the operator's benchmark")
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_measured_to_its_end(kubernetes_binaries: Path, kwok: Path, tmp_path: Path, name: str) -> None:
    case, holds = CASES[name]
    said: list[str] = []
    tools = Tools(binaries=kubernetes_binaries, kwok=kwok)
    figures, version = asyncio.run(measure(case, tools, tmp_path, said.append))
    assert version.startswith("v1.")
    holds(case, figures, said)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_gpus_are_held_but_those_that_the_jobs_need(seed: int) -> None:
    case = Case(nodes=100, jobs=50, events=20, seed=seed, idle_pods=300)
    layout = layout_of(case)
    assert {pod["spec"]["nodeName"] for pod in layout.idle} == {f"node-{number:05}" for number in range(100)}
    assert sum(map(gpus_of, layout.idle)) == 0
    need = sum(job["spec"]["minReplicas"] for job in layout.jobs)
    assert layout.foreign_gpus == case.gpus - need
    assert len(layout.single) >= 20
    held: dict[str, int] = {}
    for pod in layout.foreign:
        node = pod["spec"]["nodeName"]
        held[node] = held.get(node, 0) + gpus_of(pod)
    assert max(held.values()) == 8
    assert all(0 <= int(name.removeprefix("node-")) < 100 for name in held)


def test_a_case_too_small_for_its_events_is_refused() -> None:
    with pytest.raises(ValueError, match="200 events are too many for 100 nodes and 50 jobs"):
        layout_of(Case(nodes=100, jobs=50, events=200))
