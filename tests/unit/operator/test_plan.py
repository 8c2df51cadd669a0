"""The planner's rules by example: a few facts in, the whole list of actions out."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import Ended, Promise, Reclaim, Stopping, WorkerState
from espalier_operator.model.actions import Fail, Finish, GrantExtra, NoticeReclaim, ReleaseExtra, Requeue, Stop
from espalier_operator.model.constraints import RESOURCE_LABEL, Constraints, Taint, Toleration
from operator_world import facts
from operator_world.facts import (
    NOW,
    admitted,
    decide,
    foreign,
    kinds,
    node,
    refused,
    running_on,
    starts,
    worker,
    workers_of,
)

job, trains = partial(facts.job, high=4), partial(facts.trains, high=4)


def asked_back(job: str, extra: int) -> NoticeReclaim:
    """The notice to a job, which keeps `extra` extra workers, that others need the rest."""
    return NoticeReclaim(job=job, extra=extra, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB)


def giving(extra: int = 1, keeps: int = 0, **changes) -> facts.JobFacts:
    """A job that gives GPUs back to another in the next seconds."""
    reclaim = Reclaim(extra=keeps, deadline=NOW + 5, reason=Reason.NEEDED_BY_OTHER_JOB)
    return trains("giving", **{"extra": extra, "generation": 3, "reclaim": reclaim, **changes})


# ---- base GPUs


def test_waiting_jobs_start_by_priority_then_submission():
    planned = decide(node("n", 2), job("late", at=2.0), job("early", at=1.0), job("urgent", priority=1, at=3.0))
    assert planned.actions == starts("urgent", "early")
    assert refused(planned) == {"late": Reason.NO_FREE_GPU}


def test_nodes_that_name_no_type_of_gpu_are_a_type_too():
    assert decide(node("n", 1, ""), job("one")).actions == starts("one", on="")


def test_base_workers_start_all_together_or_not():
    narrow, wide, holder = job("narrow", at=1.0), job("wide", low=3), trains("holder", high=1)
    too_large = "it is too large for all GPUs together, so it holds nobody back"
    assert decide(node("n", 2), wide, narrow).actions == starts("narrow"), too_large
    planned = decide(node("n", 3), wide, running_on("n", holder), narrow)
    assert planned.actions == (), "it waits for the holder's end, and those behind it wait as well"
    assert refused(planned)["narrow"] is Reason.NO_FREE_GPU


def test_a_worker_s_gpus_are_on_one_node():
    nodes = node("n", 3), node("m", 3)
    assert decide(nodes, job("one", low=2, gpus_per_worker=3)).actions == starts("one")
    assert refused(decide(nodes, job("one", gpus_per_worker=4))) == {"one": Reason.TOO_LARGE}


def test_a_job_stays_on_one_type_of_gpu():
    nodes = node("n", 1, "a"), node("m", 1, "b")
    assert refused(decide(nodes, job("two", low=2))) == {"two": Reason.TOO_LARGE}
    assert decide(nodes, job("picky", only_on="b")).actions == starts("picky", on="b")
    planned = decide(nodes, running_on("n", trains("growing")))
    assert planned.actions == ()
    assert refused(planned) == {"growing": Reason.NO_FREE_GPU}, "the free GPU is of another type"


ZONE_A = Constraints(node_selector=(("zone", "a"),))
TEAM = Constraints(tolerations=(Toleration("team", "Exists"),))
in_zone_a = partial(node, labels={"zone": "a"})


def test_a_job_starts_only_where_its_constraints_admit_it():
    nodes = node("n", 4), in_zone_a("m", 1), node("t", 2, taints=(Taint("team"),))
    wide = job("wide", low=2, constraints=ZONE_A)
    planned = decide(nodes, wide, job("one", constraints=ZONE_A), job("team", low=6, constraints=TEAM))
    assert planned.actions == starts("one", "team")
    assert refused(planned) == {"wide": Reason.UNSCHEDULABLE}, "its zone is too small for it, the cluster is not"
    assert refused(decide(nodes, job("large", low=8, constraints=TEAM))) == {"large": Reason.TOO_LARGE}


def test_a_job_is_too_large_for_what_there_is_of_its_gpu_resource():
    slices = Constraints(node_selector=((RESOURCE_LABEL, "nvidia.com/mig-1g.5gb"),))
    whole = node("n", 8, labels={RESOURCE_LABEL: "nvidia.com/gpu"})
    sliced = node("n/mig", 2, "mig", labels={RESOURCE_LABEL: "nvidia.com/mig-1g.5gb"}, taints=(Taint("team"),))
    for workers, reason in ((3, Reason.TOO_LARGE), (2, Reason.UNSCHEDULABLE)):
        assert refused(decide(whole, sliced, job("one", low=workers, constraints=slices))) == {"one": reason}


def cpus(number: int) -> Constraints:
    return Constraints(requests=(("cpu", 1000 * number),))


def test_workers_start_where_their_other_requests_fit_too():
    """Others' pods and our own workers take CPUs; a node that names none is not limited."""
    busy, hungry = node("busy", 4, resources={"cpu": 8000}, used={"cpu": 5000}), job("hungry", constraints=cpus(4))
    assert decide(busy, node("n", 1, resources={"cpu": 4000}), hungry).actions == starts("hungry")
    planned = decide(busy, hungry, job("modest", low=3, high=3, constraints=cpus(1)))
    assert planned.actions == starts("modest")
    assert refused(planned) == {"hungry": Reason.UNSCHEDULABLE}, "GPUs are free, CPUs are not"
    assert refused(decide(busy, job("giant", constraints=cpus(9)))) == {"giant": Reason.UNSCHEDULABLE}
    assert decide(node("n", 1), hungry).actions == starts("hungry")
    full, runs = node("n", 4, resources={"cpu": 8000}), trains("runs", constraints=cpus(3))
    planned = decide(full, running_on("n", runs), job("next", low=2, constraints=cpus(2)))
    assert planned.actions == starts("next"), "one CPU is left, and the third GPU is of no use"


