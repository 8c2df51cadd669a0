"""Types of GPU on a cluster: speeds by type from measurements, leases that hold, and who starts and moves where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.estimates.goodput import StepTime
from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Node, Snapshot
from espalier_operator.model.actions import Admit, GrantExtra, Stop
from espalier_operator.model.constraints import Constraints
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies.decisions import view_of
from espalier_operator.policies.leases import LEASE_SECONDS
from espalier_operator.policies.settings import configured
from espalier_operator.policies.speed_models import MeasuredSpeeds, effects, speed_models_of
from espalier_operator.policies.view import Candidate, Decision, Share, View
from operator_world.cluster import Cluster
from operator_world.cycles import Cycles, job, measured, on, ring, settled, step

TYPED = ("gavel", "gavel:objective=makespan", "gavel:objective=fifo", "gandiva", "goodput")


def world(**jobs: JobFacts) -> Cluster:
    """One GPU of each of two types."""
    cluster = Cluster()
    cluster.now = 1000.0
    for gpu_type in ("fast", "slow"):
        cluster.nodes[gpu_type] = Node(name=gpu_type, gpu_type=gpu_type, allocatable=1, labels={"kind": gpu_type})
    cluster.jobs = jobs
    return cluster


def pass_time(cluster: Cluster) -> None:
    """Let half a minute pass, in which leaders that are to stop do so."""
    for key, each in list(cluster.jobs.items()):
        if each.stopping is not None:
            cluster.change(key, leader_running=False, training=False)
    cluster.pass_time(30.0)


# ---- speeds


@given(
    rows=st.lists(st.floats(-5, 5), min_size=1, max_size=4),
    columns=st.lists(st.floats(-3, 3), min_size=2, max_size=3),
    gap=st.tuples(st.integers(0, 3), st.integers(0, 2)),
)
def test_a_missing_speed_follows_from_those_of_other_jobs(
    rows: list[float], columns: list[float], gap: tuple[int, int]
) -> None:
    full = {f"j{i}": {f"t{j}": row + column for j, column in enumerate(columns)} for i, row in enumerate(rows)}
    hole = f"j{gap[0]}", f"t{gap[1]}"
    known = {i: {j: value for j, value in row.items() if (i, j) != hole} for i, row in full.items()}
    found = effects(known)
    for i, row in full.items():
        for j, value in row.items():
            if (i, j) != hole or len(rows) > 1:
                assert found[0][i] + found[1][j] == pytest.approx(value, abs=0.05)


def test_what_was_measured_holds_and_the_rest_is_as_for_others() -> None:
    both, half, none = job("both", {"fast": 0.1, "slow": 0.4}), job("half", {"slow": 2.0}), job("none")
    jobs = [both, half, none]
    speeds = MeasuredSpeeds(world(both=both, half=half, none=none).snapshot(), jobs, ["fast", "slow"])
    assert speeds.steps_per_second("both", "fast") == pytest.approx(10)
    assert speeds.steps_per_second("half", "slow") == pytest.approx(0.5)
    assert speeds.steps_per_second("half", "fast") == pytest.approx(2, rel=0.01)
    ratio = speeds.steps_per_second("none", "fast") / speeds.steps_per_second("none", "slow")
    assert ratio == pytest.approx(4, rel=0.01)
    assert speeds.steps_per_second("both", "fast", beside="half") == 0, "a GPU is not shared"
    alone = MeasuredSpeeds(Snapshot(taken_at=0.0, nodes=tuple(world().nodes.values())), [none], ["fast", "slow"])
    assert {alone.steps_per_second("none", each) for each in ("fast", "slow")} == {1.0}


def test_a_job_is_not_fast_where_it_may_not_run() -> None:
    queue = QueueLimits(name="poor", quotas=(Quota(gpu_type="slow", nominal=1),))
    jobs = {
        "typed": job("typed", gpu_type="slow"),
        "picky": job("picky", constraints=Constraints(node_selector=(("kind", "slow"),))),
        "poor": job("poor", queue="poor"),
    }
    cluster = world(**jobs)
    for key, each in jobs.items():
        cluster.queues = (queue,) if key == "poor" else ()
        speeds = MeasuredSpeeds(cluster.snapshot(), [each], ["fast", "slow"])
        assert [speeds.steps_per_second(key, name) for name in ("fast", "slow")] == [0.0, 1.0]


def test_the_outlook_of_a_job_is_that_of_the_type_it_is_on() -> None:
    points = {"fast": 0.1, "slow": 0.4}
    elastic = job("a", points, trains_together=True, max_replicas=4)
    snapshot = world(a=elastic).snapshot()
    on_fast = replace(elastic, admitted_at=0.0, gpu_type="fast")
    assert speed_models_of(snapshot, [on_fast], 0.0)["a"].step_seconds(1) == pytest.approx(0.1)
    assert speed_models_of(snapshot, [elastic], 0.0)["a"].step_seconds(1) == pytest.approx(0.4), (
        "that which it had last"
    )


def test_types_are_seen_only_where_there_are_several() -> None:
    snapshot = world(a=job("a")).snapshot()
    assert view_of(snapshot, snapshot.jobs, 0.0).gpu_types == {"fast": 1, "slow": 1}
    alike = replace(snapshot, nodes=tuple(replace(node, gpu_type="x") for node in snapshot.nodes))
    view = view_of(alike, alike.jobs, 0.0)
    assert (view.gpu_types, view.speeds) == ({}, None)
    gone = replace(snapshot, nodes=(snapshot.nodes[0], replace(snapshot.nodes[1], ready=False)))
    assert view_of(gone, gone.jobs, 0.0).gpu_types == {}


# ---- leases


class Two:
    """Speeds: twice as fast on `fast`; nothing runs beside another."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        if beside is not None or job == "nowhere":
            return 0.0
        return 2.0 if gpu_type == "fast" else 1.0


