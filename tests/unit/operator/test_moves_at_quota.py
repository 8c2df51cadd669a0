"""Jobs that change places: at full quotas, and what stays undone of what a plan tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_operator.model import Node, Snapshot
from espalier_operator.model.actions import Stop
from espalier_operator.model.queues import QueueLimits, QueueUsage, Quota
from espalier_operator.planner import plan
from espalier_operator.planner.cycle import OpenJobs, PlanningCycle
from espalier_operator.planner.lifecycle import PlanBuilder
from espalier_operator.planner.placement import WorkerIndex
from espalier_operator.policies.fair import FairPolicy
from operator_world.cluster import Cluster
from operator_world.crowds import NOW, crowd
from operator_world.cycles import Cycles, job, on, settled
from operator_world.invariants import check


def team(queues: Mapping[str, str], sizes: Mapping[str, int], *, spare: int = 0) -> Cluster:
    """A job a type of GPU, `ns/j0` on t0 and so on, each in its queue; types have `spare` GPUs more."""
    cluster = Cluster()
    cluster.now = 1000.0
    for at, (key, size) in enumerate(sizes.items()):
        cluster.nodes[f"n{at}"] = Node(name=f"n{at}", gpu_type=f"t{at}", allocatable=size + spare)
        cluster.jobs[key] = job(key, min_replicas=size, max_replicas=size, queue=queues[key])
    settled(cluster, Cycles(**home(sizes)))
    assert on(cluster) == home(sizes)
    cluster.pass_time(100.0)
    return cluster


def home(sizes: Mapping[str, int]) -> dict[str, str]:
    return {key: f"t{at}" for at, key in enumerate(sizes)}


def keys(number: int) -> list[str]:
    return [f"ns/j{at}" for at in range(number)]


def full(cluster: Cluster, queues: Mapping[str, str], *, by_type: bool, cohort: str | None = None) -> None:
    """Give each queue the quota that its jobs hold, and the namespace no GPU more than that."""
    held: Counter[tuple[str, str | None]] = Counter()
    for key, each in cluster.jobs.items():
        held[queues[key], each.gpu_type if by_type else None] += each.claim.gpus
    names = sorted(set(queues.values()))
    cluster.queues = tuple(
        QueueLimits(
            name=name,
            cohort=cohort,
            quotas=tuple(
                Quota(gpu_type=gpu_type, nominal=gpus) for (queue, gpu_type), gpus in held.items() if queue == name
            ),
        )
        for name in names
    )
    cluster.gpu_limit = sum(held.values())


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(
    ("queues", "by_type"),
    [("aaa", True), ("aaa", False), ("abc", False)],
    ids=["quotas by type of one queue", "the quota of one queue", "a quota a queue"],
)
def test_a_ring_turns_though_all_quotas_are_full(number: int, queues: str, by_type: bool) -> None:
    names = dict(zip(keys(number), queues, strict=False))
    cluster = team(names, dict.fromkeys(names, 2))
    full(cluster, names, by_type=by_type)
    turned = {key: f"t{(at + 1) % number}" for at, key in enumerate(names)}
    steps = settled(cluster, Cycles(**turned))
    assert {action.job for action in steps[0] if isinstance(action, Stop)} == turned.keys()
    assert sum(isinstance(action, Stop) for each in steps for action in each) == number, "nobody stops twice"
    assert on(cluster) == turned


def test_a_queue_does_not_get_more_of_a_type_by_a_change_of_places() -> None:
    """Each has a quota for the type that it holds: the other's would be beyond it."""
    names = {"ns/j0": "a", "ns/j1": "b"}
    cluster = team(names, dict.fromkeys(names, 2))
    full(cluster, names, by_type=True)
    assert settled(cluster, Cycles(**{"ns/j0": "t1", "ns/j1": "t0"}))[0] == []


def test_what_a_job_that_moves_is_to_have_is_not_given_to_another_meanwhile() -> None:
    """j0 has saved its checkpoint before j1: the quota of t0 is kept for j1, though a later job asks for it."""
    names = dict.fromkeys(keys(2), "a")
    cluster = team(names, dict.fromkeys(names, 2), spare=2)
    full(cluster, names, by_type=True)
    cluster.gpu_limit = None
    cluster.jobs["ns/z"] = job("ns/z", queue="a", min_replicas=2, max_replicas=2)
    turned = {"ns/j0": "t1", "ns/j1": "t0"}
    steps = settled(cluster, Cycles(**turned, **{"ns/z": "t0"}))
    assert on(cluster) == turned
    assert {action.job for each in steps for action in each} == turned.keys(), "and not for a moment"