def test_a_reclaim_gives_back_what_a_worker_requests():
    lucky, full = trains("lucky", extra=1, constraints=cpus(3)), node("n", 4, resources={"cpu": 8000})
    planned = decide(full, running_on("n", lucky), job("next", constraints=cpus(4)))
    assert planned.actions == (asked_back("lucky", 0),), "there are GPUs, but no CPUs"


def test_a_job_that_waits_for_some_nodes_holds_back_nobody_on_others():
    holder = running_on("m", trains("holder", high=1))
    planned = decide(in_zone_a("m", 1), node("n", 1), holder, job("first", constraints=ZONE_A), job("later", at=1.0))
    assert planned.actions == starts("later")
    assert refused(planned) == {"holder": Reason.AT_MAX_REPLICAS, "first": Reason.NO_FREE_GPU}
    planned = decide(in_zone_a("m", 2), holder, job("first", low=2), job("later", constraints=ZONE_A, at=1.0))
    assert planned.actions == (), "here it does"


def test_gpus_are_lent_and_reclaimed_only_where_they_help():
    growing, lucky = trains("growing", constraints=ZONE_A), trains("lucky", extra=1)
    assert refused(decide(in_zone_a("m", 1), node("n", 3), running_on("m", growing))) == {"growing": Reason.NO_FREE_GPU}
    base, extra = workers_of(lucky, "m")
    full, picky = (in_zone_a("m", 1), node("n", 1)), job("picky", constraints=ZONE_A)
    assert decide(full, lucky, picky, base, replace(extra, node="n")).actions == (), "the lent GPU is in another zone"