def asked(policy: str, now: float, jobs: list[Candidate], memory: Mapping[str, Any], fast: int = 1) -> Decision:
    types = {"fast": fast, "slow": 2}
    view = View(now=now, gpus=fast + 2, jobs=tuple(jobs), gpu_types=types, speeds=Two(), memory=memory, continuous=True)
    return configured(policy).decide(view)


def leases(decision: Decision) -> dict[str, str | None]:
    return {share.job: share.gpu_type for share in decision.shares if share.workers}


@pytest.mark.parametrize("policy", TYPED)
@settings(max_examples=sweeps.examples(30))
@given(data=st.data())
def test_a_lease_holds_for_its_round_however_often_the_policy_is_asked(policy: str, data: st.DataObject) -> None:
    """Nothing is leased twice, what is idle is leased, who does not yield keeps its GPUs, and nobody is forgotten."""
    memory: Mapping[str, Any] = {}
    jobs: dict[str, Candidate] = {}
    now, before, ends = 1000.0, dict[str, str | None](), 0.0
    for number in range(data.draw(st.integers(2, 8))):
        if data.draw(st.booleans()) or not jobs:
            key = data.draw(st.sampled_from((f"j{number}", f"j{number}", "nowhere")))
            jobs[key] = Candidate(
                key=key, submitted_at=now, min_workers=1, max_workers=1, yields=data.draw(st.booleans())
            )
        elif data.draw(st.booleans()):
            before.pop(next(iter(jobs)), None)
            jobs.pop(next(iter(jobs)))
        decision = asked(policy, now, [*jobs.values()], memory)
        found, again = leases(decision), asked(policy, now, [*jobs.values()], decision.memory)
        assert leases(again) == found, "it is idempotent"
        assert sorted(share.job for share in decision.shares) == sorted(jobs)
        assert all(count <= {"fast": 1, "slow": 2}[name or ""] for name, count in Counter(found.values()).items())
        assert len(found) == min(3, len(jobs.keys() - {"nowhere"}))
        if now < ends:
            assert all(found[key] == gpu_type for key, gpu_type in before.items())
        for key, each in jobs.items():
            if each.gpu_type is not None and not each.yields:
                assert found[key] == each.gpu_type
        before, ends, memory = found, decision.until or 0.0, decision.memory
        seconds = data.draw(st.sampled_from((0.5, 100.0, LEASE_SECONDS, 3000.0)))
        now += seconds
        jobs = {
            key: replace(
                each,
                gpu_type=found.get(key) if each.yields or each.gpu_type is None else each.gpu_type,
                workers=int(key in found),
                service=each.service + seconds * (key in found),
            )
            for key, each in jobs.items()
        }