def test_nobody_stops_for_a_job_whose_share_is_of_gpus_on_which_it_cannot_run() -> None:
    """t3 is too small for j2. It took the place of j3 on t2, so each of the others stopped, and j3 twice."""
    names = dict.fromkeys(keys(4), "a")
    cluster = team(names, dict(zip(names, (1, 2, 2, 1), strict=True)))
    full(cluster, names, by_type=False)
    settled(cluster, Cycles(**{"ns/j3": "t2"}))
    before = on(cluster)
    cluster.pass_time(100.0)
    asked = {"ns/j1": "t2", "ns/j2": "t3", "ns/j3": "t1"}
    assert settled(cluster, Cycles(**asked))[0] == []
    assert on(cluster) == before == {"ns/j0": "t0", "ns/j1": "t1", "ns/j3": "t2"}


@settings(max_examples=sweeps.examples(40), deadline=None)
@given(data=st.data())
def test_no_quota_is_exceeded_at_any_moment_and_all_that_fits_is_done(data: st.DataObject) -> None:
    """Whatever a policy asks for: queues with full quotas, or some to spare, in a cohort or not."""
    names = {key: data.draw(st.sampled_from("ab"), label=key) for key in keys(data.draw(st.integers(2, 4)))}
    sizes = {key: data.draw(st.integers(1, 2), label=f"GPUs of {key}") for key in names}
    cluster = team(names, sizes, spare=data.draw(st.integers(0, 1)))
    by_type = data.draw(st.booleans(), label="by type")
    full(cluster, names, by_type=by_type, cohort=data.draw(st.sampled_from((None, "all"))))
    types = [*home(sizes).values()]
    for _ in range(2):
        shuffled = dict(zip(names, data.draw(st.permutations(types)), strict=True))
        asked: dict[str, str | None] = {
            key: gpu_type if data.draw(st.integers(0, 4)) else None for key, gpu_type in shuffled.items()
        }
        steps = watched(cluster, Cycles(**asked), asked)
        stopped = Counter(action.job for each in steps for action in each if isinstance(action, Stop))
        assert all(count == 1 for count in stopped.values()), "it thrashes"
        if not by_type and len(set(sizes.values())) == 1:
            assert on(cluster).items() >= {key: each for key, each in asked.items() if each is not None}.items()
        cluster.pass_time(100.0)


def watched(cluster: Cluster, policy: Cycles, types: Mapping[str, str | None]) -> list[list[Any]]:
    """Step until nothing is left to do; the planner's invariants, with all quotas, hold in each step."""
    found = []
    for _ in range(25):
        snapshot = cluster.snapshot()
        planned = plan(snapshot, policy, cluster.now)
        check(snapshot, planned, cluster.now, preempts=True, types=types)
        cluster.carry_out(planned)
        within_quotas(cluster)
        cluster.catch_up()
        found.append([*planned.actions])
        for key, each in list(cluster.jobs.items()):
            if each.stopping is not None and each.leader_running and (len(found) + len(key)) % 2:
                cluster.change(key, leader_running=False, training=False)
        cluster.pass_time(5.0)
    assert found[-1] == []
    return found


def within_quotas(cluster: Cluster) -> None:
    held: Counter[tuple[str, str | None]] = Counter()
    for each in cluster.jobs.values():
        if each.admitted_at is not None:
            queue = next(queue for queue in cluster.queues if queue.name == each.terms.queue)
            known = {quota.gpu_type for quota in queue.quotas}
            held[queue.name, each.gpu_type if each.gpu_type in known else None] += each.claim.gpus
    allowed = {(queue.name, quota.gpu_type): quota.nominal for queue in cluster.queues for quota in queue.quotas}
    assert all(gpus <= allowed.get(place, 0) for place, gpus in held.items())
    assert sum(held.values()) <= (cluster.gpu_limit or 0)


def cycle_of(snapshot: Snapshot) -> PlanningCycle:
    """A cycle in which nothing is decided yet but what each job alone says."""
    record, ledger = PlanBuilder(NOW), QueueUsage(snapshot.queues, snapshot.held_claims())
    jobs = [job for job in snapshot.jobs if not job.finished and job.ended is None]
    open_jobs = OpenJobs.by(FairPolicy(), snapshot, record, jobs, NOW)
    kept = {job.key: job.extra for job in open_jobs.running}
    return PlanningCycle(snapshot, open_jobs, WorkerIndex(snapshot.workers), record, ledger, kept, NOW)


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