@pytest.mark.parametrize(
    ("terms", "left", "reason"),
    [
        ({"high": 2}, 1, Reason.AT_MAX_REPLICAS),
        ({"high": 1}, 0, Reason.AT_MAX_REPLICAS),
        ({"adapts": False}, 0, Reason.ADAPTATION_OFF),
    ],
)
def test_what_a_job_may_no_longer_hold_is_reclaimed_with_notice(terms, left, reason):
    """Its author lowered maxReplicas, scaled it down, or switched adaptation off; others get it meanwhile."""
    changed = trains("changed", extra=3, **terms)
    planned = decide(node("n", 4), running_on("n", changed), job("next"))
    assert planned.actions == (NoticeReclaim(job="changed", extra=left, deadline=NOW + 30, reason=reason),)
    assert planned.wake_at == NOW + 30
    asked = replace(changed, reclaim=Reclaim(extra=left, deadline=NOW + 30, reason=reason))
    assert decide(node("n", 4), running_on("n", asked), job("next")).actions == ()


def test_a_job_that_fits_only_once_pods_of_others_have_left_holds_nobody_back():
    """Otherwise anyone's job of the highest priority stops all admissions for as long as others run."""
    wide, next_one = job("wide", low=4, high=4, priority=10**9), job("next")
    planned = decide(node("n", 4), wide, next_one, foreign(1, "n"))
    assert planned.actions == starts("next")
    assert refused(planned) == {"wide": Reason.NO_FREE_GPU}, "it is not too large for the cluster"
    planned = decide(node("n", 4), wide, next_one, running_on("n", trains("holder", high=1)))
    assert planned.actions == (), "what our jobs hold comes back when their budgets end"


def test_a_job_that_kube_scheduler_cannot_place_waits_again():
    """Its GPUs are free, so something else is missing: they go to others."""
    late = trains("stuck", high=1, refused_since=NOW - 60, last_failure="4 Insufficient cpu")
    early = decide(node("n", 1), replace(late, refused_since=NOW - 59), job("next"))
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    requeue = Requeue(job="stuck", reason=Reason.UNSCHEDULABLE, message="4 Insufficient cpu")
    assert decide(node("n", 1), late, job("next")).actions == (requeue,)
    waits = decide(node("n", 2), late, running_on("n", giving(generation=1)))
    assert waits.actions == (), "its GPU is still on the way"


def test_a_job_that_could_not_be_placed_is_held_back_for_a_while():
    held = job("held", hold_until=NOW + 30)
    planned = decide(node("n", 1), held, job("next", at=1.0))
    assert planned.actions == starts("next")
    assert (refused(planned), planned.wake_at) == ({"held": Reason.UNSCHEDULABLE}, NOW + 30)
    assert decide(node("n", 1), replace(held, hold_until=NOW)).actions == starts("held")
    planned = decide(node("n", 2), running_on("n", trains("growing", hold_until=NOW + 30)))
    assert (planned.actions, refused(planned), planned.wake_at) == ((), {"growing": Reason.UNSCHEDULABLE}, NOW + 30)


def test_a_pod_that_fits_on_no_node_delays_nobody():
    """Two of them stopped all admissions, and took every lent GPU."""
    impossible = Constraints(node_selector=(("disk", "tape"),))
    pods = [foreign(gpus, constraints=impossible) for gpus in (1, 2)]
    planned = decide(node("n", 8), running_on("n", trains("lucky", extra=1)), job("next"), pods)
    assert planned.actions[:1] == starts("next")
    assert kinds(planned)[1:] == [GrantExtra]


@pytest.mark.parametrize("memory", [65, 2**62])
def test_a_pod_that_requests_more_than_any_node_has_delays_nobody(memory):
    """kube-scheduler's message names GPUs, too, where other nodes lack them."""
    given = node("n", 8, resources={"memory": 64, "pods": 110}), *running_on("n", trains("lucky", extra=1)), job("next")
    planned = decide(*given, foreign(7, constraints=Constraints(requests=(("memory", memory), ("pods", 1)))))
    assert (admitted(planned), kinds(planned)[1:]) == (["next"], [GrantExtra])
    planned = decide(*given, foreign(7, constraints=Constraints(requests=(("memory", 64), ("pods", 1)))))
    assert kinds(planned) == [NoticeReclaim], "this one is waited for"