@pytest.mark.parametrize("policy", ["gavel", "gandiva"])
def test_all_have_their_turns_on_the_fast_gpu(policy: str) -> None:
    memory: Mapping[str, Any] = {}
    jobs = [Candidate(key=f"j{number}", submitted_at=0.0, min_workers=1, max_workers=1) for number in range(5)]
    had: Counter[tuple[str, str | None]] = Counter()
    now = 1000.0
    for _ in range(100):
        decision = asked(policy, now, jobs, memory)
        found, memory = leases(decision), decision.memory
        had.update(found.items())
        now += LEASE_SECONDS
        jobs = [
            replace(each, gpu_type=found.get(each.key), service=each.service + LEASE_SECONDS * (each.key in found))
            for each in jobs
        ]
    fast = [had[each.key, "fast"] for each in jobs]
    assert sum(fast) == 100
    assert min(fast) >= 15, "of 20 if all had the same"
    assert min(had[each.key, "fast"] + had[each.key, "slow"] for each in jobs) >= 50, "of 60"


def test_nobody_waits_for_ever_where_none_can_run() -> None:
    stuck = Candidate(key="nowhere", submitted_at=0.0, min_workers=1, max_workers=1)
    assert leases(asked("gavel", 1.0, [stuck], {})) == {}
    assert leases(asked("gavel", 1.0, [], {})) == {}
    huge = replace(stuck, key="huge", min_workers=9, max_workers=9)
    assert leases(asked("gavel", 1.0, [huge, replace(stuck, key="small")], {})) == {"small": "fast"}


@pytest.mark.parametrize("policy", ["fair", "fifo", "las", "gittins", "optimus"])
def test_others_leave_the_type_open_on_a_cluster(policy: str) -> None:
    jobs = [Candidate(key=key, submitted_at=at, min_workers=1, max_workers=1) for key, at in (("b", 2.0), ("a", 1.0))]
    decision = asked(policy, 5.0, jobs, {})
    assert {(share.job, share.workers, share.gpu_type) for share in decision.shares} == {("a", 1, None), ("b", 1, None)}


# ---- the planner


@pytest.mark.parametrize("policy", ["gavel:objective=fifo", "goodput"])
def test_a_job_starts_on_the_type_where_it_gains_most(policy: str) -> None:
    gains = job("gains", {"fast": 0.1, "slow": 1.0})
    same = job("same", {"fast": 1.0, "slow": 1.0})
    cluster = world(same=same, gains=gains)
    step(cluster, policy)
    assert on(cluster) == {"gains": "fast", "same": "slow"}


@pytest.mark.parametrize("policy", ["goodput", "gavel:objective=fifo"])
def test_jobs_change_places_once_it_is_measured_that_they_gain_by_it(policy: str) -> None:
    cluster = world(gains=job("gains", {"fast": 1.0, "slow": 1.0}), same=job("same", {"fast": 0.5, "slow": 1.0}))
    step(cluster, policy)
    assert on(cluster) == {"gains": "slow", "same": "fast"}
    cluster.change("gains", speeds=(measured("fast", 0.1), measured("slow", 1.0)))
    cluster.change("same", speeds=(measured("fast", 1.0), measured("slow", 1.0)))
    stopped = Counter[str]()
    for _ in range(60):
        stopped.update(action.job for action in step(cluster, policy) if isinstance(action, Stop))
        pass_time(cluster)
    assert on(cluster) == {"gains": "fast", "same": "slow"}
    assert stopped == {"gains": 1, "same": 1}, "and they stay there"


def test_goodput_lends_what_is_left_of_a_type_to_the_job_on_it_that_gains_most() -> None:
    """Two elastic jobs on a type with three GPUs: the one that scales gets the third."""

    def points(*seconds: float) -> tuple[StepTime, ...]:
        known = {"nodes": 1, "batch_size": 8, "sync_seconds": 0.0}
        return tuple(
            StepTime(**known, workers=workers, step_seconds=each, gpu_type=gpu_type)
            for gpu_type, factor in (("fast", 1.0), ("slow", 9.0))
            for workers, each in enumerate((each * factor for each in seconds), 1)
        )

    terms = {"trains_together": True, "scales_batch": True, "max_replicas": 2, "cooldown_seconds": 0.0}
    scales = replace(job("scales", **terms), speeds=points(1.0, 1.0))
    stalls = replace(job("stalls", **terms), speeds=points(1.0, 2.0))
    cluster = world(scales=scales, stalls=stalls)
    cluster.nodes["fast"] = replace(cluster.nodes["fast"], allocatable=3)
    for _ in range(5):
        step(cluster, "goodput")
        for key in cluster.jobs:
            cluster.change(key, training=True, has_reported=True)
        cluster.pass_time(30.0)
    assert on(cluster) == {"scales": "fast", "stalls": "fast"}
    assert {key: each.extra for key, each in cluster.jobs.items()} == {"scales": 1, "stalls": 0}


