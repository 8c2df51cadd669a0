"""ResourceQuotas in the planner: who waits for one, who goes on, and what is lent within it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    JobFacts,
    NamespaceLimit,
    Promise,
    Reclaim,
    Rules,
    Snapshot,
    Worker,
    WorkerState,
)
from espalier_operator.model.actions import Admit, GrantExtra, NoticeReclaim, Plan, Requeue
from espalier_operator.model.constraints import Constraints
from espalier_operator.model.constraints import NodeSelectorRequirement as Requirement
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from operator_world import facts
from operator_world.facts import FAIR, NOW, decide, kinds, node, running_on, starts, worker, workers_of, world

GPU = "nvidia.com/gpu"


def job(key: str, *, cpu: int = 0, extra: int | None = None, **changes: Any) -> JobFacts:
    """A waiting job; one that trains with `extra` extra workers, where that is given."""
    requests = Constraints(requests=(*((("cpu", cpu),) if cpu else ()), ("pods", 1)))
    if extra is None:
        return facts.job(key, constraints=requests, **changes)
    return facts.trains(key, extra=extra, constraints=requests, **{"granted_at": None, "changed_at": None, **changes})


def limit(resource: str, hard: int, used: int = 0, namespace: str = "team") -> NamespaceLimit:
    return NamespaceLimit(namespace=namespace, quota="q", resource=resource, hard=hard, used=used)


def planned(*jobs: JobFacts, limits: Iterable[NamespaceLimit], gpus: int = 16) -> Plan:
    """The plan for jobs on one node."""
    runs = [each for each in jobs if each.admitted_at is not None]
    return decide({"n": gpus}, running_on("n", *runs), [each for each in jobs if each not in runs], tuple(limits))


@pytest.mark.parametrize("limits", [(limit(GPU, 3),), (limit("cpu", 30),), (limit("pods", 5, used=2),)])
def test_a_job_waits_for_the_quota_of_its_namespace_and_others_go_on(limits: tuple[NamespaceLimit, ...]) -> None:
    found = planned(job("team/a", low=2, cpu=10), job("team/b", low=2, cpu=10), job("else/c", low=2), limits=limits)
    assert found.actions == starts("else/c", "team/a")
    assert found.refusals["team/b"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_a_smaller_job_does_not_pass_one_that_waits_for_the_same_quota() -> None:
    jobs = (job("team/r", low=2, high=2, extra=0), job("team/a", low=4), job("team/b", at=1.0))
    found = planned(*jobs, limits=(limit(GPU, 4, used=2),))
    assert found.actions == ()
    assert {found.refusals[key].reason for key in ("team/a", "team/b")} == {Reason.RESOURCE_QUOTA_EXCEEDED}


@pytest.mark.parametrize(("low", "used"), [(4, 2), (5, 0)])
def test_a_job_that_waits_for_pods_of_others_to_leave_the_quota_or_never_fits_holds_nobody_back(
    low: int, used: int
) -> None:
    """They may stay for ever, as a notebook does."""
    found = planned(job("team/a", low=low), job("team/b", at=1.0), limits=(limit(GPU, 4, used=used),))
    assert found.actions == starts("team/b")
    assert found.refusals["team/a"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_extra_workers_are_not_lent_beyond_the_quota() -> None:
    found = planned(job("team/a", low=2, high=8, extra=0), limits=(limit(GPU, 5, used=2), limit("pods", 4, used=2)))
    assert found.actions == (GrantExtra(job="team/a", extra=2),)
    full = planned(job("team/a", low=2, high=8, extra=0), limits=(limit(GPU, 2, used=2),))
    assert full.actions == ()
    assert full.refusals["team/a"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_pods_that_are_still_to_be_made_count() -> None:
    """The job was admitted just now; the API server has counted nothing yet."""
    fresh = job("team/a", low=3, admitted_at=NOW, gpu_type="a")
    found = decide({"n": 16}, fresh, job("team/b", low=2), limit(GPU, 4))
    assert found.refusals["team/b"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_pods_count_that_the_quota_has_not_counted_yet() -> None:
    found = planned(job("team/a", low=3, extra=0), job("team/b", low=2), limits=(limit(GPU, 4, used=0),))
    assert found.refusals["team/b"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_what_is_lent_in_the_namespace_is_reclaimed_for_base_workers() -> None:
    holder = job("team/a", low=1, high=6, extra=5)
    found = planned(holder, job("team/b", low=2), limits=(limit(GPU, 6, used=6),))
    [notice] = [action for action in found.actions if isinstance(action, NoticeReclaim)]
    assert (notice.job, notice.extra, notice.reason) == ("team/a", 3, Reason.NEEDED_BY_OTHER_JOB)
    assert found.refusals["team/b"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_a_notice_alone_frees_nothing_of_extra_workers_that_are_not_seen_yet() -> None:
    """Their pods may have been made: the job that waits for their quota starts once they are released."""
    waits, holder = job("team/a", low=2), job("team/b", high=2, extra=1, changed_at=NOW - 9)
    promise = Promise(job="team/b", extra=1, expires_at=NOW + 9)
    given = {"n": 9}, workers_of(holder)[:1], promise, waits, limit(GPU, 3, used=1)
    (notice,) = decide(*given, holder).actions
    assert (type(notice), notice.job) == (NoticeReclaim, "team/b")
    told = replace(holder, generation=2, reclaim=Reclaim(extra=0, deadline=NOW + 30, reason=notice.reason))
    assert decide(*given, told).actions == ()


def test_nothing_is_reclaimed_where_that_would_not_be_enough_or_is_in_another_namespace() -> None:
    few = planned(job("team/a", high=3, extra=1), job("team/b", low=4), limits=(limit(GPU, 4, used=4),))
    assert few.actions == ()
    other = planned(job("else/a", high=6, extra=5), job("team/b", low=2), limits=(limit(GPU, 2, used=1),))
    assert other.actions == ()


def refused(key: str, made: int, **changes: object) -> tuple[JobFacts, list[Worker]]:
    """A gang of three that was admitted just now: some of its pods a ResourceQuota refuses, `made` were made."""
    stands = {"admitted_at": NOW, "gpu_type": "a", "refused_since": NOW, "trouble": Reason.POD_REJECTED}
    facts = job(key, low=3, high=3, **{**stands, "last_failure": "exceeded quota: q", **changes})
    return facts, [replace(each, state=WorkerState.PENDING) for each in workers_of(facts)[:made]]


def given_up(*gangs: tuple[JobFacts, list[Worker]], used: int, hard: int = 4) -> list[Requeue]:
    """The jobs that wait again at once; a ResourceQuota of `hard` GPUs counts `used`."""
    found = decide({"n": 16}, *(each for gang in gangs for each in gang), limit(GPU, hard, used=used))
    return [action for action in found.actions if isinstance(action, Requeue)]


def test_a_gang_gives_way_at_once_if_others_took_the_room_that_a_quota_had_for_it() -> None:
    """For a random time: a gang of another operator may have been granted the same room."""
    (action,) = given_up(refused("team/a", 2), used=4)
    assert (action.reason, action.message) == (Reason.RESOURCE_QUOTA_EXCEEDED, "exceeded quota: q")
    assert NOW <= action.hold_until <= NOW + Rules().rivalry_seconds
    (other,) = given_up(refused("team/b", 2), used=4)
    assert other.hold_until != action.hold_until


def test_only_as_many_gangs_give_way_as_make_room_for_the_others() -> None:
    assert len(given_up(refused("team/a", 2), refused("team/b", 2), used=5, hard=6)) == 1


@pytest.mark.parametrize(
    ("scopes", "starts_one", "lends"),
    [
        ((Requirement("NotTerminating", "Exists"),), False, False),
        ((Requirement("Terminating", "Exists"),), True, True),
        ((Requirement("PriorityClass", "In", ("high",)),), False, True),
        ((Requirement("PriorityClass", "NotIn", ("high",)),), True, False),
        ((Requirement("PriorityClass", "DoesNotExist"),), True, True),
        ((Requirement("NotTerminating", "Exists"), Requirement("PriorityClass", "In", ("other",))), True, True),
    ],
)
def test_a_quota_with_scopes_holds_for_the_workers_in_all_of_them(
    scopes: tuple[Requirement, ...], starts_one: bool, lends: bool
) -> None:
    """Extra workers have a PriorityClass of their own."""
    own, extra = ((("NotTerminating", ""), ("PriorityClass", name)) for name in ("high", "x"))
    scoped = partial(job, quota_scopes=own, extra_quota_scopes=extra)
    quota = NamespaceLimit(namespace="team", quota="q", resource="pods", hard=0, used=0, scopes=scopes)
    snapshot = world({"n": 8}, scoped("team/a"), running_on("n", scoped("team/b", high=2, extra=0)), quota)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    done = kinds(plan(snapshot, FAIR, NOW))
    assert (Admit in done, GrantExtra in done) == (starts_one, lends)


@pytest.mark.parametrize(("changes", "used"), [({"trained": True}, 4), ({}, 3), ({"trouble": Reason.UNSCHEDULABLE}, 4)])
def test_a_gang_that_may_still_get_its_pods_or_has_trained_is_patient(changes: dict[str, object], used: int) -> None:
    assert given_up(refused("team/a", 2, **changes), used=used) == []


def test_a_job_whose_leader_evaluates_does_not_wait_again_for_a_worker_that_a_quota_refuses() -> None:
    """Or has said that the job is complete: its outcome would be lost, and it would train again."""
    patience = Rules().placement_seconds
    trains = refused("team/a", 2, trained=True, refused_since=NOW - patience)
    assert [action.reason for action in given_up(trains, used=4)] == [Reason.POD_REJECTED]
    evaluates = refused("team/a", 2, trained=True, refused_since=NOW - patience, evaluating=True)
    assert given_up(evaluates, used=4) == []


@given(hard=st.integers(0, 8), sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_grants_never_exceed_the_quota_and_every_job_has_a_reason(hard: int, sizes: list[tuple[int, int]]) -> None:
    jobs = [
        job(f"team/{number}", low=low, high=low + more, extra=None if number else 0)
        for number, (low, more) in enumerate(sizes)
    ]
    held = jobs[0].terms.min_replicas
    found = planned(*jobs, limits=(limit(GPU, hard, used=held),))
    by_key = {each.key: each for each in jobs}
    new = sum(by_key[a.job].terms.min_replicas for a in found.actions if isinstance(a, Admit))
    new += sum(a.extra for a in found.actions if isinstance(a, GrantExtra))
    assert new == 0 or held + new <= hard
    assert {action.job for action in found.actions} | set(found.refusals) == set(by_key)


def waits_for_gpus(*jobs: JobFacts, quota: int, gpus: int = 8) -> Plan:
    """The plan for `team/w`, which waits for all GPUs of its type, with a job of others on them, beside `jobs`."""
    stranger = running_on("m", job("else/s", low=gpus, high=gpus, extra=0, gpu_type="b"))
    waiting = job("team/w", low=gpus, high=gpus, only_on="b")
    runs = [running_on("n", each) if each.admitted_at is not None else each for each in jobs]
    return decide(node("n", 16), node("m", gpus, "b"), stranger, waiting, *runs, limit(GPU, quota))


def test_a_job_that_waits_for_gpus_keeps_no_quota_from_lending() -> None:
    found = waits_for_gpus(job("team/a", high=3, extra=0), quota=9)
    assert found.actions == (GrantExtra(job="team/a", extra=2),)
    assert found.refusals["team/w"].reason is Reason.NO_FREE_GPU
    assert found.refusals["team/w"].starts_by is not None


def test_what_is_lent_in_its_namespace_is_not_reclaimed_before_its_gpus_are_there() -> None:
    """So the next plan takes back nothing that this one lends."""
    found = waits_for_gpus(job("team/a", high=3, extra=2), quota=9)
    assert found.actions == ()
    assert found.refusals["team/w"].reason is Reason.NO_FREE_GPU


def test_a_job_that_waits_for_gpus_keeps_the_quota_from_jobs_that_come_later() -> None:
    found = waits_for_gpus(job("team/a", at=1.0), quota=8)
    assert found.actions == ()
    assert found.refusals["team/a"].reason is Reason.RESOURCE_QUOTA_EXCEEDED


def test_a_job_that_starts_on_borrowed_gpus_goes_before_those_that_wait_for_the_same_namespace() -> None:
    """Its GPUs are taken, and its queue may borrow those of another type. The next job of its namespace waits too, for
    the quota of a pod that ends.
    """
    runs = running_on("n", job("else/s", low=4, high=4, extra=0))
    first, second = job("team/x", gpus_per_worker=4), job("team/y", gpus_per_worker=4, only_on="a", at=1.0)
    ends = worker("team/x", gpus=4, state=WorkerState.TERMINATING)
    borrows = QueueLimits(
        name="default", cohort="all", quotas=(Quota(gpu_type="a", nominal=12), Quota(gpu_type="b", nominal=0))
    )
    lends = QueueLimits(name="night", cohort="all", quotas=(Quota(gpu_type="b", nominal=4),))
    nodes, quota = (node("n", 4), node("m", 4, "b")), limit("pods", 2, used=1)
    found = decide(nodes, runs, first, second, ends, quota, borrows, lends)
    assert found.actions == starts("team/x", on="b")


@pytest.mark.parametrize(
    ("used", "extra", "is_stopped"), [(0, 0, True), (1, 0, True), (2, 2, True), (2, 0, False), (3, 1, False)]
)
def test_borrowed_quota_is_reclaimed_only_for_a_job_that_its_namespace_lets_start(
    used: int, extra: int, is_stopped: bool
) -> None:
    """At once, or without what is lent there; else the quota would only be borrowed, and reclaimed, again and again."""
    holder = job("else/h", low=4, high=4, extra=0, queue="night", base_preemptible=True)
    lender = [job("team/l", low=1, high=3, extra=extra, queue="free")] if extra else []
    queues = [QueueLimits(name=name, cohort="all", quotas=(Quota(nominal=2),)) for name in ("default", "night")]
    given = running_on("n", holder, *lender), job("team/w", low=2, high=2), queues, QueueLimits(name="free")
    found = decide({"n": 16}, *given, limit(GPU, 3, used=used))
    assert facts.stopped(found) == (["h"] if is_stopped else [])
    assert found.refusals["team/w"].reason is Reason.QUOTA_EXCEEDED