def test_a_pod_keeps_no_gpus_of_nodes_from_which_kube_scheduler_keeps_it():
    """Other nodes lack GPUs, so its message names these too: any cluster has nodes without GPUs."""
    nodes = node("n", 2), node("m", 2), node("cpu", 0)
    barred = [foreign(1, name=f"pod-{number}", barred_nodes=2) for number in range(3)]
    assert decide(nodes, job("next", low=4), barred).actions == starts("next")
    planned = decide(nodes, job("next", low=1), job("second", low=3), foreign(1, barred_nodes=1))
    assert planned.actions == starts("next"), "one of the two is its own, nobody knows which"


def test_lent_gpus_are_reclaimed_for_a_pod_only_where_kube_scheduler_could_bind_it():
    """That is not where GPUs are free as it is."""
    first = trains("first", extra=2, priority=1, granted_at=NOW, changed_at=NOW)
    second = trains("second", extra=3, granted_at=NOW, changed_at=NOW)
    workers = running_on("full", first), running_on("open", second)
    planned = decide(node("full", 3), node("open", 5), *workers, foreign(1, barred_nodes=1))
    assert planned.actions == (asked_back("first", 1),)


@pytest.mark.parametrize("state", [WorkerState.PENDING, WorkerState.RUNNING, WorkerState.TERMINATING])
def test_a_worker_holds_its_gpu_until_it_is_gone(state):
    ended = trains("ended", high=1, finished=True)
    assert decide(node("n", 1), ended, job("next"), workers_of(ended, "n", state)).actions == ()
    assert decide(node("n", 1), ended, job("next")).actions == starts("next")


@pytest.mark.parametrize("unfit", [{"ready": False}, {"schedulable": False}, {"departing": 1, "departs_at": 2000.0}])
def test_nodes_that_are_not_fit_offer_nothing(unfit):
    assert decide(node("n", 1, **unfit), job("one")).actions == ()


def test_a_base_worker_that_is_gone_takes_a_lent_gpu():
    planned = decide(node("n", 2), trains("hurt", high=1), running_on("n", trains("lucky", extra=1)))
    assert planned.actions == (asked_back("lucky", 0),)


def test_a_running_job_whose_gpu_is_gone_for_good_waits_again():
    hurt = trains("hurt", low=2, high=2)
    left = node("n", 1), workers_of(hurt, "n")[:1]
    assert decide(*left, hurt).actions == (Requeue(job="hurt", reason=Reason.GPU_LOST),)
    assert decide(*left, replace(hurt, evaluating=True)).actions == (), "its leader is about to end"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_seconds_budget": 100.0, "gpu_seconds_used": 100.0}, Reason.GPU_BUDGET_EXHAUSTED),
        ({"suspend": True}, Reason.SUSPENDED),
    ],
)
def test_a_job_that_is_stopped_has_time_though_it_lacks_a_gpu(changes, reason):
    hurt = trains("hurt", low=2, high=2, **changes)
    (stop,) = decide(node("n", 1), hurt, workers_of(hurt, "n")[:1]).actions
    assert (type(stop), stop.reason) == (Stop, reason)


def test_a_job_that_is_stopped_is_asked_for_nothing_else():
    assert kinds(decide(node("n", 3), running_on("n", trains("less", extra=2, high=2, suspend=True)))) == [Stop]


# ---- extra GPUs


