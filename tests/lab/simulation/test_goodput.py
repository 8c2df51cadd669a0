"""Goodput: below Pollux' completion times, within what there is, and without needless restarts."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.jobs import FixedJob
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_lab.simulator.traces import read_pollux
from espalier_operator.policies.goodput import GoodputPolicy, near
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, Elasticity, View

LOADS = {"half-load": "half-load-", "full-load": "", "double-load": "double-load-"}


@pytest.mark.sweep("traces of Pollux")
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("workloads", [(1, 3), (2, 6)], ids=["chosen on", "judged on"])
def test_jobs_complete_before_those_of_pollux(
    workloads: Sequence[int], load: str, pollux: Path, profiles: Profiles
) -> None:
    """Mean JCT beside the published one. `growth` was chosen on workloads 1 and 3."""
    published = json.loads((pollux / "published" / f"pollux-{load}.json").read_text())["jcts"]
    ours, theirs = [], []
    for workload in workloads:
        path = pollux / "workloads" / f"{LOADS[load]}workload-{workload}.csv"
        jobs = read_pollux(path, profiles, Elasticity.WORKERS_AND_BATCH)
        Rounds(jobs, nodes_of("16x4"), GoodputPolicy()).run()
        ours.append(statistics.fmean((job.completed_at or 0.0) - job.submitted_at for job in jobs))
        theirs.append(statistics.fmean(published[f"workload-{workload}"].values()))
    assert statistics.fmean(ours) < statistics.fmean(theirs)


def test_the_batch_size_is_the_best_one_for_the_workers(pollux: Path, profiles: Profiles) -> None:
    """So a job that chooses it is never slower than one that keeps what its author asked for."""
    path = pollux / "workloads" / "workload-6.csv"
    fixed = {job.name: job for job in read_pollux(path, profiles)}
    free = read_pollux(path, profiles, Elasticity.WORKERS_AND_BATCH)
    for job in free:
        other = fixed[job.name]
        workers = min(4, job.most_workers, other.most_workers)
        # Fifty sizes are compared: the author's may lie between two of them.
        assert job.goodput(1, workers) >= 0.98 * other.goodput(1, workers)


@dataclass(frozen=True)
class Table:
    """A goodput by number of workers, whatever its shape."""

    by_workers: tuple[float, ...]
    tried_workers: int
    remaining_steps: float = 1000.0

    def goodput(self, nodes: int, workers: int) -> float:
        assert workers >= nodes >= 1
        return self.by_workers[workers - 1] / nodes

    def step_seconds(self, workers: int) -> float:
        return 1 / self.goodput(1, workers)


MOST = 12
TABLES = st.builds(Table, st.lists(st.floats(0.01, 50), min_size=MOST, max_size=MOST).map(tuple), st.integers(1, MOST))
CANDIDATES = st.lists(
    st.tuples(TABLES, st.integers(1, 3), st.integers(1, 2), st.booleans()), min_size=1, max_size=8
)  # goodput, base workers, GPUs a worker, goodput known
CLUSTERS = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def view_of(drawn: Sequence[tuple[Table, int, int, bool]], sizes: Sequence[int]) -> View:
    jobs = tuple(
        Candidate(key=f"j{index}", submitted_at=index, min_workers=base, max_workers=MOST, gpus_per_worker=gpus)
        for index, (_, base, gpus, _) in enumerate(drawn)
    )
    return View(
        now=1000.0,
        gpus=sum(sizes),
        jobs=jobs,
        nodes={f"n{index}": size for index, size in enumerate(sizes)},
        speed_models={job.key: table for job, (table, _, _, known) in zip(jobs, drawn, strict=True) if known},
    )


def carried_out(view: View, decision: Decision) -> View:
    shares = {share.job: share for share in decision.shares}
    return replace(
        view,
        jobs=tuple(replace(job, workers=shares[job.key].workers) for job in view.jobs),
        held={share.job: share.nodes for share in decision.shares if share.nodes},
        memory=decision.memory,
    )


@given(CANDIDATES, CLUSTERS, st.sampled_from([0.0, 0.5, 1.0, 4.0]))
@example([(Table((1.0,) * 12, 1), 1, 2, True)], [1, 1], 0.0)  # a worker is larger than each node
@settings(max_examples=300)
def test_shares_fit_and_repeat(drawn: list[tuple[Table, int, int, bool]], sizes: list[int], fairness: float) -> None:
    policy, view = GoodputPolicy(fairness=fairness), view_of(drawn, sizes)
    for _ in range(3):
        decision = policy.decide(view)
        jobs = {job.key: job for job in view.jobs}
        used: Counter[str] = Counter()
        for share in decision.shares:
            job = jobs[share.job]
            assert share.workers == 0 or job.min_workers <= share.workers <= job.max_workers
            speed_model = view.speed_models.get(share.job)
            if speed_model is not None:
                assert share.workers <= max(job.min_workers, 4 * speed_model.tried_workers)
            assert len(share.nodes) in (0, share.workers)
            used.update(node for node in share.nodes for _ in range(job.gpus_per_worker))
        assert sum(share.workers * jobs[share.job].gpus_per_worker for share in decision.shares) <= view.gpus
        assert all(used[node] <= gpus for node, gpus in view.nodes.items())
        view = carried_out(view, decision)
    assert json.loads(json.dumps(decision.memory)) == decision.memory


def lone(table: Table, workers: int, now: float = 1000.0) -> View:
    job = Candidate(key="j", submitted_at=0.0, min_workers=1, max_workers=8, workers=workers)
    return View(now=now, gpus=8, jobs=(job,), nodes={"n": 8}, speed_models={"j": table})


def workers_after(view: View, *, growth: float = 4.0, restart_seconds: float = 30.0) -> int:
    policy = GoodputPolicy(growth=growth, restart_seconds=restart_seconds)
    (share,) = policy.decide(view).shares
    return share.workers


def test_a_job_passes_numbers_of_workers_that_do_not_help_on_their_own() -> None:
    """Three are slower than two, four are faster by far."""
    assert workers_after(lone(Table((1.0, 1.5, 1.2, 4.0, 4.0, 4.0, 4.0, 4.0), 2), workers=2)) == 4


def test_a_job_gets_four_times_the_workers_that_it_has_tried() -> None:
    linear = tuple(float(count) for count in range(1, 9))
    assert workers_after(lone(Table(linear, 1), workers=1)) == 4
    assert workers_after(lone(Table(linear, 1), workers=1), growth=2.0) == 2
    assert workers_after(lone(Table(linear, 2), workers=2)) == 8


def test_a_young_job_does_not_restart_for_little() -> None:
    """In 60 s, 30 s of a restart are worth a third of the goodput."""
    table = Table((10.0, 13.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1)
    assert workers_after(lone(table, workers=1, now=60.0)) == 1
    assert workers_after(lone(table, workers=1, now=6000.0)) == 2
    assert workers_after(lone(table, workers=1, now=60.0), restart_seconds=0.0) == 2


def test_a_job_that_waited_for_an_hour_has_not_restarted_for_it() -> None:
    """The policy is asked every 30 s, and what it wishes is not carried out: a quota may say no."""
    policy, table, memory = GoodputPolicy(), Table((10.0, 15.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1), dict[str, Any]()
    for now in range(0, 3600, 30):
        memory = dict(policy.decide(replace(lone(table, workers=0, now=now), memory=memory)).memory)
    (share,) = policy.decide(replace(lone(table, workers=1, now=3600.0), memory=memory)).shares
    assert share.workers == 2


def test_a_growth_that_is_pending_counts_once_it_is_carried_out() -> None:
    policy, table, memory = GoodputPolicy(), Table((10.0, 15.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1), dict[str, Any]()
    counted = []
    for place, workers in enumerate((1, 1, 1, 2, 2, 0, 0, 1)):
        memory = dict(policy.decide(replace(lone(table, workers, 6000.0 + 30 * place), memory=memory)).memory)
        counted.append(memory["restarts"]["j"])
    assert counted == [0, 0, 0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("counted", "workers", "after"), [(-1, 0, -1), (-1, 1, 0), (0, 1, 0), (3, 1, 3), (3, 0, 3)])
def test_what_an_earlier_version_counted_goes_on(counted: int, workers: int, after: int) -> None:
    """It did not remember the workers."""
    view = lone(Table((1.0,) * 8, 1), workers)
    assert GoodputPolicy().decide(replace(view, memory={"restarts": {"j": counted}})).memory["restarts"] == {"j": after}


@given(CANDIDATES, CLUSTERS, st.integers(1, 4))
def test_who_gets_what_it_wishes_at_once_has_restarted_with_each_wish(
    drawn: list[tuple[Table, int, int, bool]], sizes: list[int], rounds: int
) -> None:
    policy, view = GoodputPolicy(), view_of(drawn, sizes)
    changes = dict.fromkeys((job.key for job in view.jobs), -1)
    for place in range(rounds):
        view = replace(view, now=1000.0 + 5000 * place, jobs=view.jobs[place % 2 :])
        decision = policy.decide(view)
        for job in view.jobs:
            assert decision.memory["restarts"][job.key] == changes[job.key]
        held = {job.key: job.workers for job in view.jobs}
        view = carried_out(view, decision)
        for job in view.jobs:
            changes[job.key] += job.workers not in (0, held[job.key])


def test_a_job_keeps_gpus_that_nobody_needs() -> None:
    """Its goodput has fallen; a restart would not raise it."""
    flat = Table((10.0, 10.0, 10.0, 9.9, 1.0, 1.0, 1.0, 1.0), 4)
    assert workers_after(lone(flat, workers=4)) == 4


def test_jobs_of_unknown_goodput_share_what_is_left() -> None:
    jobs = tuple(Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=4) for key in "ab")
    decision = GoodputPolicy().decide(View(now=0.0, gpus=4, jobs=jobs))
    assert [(share.workers, share.spare) for share in decision.shares] == [(1, 3), (1, 3)]
    assert decision.until is None


def test_large_jobs_choose_nodes_first_and_small_ones_fill_the_fullest() -> None:
    small, large, still = (
        Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=8) for key in ("small", "large", "still")
    )
    view = View(now=0.0, gpus=12, jobs=(small, large, still), nodes={"a": 4, "b": 4, "c": 4}, held={"still": ("b",)})
    found = near(view, {small: 2, large: 5, still: 1})
    assert found == {"still": ("b",), "large": ("a", "a", "a", "a", "b"), "small": ("b", "b")}
    assert near(view, {large: 13}) == {}


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 8), min_size=1),
    st.lists(st.tuples(st.integers(1, 2), st.lists(st.sampled_from("abcd"), max_size=8)), max_size=4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), max_size=3),
)
def test_a_node_of_which_gpus_depart_has_none_for_others(
    offered: dict[str, int], staying: list[tuple[int, list[str]]], coming: list[tuple[int, int]]
) -> None:
    """Jobs hold more there than it still offers."""
    sizes = [gpus for gpus, _ in (*staying, *coming)]
    jobs = [
        Candidate(key=f"j{place}", submitted_at=0.0, min_workers=1, max_workers=8, gpus_per_worker=gpus)
        for place, gpus in enumerate(sizes)
    ]
    held = {job.key: tuple(nodes) for job, (_, nodes) in zip(jobs, staying, strict=False)}
    counts = [*(len(nodes) for _, nodes in staying), *(count for _, count in coming)]
    view = View(now=0.0, gpus=sum(offered.values()), jobs=tuple(jobs), nodes=offered, held=held)
    found = near(view, dict(zip(jobs, counts, strict=True)))
    kept, new = Counter[str](), Counter[str]()
    for job in jobs:
        nodes = found.get(job.key, ())
        for node in nodes:
            (kept if nodes == held.get(job.key) else new)[node] += job.gpus_per_worker
    assert all(used <= max(0, offered[node] - kept[node]) for node, used in new.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goodput:fairness=-1", "fairness: -1 is out of range; must be between 0 and 10"),
        ("goodput:growth=1", "growth: 1 is invalid; must be finite and above 1"),
        ("goodput:restart_seconds=inf", "restart_seconds: inf is invalid; must be finite and at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(text)


def test_a_wish_for_more_gpus_than_a_node_has_is_refused() -> None:
    class Greedy:
        name, queue_order, elasticity = "greedy", "by greed", Elasticity.FIXED

        def decide(self, view: View) -> Decision:
            decision = configured("fifo").decide(view)
            return replace(
                decision, shares=tuple(replace(share, nodes=("a",) * share.workers) for share in decision.shares)
            )

    with pytest.raises(ValueError, match="policy greedy: wishes for more GPUs of a node than it has"):
        Rounds([FixedJob("j", 0.0, 2, 100.0)], [SimulatedNode("a", 1), SimulatedNode("b", 1)], Greedy()).run()