@pytest.mark.parametrize("yields", [True, False])
def test_a_job_moves_to_its_type_when_that_is_free_if_its_terms_allow_it(yields: bool) -> None:
    """Not before it has run for `minRuntimeSeconds`, with notice; and it is admitted again where it belongs."""
    mover = job("mover", {"fast": 0.1, "slow": 1.0}, yields=yields, min_runtime_seconds=60.0)
    cluster = world(mover=mover)
    cluster.nodes["fast"] = replace(cluster.nodes["fast"], schedulable=False)
    step(cluster, "gavel:objective=fifo")
    assert on(cluster) == {"mover": "slow"}
    cluster.nodes["fast"] = replace(cluster.nodes["fast"], schedulable=True)
    cluster.pass_time(30.0)
    assert step(cluster, "gavel:objective=fifo") == [], "it has not run for long"
    cluster.pass_time(LEASE_SECONDS)
    actions = step(cluster, "gavel:objective=fifo")
    if not yields:
        assert actions == []
        return
    (stop,) = actions
    assert isinstance(stop, Stop)
    assert (stop.job, stop.reason) == ("mover", Reason.PREEMPTED_BY_POLICY)
    cluster.change("mover", leader_running=False, training=False)
    step(cluster, "gavel:objective=fifo")
    cluster.pass_time(1.0)
    step(cluster, "gavel:objective=fifo")
    assert on(cluster) == {"mover": "fast"}
    for _ in range(5):
        cluster.pass_time(100.0)
        assert step(cluster, "gavel:objective=fifo") == [], "and it stays there"


@pytest.mark.parametrize("number", [2, 3])
def test_jobs_change_places_in_a_ring(number: int) -> None:
    """All stop in one plan, each starts where another was, and what is free meanwhile is lent to nobody."""
    cluster = ring(*[2] * number)
    cluster.nodes["n9"] = Node(name="n9", gpu_type="t0", allocatable=1)
    cluster.submit("z", job("z", max_replicas=9, cooldown_seconds=0.0).terms)
    stay = {f"j{at}": f"t{at}" for at in range(number)}
    settled(cluster, Cycles(**stay, z="t0"))
    turned = {f"j{at}": f"t{(at + 1) % number}" for at in range(number)}
    steps = settled(cluster, Cycles(**turned, z="t0"))
    assert {action.job for action in steps[0] if isinstance(action, Stop)} == turned.keys()
    assert sum(isinstance(action, Stop) for each in steps for action in each) == number, "nobody stops twice"
    assert not any(isinstance(action, GrantExtra) for each in steps for action in each)
    assert on(cluster) == {**turned, "z": "t0"}


@pytest.mark.parametrize(
    ("terms", "why"),
    [({"base_preemptible": False}, "its terms forbid it"), ({"min_runtime_seconds": 500.0}, "it has not run for long")],
)
def test_nobody_changes_places_with_one_that_stays(terms: dict[str, Any], why: str) -> None:
    cluster = ring(2, 2)
    cluster.change("j0", terms=replace(cluster.jobs["j0"].terms, **terms))
    assert step(cluster, Cycles(j0="t1", j1="t0")) == [], why


def test_one_that_is_to_wait_makes_room_for_one_that_moves_there() -> None:
    cluster = ring(2, 2)
    steps = settled(cluster, Cycles(j0=None, j1="t0"))
    assert sorted(action.job for action in steps[0] if isinstance(action, Stop)) == ["j0", "j1"]
    assert on(cluster) == {"j1": "t0"}