def test_spare_gpus_are_shared_by_weight_up_to_the_maximum():
    low, high, small = trains("low", high=9), trains("high", priority=1, high=9), trains("small", priority=2, high=2)
    assert decide(node("n", 10), running_on("n", low, high, small)).actions == (
        GrantExtra(job="small", extra=1),
        GrantExtra(job="high", extra=4),
        GrantExtra(job="low", extra=2),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"high": 1}, Reason.AT_MAX_REPLICAS),
        ({"adapts": False}, Reason.ADAPTATION_OFF),
        ({"has_reported": False}, Reason.NO_REPORT),
        ({"training": False}, Reason.STARTING),
        ({"changed_at": NOW - 59}, Reason.COOLDOWN),
        ({"lend_after": NOW + 1}, Reason.EXTRA_WORKERS_LOST),
        ({"used_seconds": 476.0}, Reason.TOO_LITTLE_BUDGET_LEFT),
        ({"gpu_seconds_budget": 100.0, "gpu_seconds_used": 60.0}, Reason.TOO_LITTLE_BUDGET_LEFT),
        ({"stopping": Stopping(reason=Reason.SUSPENDED, deadline=NOW + 9)}, Reason.SUSPENDED),
        ({"reclaim": Reclaim(extra=0, deadline=NOW + 9, reason=Reason.NEEDED_BY_OTHER_JOB)}, Reason.RECLAIM_PENDING),
    ],
)
def test_nothing_is_lent_to_a_job_that_cannot_use_it(changes, reason):
    planned = decide(node("n", 4), running_on("n", trains("one", generation=2, acknowledged_generation=1, **changes)))
    assert planned.actions == ()
    assert refused(planned) == {"one": reason}


def test_the_plan_says_when_a_job_is_lent_gpus_again():
    """One that lost its extra workers, and one whose cooldown ends."""
    lost, late = trains("one", lend_after=NOW + 90), trains("one", lend_after=NOW)
    assert decide(node("n", 4), running_on("n", lost)).wake_at == NOW + 90
    assert decide(node("n", 4), running_on("n", late)).actions == (GrantExtra(job="one", extra=3),)
    assert decide(node("n", 4), running_on("n", trains("one", changed_at=NOW - 20))).wake_at == NOW + 40


def test_a_promise_counts_until_it_is_seen_or_expires():
    lent = trains("lent", extra=1, high=2)
    base, promise = workers_of(lent, "n")[:1], Promise(job="lent", extra=1, expires_at=NOW + 5)
    why = "the GPU is free and promised, so it is not granted but asked back"
    assert decide(node("n", 2), lent, job("next"), base, promise).actions == (asked_back("lent", 0),), why
    told = replace(lent, generation=2, reclaim=Reclaim(extra=0, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB))
    assert decide(node("n", 2), told, job("next"), base, promise).actions == ()
    for promises, reason in (([replace(promise, expires_at=NOW)], Reason.UNSCHEDULABLE), ([], Reason.GPU_LOST)):
        planned = decide(node("n", 2), lent, base, promises)
        assert planned.actions == (ReleaseExtra(job="lent", extra=0, forced=True, reason=reason),)


def test_a_waiting_job_has_lent_gpus_reclaimed_from_the_last_in_line():
    first, last = trains("first", extra=1, priority=1, high=2), trains("last", extra=2)
    planned = decide(node("n", 5), running_on("n", first, last), job("next"))
    assert planned.actions == (asked_back("last", 1),)
    assert planned.wake_at == NOW + 30


def test_nothing_is_reclaimed_where_it_would_not_be_enough():
    lent, other = trains("lent", extra=1), trains("other", low=2, high=2)
    assert decide(node("n", 4), running_on("n", lent, other), job("wide", low=2)).actions == ()


def test_free_gpus_that_a_waiting_gang_needs_are_not_lent_meanwhile():
    given = node("n", 4), running_on("n", giving(high=2), trains("greedy", priority=1))
    planned = decide(*given, job("gang", low=2))
    assert planned.actions == ()
    assert refused(planned)["greedy"] is Reason.NO_FREE_GPU
    planned = decide(*given, job("pair", gpus_per_worker=2))
    assert planned.actions == (), "the free one is half of what a worker waits for"
    planned = decide(*given, job("vast", low=4))
    assert planned.actions == (GrantExtra(job="greedy", extra=1),), "what comes back is not enough for that one"


def test_only_what_is_on_the_right_node_is_reclaimed():
    wrong, right = running_on("n", trains("wrong", extra=1)), running_on("m", trains("right", extra=2, priority=1))
    planned = decide(node("n", 2), node("m", 3), wrong, right, job("pair", gpus_per_worker=2))
    assert planned.actions == (asked_back("right", 0),)


