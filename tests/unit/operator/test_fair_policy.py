"""Extra GPUs by weighted max-min fairness: fair at rest, no starvation, no thrash, whoever comes and goes when.

Every plan on the way is checked for the planner's invariants, too: never more GPUs than exist, base GPUs untouched.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, WorkerRole, WorkerState
from espalier_operator.model.actions import GrantExtra, NoticeReclaim, ReleaseExtra, Requeue
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy, weight_of
from operator_world.cluster import Cluster
from operator_world.invariants import check

POLICY = FairPolicy()
TICK = 5.0
NOTICE, COOLDOWN, MIN_RUNTIME = 10.0, 45.0, 70.0
A_ROUND = COOLDOWN + MIN_RUNTIME + NOTICE
"""A change of a holder, what it is spared for, its notice, and the cooldown of who waits: after it all can change."""


def asking(priority: int = 0, most: int = 8, gpus: int = 1, base: int = 1) -> JobTerms:
    """Return the terms of a job that would take `most` extra workers."""
    return JobTerms(
        min_replicas=base,
        max_replicas=base + most,
        gpus_per_worker=gpus,
        priority=priority,
        time_budget_seconds=1_000_000.0,
        notice_seconds=NOTICE,
        cooldown_seconds=COOLDOWN,
        min_runtime_seconds=MIN_RUNTIME,
    )


@dataclass(frozen=True)
class Change:
    """One change of a job's extra GPUs."""

    at: float
    up: bool
    shared: bool
    """Made for sharing's sake, not for base GPUs, pods of others, or because GPUs went."""


class Hours:
    """A node of so many GPUs, a tick every five seconds, and leaders that give back at once or not at all."""

    def __init__(self, gpus: int) -> None:
        self.cluster = Cluster()
        self.cluster.nodes["node"] = Node(name="node", gpu_type="", allocatable=gpus)
        self.changes: dict[str, list[Change]] = defaultdict(list)
        self.stubborn: set[str] = set()
        self.poor_since: dict[str, float] = {}
        self.longest_wait = 0.0

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.tick()
            self.cluster.catch_up()
            for key in self.cluster.jobs.keys() - self.stubborn:
                self.cluster.acknowledge(key)
            self.cluster.pass_time(TICK)
            self.look_for_the_poor()

    def tick(self) -> None:
        snapshot, now = self.cluster.snapshot(), self.cluster.now
        made = plan(snapshot, POLICY, now)
        check(snapshot, made, now)
        self.cluster.place(made)
        for action in made.actions:
            assert not isinstance(action, Requeue), "base GPUs are taken"
            if isinstance(action, GrantExtra):
                self.changes[action.job].append(Change(now, up=True, shared=True))
            elif isinstance(action, NoticeReclaim):
                needed = others_need(snapshot) or action.reason is not Reason.NEEDED_BY_OTHER_JOB
                self.changes[action.job].append(Change(now, up=False, shared=not needed))
            elif isinstance(action, ReleaseExtra):
                job = self.cluster.jobs[action.job]
                assert job.reclaim is not None, "all workers are there, none can be gone"
                self.changes[action.job].append(Change(now, up=False, shared=False))
            self.cluster.apply(action)

    def look_for_the_poor(self) -> None:
        """Measure for how long a job has had nothing, though there is one for each of its priority and above."""
        wanting = [job for job in self.cluster.jobs.values() if job.training and not job.finished]
        wanting = [job for job in wanting if job.terms.max_replicas > job.terms.min_replicas]
        for job in self.cluster.jobs.values():
            before = sum(other.terms.priority >= job.terms.priority for other in wanting)
            if job in wanting and job.extra == 0 and before <= self.spare:
                since = self.poor_since.setdefault(job.key, self.cluster.now)
                self.longest_wait = max(self.longest_wait, self.cluster.now - since)
            else:
                self.poor_since.pop(job.key, None)

    @property
    def spare(self) -> int:
        """GPUs that neither base workers nor pods of others hold or wait for."""
        base = sum(
            job.terms.min_replicas * job.terms.gpus_per_worker for job in self.running if job.admitted_at is not None
        )
        waiting = sum(job.terms.min_replicas * job.terms.gpus_per_worker for job in self.running) - base
        foreign = sum(worker.gpus for worker in self.cluster.workers.values() if worker.role is WorkerRole.FOREIGN)
        return self.cluster.nodes["node"].allocatable - base - waiting - foreign

    @property
    def running(self) -> list[JobFacts]:
        return [job for job in self.cluster.jobs.values() if not job.finished]