def test_places_of_other_sizes_are_no_places() -> None:
    """j1 does not fit where j0 is, so neither moves; with a GPU to spare there both do."""
    assert step(ring(1, 2), Cycles(j0="t1", j1="t0")) == []
    cluster = ring(1, 2, spare=1)
    settled(cluster, Cycles(j0="t1", j1="t0"))
    assert on(cluster) == {"j0": "t1", "j1": "t0"}


def test_a_job_that_could_never_run_on_its_type_makes_room_for_nobody() -> None:
    """It would start again where it was."""
    cluster = ring(2, 1, 1)
    settled(cluster, Cycles(j0="t0", j1=None, j2="t1"))
    cluster.pass_time(100.0)
    assert not any(settled(cluster, Cycles(j0="t1", j1="t0", j2="t1")))
    assert on(cluster) == {"j0": "t0", "j2": "t1"}


@settings(max_examples=sweeps.examples(40), deadline=None)
@given(data=st.data())
def test_whatever_types_a_policy_asks_for_jobs_move_there_once_and_nobody_is_lost(data: st.DataObject) -> None:
    """After each change of its mind, all that fit end up where it says, each stopped once at most."""
    cluster = ring(*data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4)), spare=data.draw(st.integers(0, 2)))
    keys = sorted(cluster.jobs)
    types = [f"t{at}" for at in range(len(keys))]
    for _ in range(3):
        asked = {key: data.draw(st.sampled_from((*types, None)), label=key) for key in keys}
        steps = settled(cluster, Cycles(**asked))
        stopped = Counter(action.job for each in steps for action in each if isinstance(action, Stop))
        assert all(count == 1 for count in stopped.values()), "it thrashes"
        held: Counter[str | None] = Counter()
        for key, gpu_type in on(cluster).items():
            held[gpu_type] += cluster.jobs[key].terms.min_replicas
        free = {node.gpu_type: node.allocatable - held[node.gpu_type] for node in cluster.nodes.values()}
        assert min(free.values()) >= 0
        for key in keys:
            facts = cluster.jobs[key]
            wished, runs_on = asked[key], on(cluster).get(key)
            if wished is None or runs_on == wished:
                continue
            sizes = {node.gpu_type: node.allocatable for node in cluster.nodes.values()}
            waiting = [each for each in keys if each not in on(cluster) and each != key and asked[each] is not None]
            if any(cluster.jobs[each].terms.min_replicas <= sizes[wished] for each in waiting):
                continue  # what is free there may be reserved for one that waits
            assert free[wished] < facts.terms.min_replicas, f"{key} could be on {wished}"
        cluster.pass_time(100.0)


def test_jobs_take_turns_on_two_types_and_all_get_on() -> None:
    """Four jobs, two GPUs, for three hours: everybody runs about half of the time, and nobody is stopped too soon.

    Each round the jobs on both GPUs may change, which takes the world two steps of 30 s.
    """
    jobs = {f"j{number}": job(f"j{number}", {"fast": 0.5, "slow": 1.0}) for number in range(4)}
    cluster = world(**jobs)
    started: dict[str, float] = {}
    for _ in range(360):
        for action in step(cluster, "gavel"):
            if isinstance(action, Admit):
                started[action.job] = cluster.now
            if isinstance(action, Stop):
                assert cluster.now - started[action.job] >= cluster.jobs[action.job].terms.min_runtime_seconds
        pass_time(cluster)
    used = [each.used_seconds for each in cluster.jobs.values()]
    assert sum(used) >= (1 - 2 * 30 / LEASE_SECONDS) * 2 * 360 * 30.0, "GPUs are idle only while jobs change"
    assert min(used) >= 0.7 * sum(used) / 4
    assert math.isfinite(max(used))


def test_a_type_on_which_the_job_never_fits_is_no_reason_to_wait() -> None:
    class Foolish:
        name, queue_order = "foolish", "by folly"

        def decide(self, view: View) -> Decision:
            return Decision(shares=tuple(Share(job=each.key, workers=1, gpu_type="fast") for each in view.jobs))

    picky = Constraints(node_selector=(("kind", "slow"),))
    cluster = world(a=job("a", constraints=picky), b=job("b"))
    planned = plan(cluster.snapshot(), Foolish(), cluster.now)
    assert planned.actions == (Admit(job="a", gpu_type="slow"), Admit(job="b", gpu_type="fast"))