def test_a_pod_of_others_gets_lent_gpus_before_anyone_is_evicted():
    given = node("n", 3), running_on("n", trains("lent", extra=2))
    assert decide(*given, foreign(2)).actions == (asked_back("lent", 0),)
    assert decide(*given, foreign(4)).actions == (), "no reclaim makes room for it"


def test_a_free_gpu_that_a_pod_of_others_waits_for_is_not_lent():
    assert decide(node("n", 2), running_on("n", trains("one")), foreign(1)).actions == ()


def test_a_job_that_has_less_is_given_all_that_is_due_to_it_by_one_notice():
    planned = decide(node("n", 6), running_on("n", trains("rich", extra=4, high=9), trains("poor", high=9)))
    assert planned.actions == (asked_back("rich", 2),)
    assert refused(planned)["poor"] is Reason.NO_FREE_GPU


def test_who_is_granted_free_gpus_asks_for_others_only_after_its_cooldown():
    rich, grant = trains("rich", extra=6, high=9), GrantExtra(job="poor", extra=1)
    for cooldown, actions in ((60.0, (grant,)), (0.0, (grant, asked_back("rich", 4)))):
        poor = trains("poor", high=9, cooldown_seconds=cooldown)
        assert decide(node("n", 9), running_on("n", rich, poor)).actions == actions


def test_who_has_just_changed_is_spared_unless_it_must_change_anyway():
    rich, poor = trains("rich", extra=4, high=9, changed_at=NOW - 10), trains("poor", high=9)
    planned = decide(node("n", 6), running_on("n", rich, poor))
    assert (planned.actions, planned.wake_at) == ((), NOW + 50)
    planned = decide(node("n", 6), running_on("n", rich, poor), foreign(1))
    assert planned.actions == (asked_back("rich", 2),)
    planned = decide(node("n", 6), running_on("n", replace(rich, granted_at=NOW - 10), poor), foreign(1))
    assert planned.actions == (asked_back("rich", 3),)


def test_a_worker_of_many_gpus_makes_as_few_jobs_as_can_be_give_back():
    holders = [running_on(on, trains(f"holder{on}", extra=4, high=9)) for on in "mn"]
    wide = running_on("o", trains("wide", high=3, gpus_per_worker=2))
    planned = decide(node("m", 5), node("n", 5), node("o", 2), *holders, wide)
    assert planned.actions == (asked_back("holdern", 2),)


def test_a_gpu_moves_to_who_has_as_little_at_a_higher_priority_after_the_minimum_runtime():
    holder, higher = trains("holder", extra=1, high=2), trains("higher", priority=1, high=2)
    assert decide(node("n", 3), running_on("n", holder, trains("equal"))).actions == ()
    assert decide(node("n", 3), running_on("n", holder, higher)).actions == (asked_back("holder", 0),)
    planned = decide(node("n", 3), running_on("n", replace(holder, granted_at=NOW - 10), higher))
    assert (planned.actions, planned.wake_at) == ((), NOW + 50)


def test_gpus_on_their_way_back_are_reclaimed_only_once():
    planned = decide(node("n", 5), running_on("n", giving(extra=2, keeps=1), trains("other", extra=1)), job("next"))
    assert planned.actions == ()
    assert refused(planned)["giving"] is Reason.RECLAIM_PENDING


@pytest.mark.parametrize(
    ("leaves_in", "waits"), [(30, True), (-59, True), (-61, False), (599, True), (601, False), (10**9, False)]
)
def test_a_pod_whose_grace_period_is_a_year_or_long_over_is_not_waited_for(leaves_in, waits):
    """Whoever deletes a pod says for how long it may hold its GPUs; others were let wait for that."""
    given, asked = (
        (node("n", 3), running_on("n", trains("holder", extra=1, high=2)), job("next")),
        asked_back("holder", 0),
    )
    stays = foreign(1, "n", state=WorkerState.TERMINATING, leaves_at=NOW + leaves_in, grace_seconds=10**9)
    planned = decide(*given, stays)
    assert planned.actions == (() if waits else (asked,))
    if waits:
        assert NOW < planned.wake_at <= stays.leaves_at + 60, "it is decided again once the pod hangs"
    else:  # by a clock that is far ahead of ours, the end of a short grace period
        planned = decide(*given, replace(stays, grace_seconds=30))
        assert planned.actions == (() if leaves_in > 0 else (asked,))