def others_need(snapshot: Snapshot) -> bool:
    """Return whether a job waits for base GPUs, or a pod of others for any."""
    waiting = any(job.admitted_at is None and not job.finished for job in snapshot.jobs)
    unbound = (w for w in snapshot.workers if w.node is None and w.state is WorkerState.PENDING)
    return waiting or any(worker.role is not WorkerRole.EXTRA for worker in unbound)


def share(job: JobFacts, extra: int) -> float:
    """Return the GPUs of `extra` extra workers over the job's weight."""
    weight = weight_of(job.terms.priority)
    return extra * job.terms.gpus_per_worker * weight.denominator / weight.numerator


def level(job: JobFacts, extra: int) -> tuple[float, int]:
    """Return what is compared: the share, then the priority."""
    return (share(job, extra), -job.terms.priority)


@pytest.mark.parametrize(
    ("priority", "weight"),
    [(-(10**9), 1 / 10), (-3, 1 / 4), (-1, 1 / 2), (0, 1), (1, 2), (9, 10), (10, 10), (10**9, 10)],
)
def test_a_share_is_gpus_over_the_weight_of_the_priority(priority: int, weight: float) -> None:
    job = JobFacts(key="ns/job", terms=asking(priority, gpus=2), submitted_at=0.0)
    assert share(job, 3) == pytest.approx(6 / weight)


def test_no_priority_takes_all_that_is_spare() -> None:
    """Anybody may choose the highest one; it comes first, and gets at most ten times what others get."""
    hours = Hours(3 + 24)
    for name, priority in (("ns/loud", 10**9), ("ns/one", 0), ("ns/two", 0)):
        hours.cluster.submit(name, asking(priority, 100))
        hours.pass_time(30)
    hours.pass_time(4 * A_ROUND)
    assert {job.key: job.extra for job in hours.running} == {"ns/loud": 20, "ns/one": 2, "ns/two": 2}


@given(st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 5)), min_size=1, max_size=4), st.integers(1, 9))
@settings(max_examples=sweeps.examples(24), deadline=None)
def test_at_rest_the_smallest_shares_are_as_large_as_any_allocation_makes_them(
    asked: list[tuple[int, int]], spare: int
) -> None:
    """Compared with all allocations that there are.

    The reference is the best by the shares in rising order, the smallest first. Up to the smallest share of who would
    take more ours are its own. Above it whole GPUs leave a choice: the reference prefers who has the smallest weight,
    as one GPU makes its share the largest; ours prefers the higher priority.
    """
    hours = Hours(len(asked) + spare)
    for number, (priority, most) in enumerate(asked):
        hours.cluster.submit(f"ns/job{number}", asking(priority, most))
        hours.pass_time(30)
    hours.pass_time(4 * A_ROUND)
    jobs = hours.running
    mosts = [most for _, most in asked]
    handed_out = min(spare, sum(mosts))
    assert sum(job.extra for job in jobs) == handed_out
    allocations = (each for each in itertools.product(*(range(most + 1) for most in mosts)) if sum(each) == handed_out)
    best = max(sorted(map(share, jobs, each)) for each in allocations)
    ours = sorted(share(job, job.extra) for job in jobs)
    unsated = [share(job, job.extra) for job, most in zip(jobs, mosts, strict=True) if job.extra < most]
    settled = [each for each in ours if each <= min(unsated, default=max(ours))]
    assert settled == best[: len(settled)]
    for poorer, richer in itertools.permutations(jobs, 2):
        if poorer.extra < poorer.terms.max_replicas - 1 and richer.extra:
            assert level(richer, richer.extra - 1) <= level(poorer, poorer.extra), "one could move"