@pytest.mark.parametrize(("leaves_in", "waits"), [(30, True), (-59, True), (-61, False)])
def test_a_worker_of_a_job_that_has_stopped_and_hangs_is_not_waited_for(leaves_in, waits):
    stopped = job("stopped", finished=True)
    given = node("n", 3), running_on("n", trains("holder", extra=1, high=2)), stopped, job("next")
    hangs = worker("stopped", node="n", state=WorkerState.TERMINATING, leaves_at=NOW + leaves_in)
    planned = decide(*given, hangs)
    assert planned.actions == (() if waits else (asked_back("holder", 0),))


@pytest.mark.parametrize(
    ("acknowledged", "now", "released"),
    [(2, NOW, None), (3, NOW, Reason.RECLAIM_ACKNOWLEDGED), (2, NOW + 5, Reason.RECLAIM_FORCED)],
)
def test_what_is_acknowledged_is_released_and_what_is_overdue_is_taken(acknowledged, now, released):
    planned = decide(node("n", 2), running_on("n", giving(acknowledged_generation=acknowledged)), now=now)
    forced = released is Reason.RECLAIM_FORCED
    release = ReleaseExtra(job="giving", extra=0, forced=forced, reason=released)
    assert planned.actions == ((release,) if released else ())


def test_an_announced_departure_is_a_notice_that_ends_with_it():
    planned = decide(node("n", 3, departing=1, departs_at=NOW + 12), running_on("n", trains("lent", extra=2)))
    assert planned.actions == (NoticeReclaim(job="lent", extra=1, deadline=NOW + 12, reason=Reason.GPU_LOST),)


# ---- ends

finish, fail, requeue = partial(Finish, job="one"), partial(Fail, job="one"), partial(Requeue, job="one")
BAD_STEP = Ended(reason=Reason.BUDGET_ENFORCED, failed=True, message="step 7")
NOT_STARTED = dict.fromkeys(("trained", "training", "leader_running"), False)


def stopping(reason: Reason, deadline: float, **changes) -> dict:
    return {"stopping": Stopping(reason=reason, deadline=deadline), **changes}