@given(
    st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 6), st.sampled_from((1, 1, 2, 4))), min_size=2, max_size=4),
    st.integers(1, 12),
)
@settings(max_examples=sweeps.examples(16), deadline=None)
def test_workers_of_different_sizes_come_to_rest_and_nobody_could_have_more_by_right(
    asked: list[tuple[int, int, int]], spare: int
) -> None:
    hours = Hours(sum(gpus for _, _, gpus in asked) + spare)
    for number, (priority, most, gpus) in enumerate(asked):
        hours.cluster.submit(f"ns/job{number}", asking(priority, most, gpus))
        hours.pass_time(30)
    hours.pass_time(5 * A_ROUND)
    before = {key: len(changes) for key, changes in hours.changes.items()}
    hours.pass_time(3 * A_ROUND)
    assert {key: len(changes) for key, changes in hours.changes.items()} == before
    jobs = hours.running
    free = spare - sum(job.extra * job.terms.gpus_per_worker for job in jobs)
    assert free >= 0
    for poorer in jobs:
        if poorer.extra < poorer.terms.max_replicas - 1:
            by_right = sum(
                richer.terms.gpus_per_worker
                for richer in jobs
                for keeps in range(richer.extra)
                if richer is not poorer and level(richer, keeps) > level(poorer, poorer.extra)
            )
            assert free + by_right < poorer.terms.gpus_per_worker


EVENTS = st.tuples(
    st.sampled_from((5.0, 15.0, 45.0, 70.0, 200.0)),
    st.sampled_from(("comes", "comes", "goes", "foreign comes", "foreign goes", "GPU goes", "GPU comes")),
    st.integers(0, 9),
    st.integers(-1, 3),
    st.booleans(),
)


@given(st.integers(6, 12), st.lists(EVENTS, min_size=5, max_size=40))
@settings(max_examples=sweeps.examples(32), deadline=None)
def test_changes_an_hour_are_bounded_and_nobody_starves(
    gpus: int, history: list[tuple[float, str, int, int, bool]]
) -> None:
    """An adversary chooses who and what comes and goes, when, and which leaders do not heed a notice."""
    hours = Hours(gpus)
    cluster = hours.cluster
    cluster.submit("ns/there", asking())
    forced = 0
    for number, (seconds, event, which, priority, stubborn) in enumerate(history):
        others = [job for job in hours.running if job.key != "ns/there"]
        foreign = [name for name, worker in cluster.workers.items() if worker.role is WorkerRole.FOREIGN]
        node = cluster.nodes["node"]
        forced += event in ("comes", "foreign comes", "GPU goes")
        if event == "comes" and len(others) < 3:
            key = f"ns/job{number}"
            cluster.submit(key, asking(priority, most=1 + which))
            hours.stubborn |= {key} if stubborn else set()
        elif event == "goes" and others:
            terms = others[which % len(others)].terms
            used = terms.time_budget_seconds + 200_000.0
            cluster.change(others[which % len(others)].key, used_seconds=used)
        elif event == "foreign comes" and len(foreign) < 2:
            cluster.foreign(1, None)
        elif event == "foreign goes" and foreign:
            cluster.lose_worker(foreign[which % len(foreign)])
        elif event in ("GPU goes", "GPU comes"):
            change = 1 if event == "GPU comes" else -1
            cluster.nodes["node"] = replace(node, allocatable=max(6, min(gpus, node.allocatable + change)))
        hours.pass_time(seconds)
    for changes in hours.changes.values():
        for earlier, later in itertools.pairwise(changes):
            if later.up:
                assert later.at - earlier.at >= COOLDOWN
            elif later.shared:
                assert later.at - earlier.at >= MIN_RUNTIME
        told = [change for change in changes if change.shared]
        assert len(told) <= 1 + cluster.now / min(COOLDOWN, MIN_RUNTIME)
        # A notice and its release are two entries here, one change to the job.
        assert len(changes) - len(told) <= len(told) + 2 * forced
    assert hours.longest_wait <= 2 * A_ROUND