def down(seconds: float, **changes) -> dict:
    """Its leader ended so long ago, and the next one has to train within a minute."""
    return {"leader_running": False, "down_since": NOW - seconds, "pre_running_deadline_seconds": 60.0, **changes}


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"ended": Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)}, finish(reason=Reason.BUDGET_EXHAUSTED)),
        (
            {"ended": Ended(reason=Reason.LOSS_NOT_FINITE, failed=True, message="step 7")},
            fail(reason=Reason.LOSS_NOT_FINITE, message="step 7"),
        ),
        ({"used_seconds": 510.0}, finish(reason=Reason.BUDGET_ENFORCED)),
        (
            {"used_seconds": 510.0, "failures": 1, "last_failure": "exit code 7", "leader_running": False},
            fail(
                reason=Reason.TRAINER_FAILED,
                message="its time budget is used up, and its trainer has failed: exit code 7",
            ),
        ),
        ({"used_seconds": 600.0, "evaluating": True}, finish(reason=Reason.BUDGET_ENFORCED)),
        (
            {"failures": 4, "last_failure": "exit code 1"},
            fail(reason=Reason.CRASH_LOOP, message="4 failures, backoffLimit 3; the last: exit code 1"),
        ),
        (
            {"preemptions": 3, "max_preemptions": 2},
            fail(reason=Reason.TOO_MANY_PREEMPTIONS, message="3 preemptions, maxPreemptions 2"),
        ),
        ({"preemptions": 2, "max_preemptions": 2, "used_seconds": 510.0}, finish(reason=Reason.BUDGET_ENFORCED)),
        (
            {"trained": False, "training": False, "admitted_at": NOW - 60, "pre_running_deadline_seconds": 60.0},
            fail(reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED, message="60 s after admission"),
        ),
        (
            down(60),
            requeue(
                reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED, message="no leader trains 60 s after the last one ended"
            ),
        ),
        (
            down(61, trouble=Reason.IMAGE_PULL_FAILED, last_failure="ImagePullBackOff"),
            requeue(
                reason=Reason.IMAGE_PULL_FAILED,
                message="no leader trains 61 s after the last one ended: ImagePullBackOff",
            ),
        ),
        (
            {
                **NOT_STARTED,
                **{"admitted_at": NOW - 8, "refused_since": NOW - 8, "pre_running_deadline_seconds": 8.0},
                **{"trouble": Reason.POD_REJECTED, "last_failure": "denied"},
            },
            requeue(reason=Reason.POD_REJECTED, message="denied"),
        ),
        ({"suspend": True}, Stop(job="one", reason=Reason.SUSPENDED, deadline=NOW + 30)),
        (
            {"gpu_seconds_budget": 50.0, "gpu_seconds_used": 50.0},
            Stop(job="one", reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW + 30),
        ),
        (stopping(Reason.SUSPENDED, NOW + 9, leader_running=False), requeue(reason=Reason.SUSPENDED)),
        (stopping(Reason.SUSPENDED, NOW), requeue(reason=Reason.SUSPENDED)),
        (stopping(Reason.GPU_BUDGET_EXHAUSTED, NOW), finish(reason=Reason.GPU_BUDGET_EXHAUSTED)),
        (
            stopping(Reason.GPU_BUDGET_EXHAUSTED, NOW - 60, evaluating=True),
            finish(reason=Reason.GPU_BUDGET_EXHAUSTED),
        ),
        ({"used_seconds": 510.0, "if_forced": BAD_STEP}, fail(reason=Reason.BUDGET_ENFORCED, message="step 7")),
        (
            {"used_seconds": 510.0, "if_forced": Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)},
            finish(reason=Reason.BUDGET_EXHAUSTED),
        ),
        (
            stopping(Reason.GPU_BUDGET_EXHAUSTED, NOW, if_forced=BAD_STEP),
            fail(reason=Reason.BUDGET_ENFORCED, message="step 7"),
        ),
        ({"used_seconds": 590.0, "budget_end_seconds": 580.0}, finish(reason=Reason.BUDGET_ENFORCED)),
        ({"used_seconds": 510.0, "budget_end_seconds": 80.0}, finish(reason=Reason.BUDGET_ENFORCED)),
    ],
)
def test_jobs_end_for_a_reason(changes, action):
    assert decide(node("n", 1), running_on("n", trains("one", high=1, **changes))).actions == (action,)


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        (down(59), 1),  # a leader that starts again has as long as the first
        ({"used_seconds": 490.0}, 20),  # an overrun wakes the loop in time
        # A leader that announced its last evaluation is waited for.
        ({"used_seconds": 510.0, "evaluating": True}, 60),
        ({"used_seconds": 600.0, "budget_end_seconds": 580.0, "evaluating": True}, 50),
        (stopping(Reason.GPU_BUDGET_EXHAUSTED, NOW - 20, evaluating=True), 40),
    ],
)
def test_a_job_that_may_still_end_by_itself_is_looked_at_again_when_it_may_not(changes, until):
    planned = decide(node("n", 1), running_on("n", trains("one", high=1, **changes)))
    assert (planned.actions, planned.wake_at) == ((), NOW + until)


def test_a_plan_leaves_nothing_to_the_garbage_collector():
    # The operator collects rarely: with 1,000 jobs, cycles of objects took 700 MB until it did.
    runs = [running_on(f"n{number}", trains(f"run-{number}", extra=1, high=2)) for number in range(3)]
    given = [node(f"n{number}", 2) for number in range(3)], *runs, job("wait", low=2, priority=1)
    gc.collect()
    gc.disable()
    try:
        planned = decide(*given)
        left = gc.collect()
    finally:
        gc.enable()
    assert planned.actions
    assert left == 0
