"""The planner's rules by example: a few facts in, the whole list of actions out."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import Ended, Node, Promise, Reclaim, Snapshot, Stopping, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, Fail, Finish, GrantExtra, NoticeReclaim, ReleaseExtra, Requeue, Stop
from espalier_operator.model.constraints import RESOURCE_LABEL, Constraints, Taint, Toleration
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world import facts
from operator_world.facts import refused, workers_of

NOW = 1000.0
PENDING, RUNNING, TERMINATING = WorkerState.PENDING, WorkerState.RUNNING, WorkerState.TERMINATING

job, trains = partial(facts.job, high=4), partial(facts.trains, high=4)


def node(name: str, gpus: int, gpu_type: str = "a", **changes: object) -> Node:
    return replace(Node(name=name, gpu_type=gpu_type, allocatable=gpus), **changes)


def foreign(gpus: int, on: str | None = None) -> Worker:
    state = PENDING if on is None else RUNNING
    return Worker(name=f"foreign-{gpus}", job=None, role=WorkerRole.FOREIGN, node=on, gpus=gpus, state=state)


def decide(nodes, jobs, workers=(), promises=(), now=NOW):
    snapshot = Snapshot(
        taken_at=now, nodes=tuple(nodes), jobs=tuple(jobs), workers=tuple(workers), promises=tuple(promises)
    )
    return plan(snapshot, FairPolicy(), now)


def asked_back(job: str, extra: int) -> NoticeReclaim:
    """The notice to a job, which keeps `extra` extra workers, that others need the rest."""
    return NoticeReclaim(job=job, extra=extra, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB)


# ---- base GPUs


def test_waiting_jobs_start_by_priority_then_submission():
    jobs = [
        replace(job("late"), submitted_at=2.0),
        replace(job("early"), submitted_at=1.0),
        replace(job("urgent", priority=1), submitted_at=3.0),
    ]
    planned = decide([node("n", 2)], jobs)
    assert planned.actions == (Admit(job="urgent", gpu_type="a"), Admit(job="early", gpu_type="a"))
    assert refused(planned) == {"late": Reason.NO_FREE_GPU}


def test_nodes_that_name_no_type_of_gpu_are_a_type_too():
    planned = decide([node("n", 1, gpu_type="")], [job("one")])
    assert planned.actions == (Admit(job="one", gpu_type=""),)


def test_base_workers_start_all_together_or_not():
    assert decide([node("n", 2)], [job("wide", low=3), job("narrow")]).actions == (
        Admit(job="narrow", gpu_type="a"),
    ), "it is too large for all GPUs together, so it holds nobody back"
    wide = job("wide", low=3)
    holder = trains("holder", high=1)
    narrow = replace(job("narrow"), submitted_at=1.0)
    planned = decide([node("n", 3)], [wide, holder, narrow], workers_of(holder, "n"))
    assert planned.actions == (), "it waits for the holder's end, and those behind it wait as well"
    assert refused(planned)["narrow"] is Reason.NO_FREE_GPU


def test_a_worker_s_gpus_are_on_one_node():
    planned = decide([node("n", 3), node("m", 3)], [job("one", low=2, gpus_per_worker=3)])
    assert planned.actions == (Admit(job="one", gpu_type="a"),)
    planned = decide([node("n", 3), node("m", 3)], [job("one", low=1, gpus_per_worker=4)])
    assert refused(planned) == {"one": Reason.TOO_LARGE}


def test_a_job_stays_on_one_type_of_gpu():
    nodes = [node("n", 1, "a"), node("m", 1, "b")]
    assert refused(decide(nodes, [job("two", low=2)])) == {"two": Reason.TOO_LARGE}
    assert decide(nodes, [job("picky", only_on="b")]).actions == (Admit(job="picky", gpu_type="b"),)
    growing = trains("growing")
    planned = decide(nodes, [growing], workers_of(growing, "n"))
    assert planned.actions == ()
    assert refused(planned) == {"growing": Reason.NO_FREE_GPU}, "the free GPU is of another type"


ZONE_A = Constraints(node_selector=(("zone", "a"),))
TEAM = Constraints(tolerations=(Toleration("team", "Exists"),))


def test_a_job_starts_only_where_its_constraints_admit_it():
    nodes = [node("n", 4), node("m", 1, labels={"zone": "a"}), node("t", 2, taints=(Taint("team"),))]
    wide = job("wide", low=2, constraints=ZONE_A)
    planned = decide(nodes, [wide, job("one", constraints=ZONE_A), job("team", low=6, constraints=TEAM)])
    assert planned.actions == (Admit(job="one", gpu_type="a"), Admit(job="team", gpu_type="a"))
    assert refused(planned) == {"wide": Reason.UNSCHEDULABLE}, "its zone is too small for it, the cluster is not"
    assert refused(decide(nodes, [job("large", low=8, constraints=TEAM)])) == {"large": Reason.TOO_LARGE}


def test_a_job_is_too_large_for_what_there_is_of_its_gpu_resource():
    slices = Constraints(node_selector=((RESOURCE_LABEL, "nvidia.com/mig-1g.5gb"),))
    whole = node("n", 8, labels={RESOURCE_LABEL: "nvidia.com/gpu"})
    sliced = node("n/mig", 2, "mig", labels={RESOURCE_LABEL: "nvidia.com/mig-1g.5gb"}, taints=(Taint("team"),))
    for workers, reason in ((3, Reason.TOO_LARGE), (2, Reason.UNSCHEDULABLE)):
        planned = decide([whole, sliced], [job("one", low=workers, constraints=slices)])
        assert refused(planned) == {"one": reason}


def cpus(number: int) -> Constraints:
    return Constraints(requests=(("cpu", 1000 * number),))


def test_workers_start_where_their_other_requests_fit_too():
    """Others' pods and our own workers take CPUs; a node that names none is not limited."""
    busy = node("busy", 4, resources={"cpu": 8000}, used={"cpu": 5000})
    hungry = job("hungry", constraints=cpus(4))
    assert decide([busy, node("n", 1, resources={"cpu": 4000})], [hungry]).actions == (
        Admit(job="hungry", gpu_type="a"),
    )
    planned = decide([busy], [hungry, job("modest", low=3, high=3, constraints=cpus(1))])
    assert planned.actions == (Admit(job="modest", gpu_type="a"),)
    assert refused(planned) == {"hungry": Reason.UNSCHEDULABLE}, "GPUs are free, CPUs are not"
    assert refused(decide([busy], [job("giant", constraints=cpus(9))])) == {"giant": Reason.UNSCHEDULABLE}
    assert decide([node("n", 1)], [hungry]).actions == (Admit(job="hungry", gpu_type="a"),)
    runs = trains("runs", constraints=cpus(3))
    full = node("n", 4, resources={"cpu": 8000})
    planned = decide([full], [runs, job("next", low=2, constraints=cpus(2))], workers_of(runs, "n"))
    assert [type(action) for action in planned.actions] == [Admit], "one CPU is left, and the third GPU is of no use"


def test_a_reclaim_gives_back_what_a_worker_requests():
    lucky = trains("lucky", extra=1, constraints=cpus(3))
    full = node("n", 4, resources={"cpu": 8000})
    planned = decide([full], [lucky, job("next", constraints=cpus(4))], workers_of(lucky, "n"))
    notice = asked_back("lucky", 0)
    assert planned.actions == (notice,), "there are GPUs, but no CPUs"


def test_a_job_that_waits_for_some_nodes_holds_back_nobody_on_others():
    holder = trains("holder", high=1)
    nodes = [node("m", 1, labels={"zone": "a"}), node("n", 1)]
    jobs = [holder, job("first", constraints=ZONE_A), replace(job("later"), submitted_at=1.0)]
    planned = decide(nodes, jobs, workers_of(holder, "m"))
    assert planned.actions == (Admit(job="later", gpu_type="a"),)
    assert refused(planned) == {"holder": Reason.AT_MAX_REPLICAS, "first": Reason.NO_FREE_GPU}
    picky = replace(job("later", constraints=ZONE_A), submitted_at=1.0)
    assert (
        decide(
            [node("m", 2, labels={"zone": "a"})], [holder, job("first", low=2), picky], workers_of(holder, "m")
        ).actions
        == ()
    ), "here it does"


def test_gpus_are_lent_and_reclaimed_only_where_they_help():
    growing = trains("growing", constraints=ZONE_A)
    nodes = [node("m", 1, labels={"zone": "a"}), node("n", 3)]
    assert refused(decide(nodes, [growing], workers_of(growing, "m"))) == {"growing": Reason.NO_FREE_GPU}
    lucky = trains("lucky", extra=1)
    full = [node("m", 1, labels={"zone": "a"}), node("n", 1)]
    base, extra = workers_of(lucky, "m")
    planned = decide(full, [lucky, job("picky", constraints=ZONE_A)], [base, replace(extra, node="n")])
    assert planned.actions == (), "the lent GPU is in another zone"


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
    planned = decide([node("n", 4)], [changed, job("next")], workers_of(changed, "n"))
    notice = NoticeReclaim(job="changed", extra=left, deadline=NOW + 30, reason=reason)
    assert planned.actions == (notice,)
    assert planned.wake_at == NOW + 30
    asked = replace(changed, reclaim=Reclaim(extra=left, deadline=NOW + 30, reason=reason))
    assert decide([node("n", 4)], [asked, job("next")], workers_of(changed, "n")).actions == ()


def test_a_job_that_fits_only_once_pods_of_others_have_left_holds_nobody_back():
    """Otherwise anyone's job of the highest priority stops all admissions for as long as others run."""
    wide, next_one = job("wide", low=4, high=4, priority=10**9), job("next")
    planned = decide([node("n", 4)], [wide, next_one], [foreign(1, "n")])
    assert planned.actions == (Admit(job="next", gpu_type="a"),)
    assert refused(planned) == {"wide": Reason.NO_FREE_GPU}, "it is not too large for the cluster"
    holder = trains("holder", high=1)
    planned = decide([node("n", 4)], [wide, next_one, holder], workers_of(holder, "n"))
    assert planned.actions == (), "what our jobs hold comes back when their budgets end"


def test_a_job_that_kube_scheduler_cannot_place_waits_again():
    """Its GPUs are free, so something else is missing: they go to others."""
    stuck = trains("stuck", high=1, refused_since=NOW - 59, last_failure="4 Insufficient cpu")
    early = decide([node("n", 1)], [stuck, job("next")])
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    late = replace(stuck, refused_since=NOW - 60)
    requeue = Requeue(job="stuck", reason=Reason.UNSCHEDULABLE, message="4 Insufficient cpu")
    assert decide([node("n", 1)], [late, job("next")]).actions == (requeue,)
    holder = replace(trains("holder", extra=1), reclaim=Reclaim(extra=0, deadline=NOW + 9, reason=Reason.GPU_LOST))
    waits = decide([node("n", 2)], [late, holder], workers_of(holder, "n"))
    assert waits.actions == (), "its GPU is still on the way"


def test_a_job_that_could_not_be_placed_is_held_back_for_a_while():
    held = job("held", hold_until=NOW + 30)
    planned = decide([node("n", 1)], [held, replace(job("next"), submitted_at=1.0)])
    assert planned.actions == (Admit(job="next", gpu_type="a"),)
    assert (refused(planned), planned.wake_at) == ({"held": Reason.UNSCHEDULABLE}, NOW + 30)
    assert decide([node("n", 1)], [replace(held, hold_until=NOW)]).actions == (Admit(job="held", gpu_type="a"),)
    growing = trains("growing", hold_until=NOW + 30)
    planned = decide([node("n", 2)], [growing], workers_of(growing, "n"))
    assert (planned.actions, refused(planned), planned.wake_at) == ((), {"growing": Reason.UNSCHEDULABLE}, NOW + 30)


def test_a_pod_that_fits_on_no_node_delays_nobody():
    """Two of them stopped all admissions, and took every lent GPU."""
    lucky = trains("lucky", extra=1)
    impossible = Constraints(node_selector=(("disk", "tape"),))
    pods = [replace(foreign(gpus), constraints=impossible) for gpus in (1, 2)]
    planned = decide([node("n", 8)], [lucky, job("next")], [*workers_of(lucky, "n"), *pods])
    assert planned.actions[0] == Admit(job="next", gpu_type="a")
    assert [type(action) for action in planned.actions[1:]] == [GrantExtra]


@pytest.mark.parametrize("memory", [65, 2**62])
def test_a_pod_that_requests_more_than_any_node_has_delays_nobody(memory):
    """kube-scheduler's message names GPUs, too, where other nodes lack them."""
    node_ = node("n", 8, resources={"memory": 64, "pods": 110})
    lucky = trains("lucky", extra=1)
    pod = replace(foreign(7), constraints=Constraints(requests=(("memory", memory), ("pods", 1))))
    planned = decide([node_], [lucky, job("next")], [*workers_of(lucky, "n"), pod])
    assert [type(action) for action in planned.actions] == [Admit, GrantExtra]
    fits = replace(pod, constraints=Constraints(requests=(("memory", 64), ("pods", 1))))
    planned = decide([node_], [lucky, job("next")], [*workers_of(lucky, "n"), fits])
    assert [type(action) for action in planned.actions] == [NoticeReclaim], "this one is waited for"


def test_a_pod_keeps_no_gpus_of_nodes_from_which_kube_scheduler_keeps_it():
    """Other nodes lack GPUs, so its message names these too: any cluster has nodes without GPUs."""
    nodes = [node("n", 2), node("m", 2), node("cpu", 0)]
    barred = [replace(foreign(1), name=f"pod-{number}", barred_nodes=2) for number in range(3)]
    planned = decide(nodes, [job("next", low=4)], barred)
    assert planned.actions == (Admit(job="next", gpu_type="a"),)
    stale = [replace(pod, barred_nodes=1) for pod in barred[:1]]
    planned = decide(nodes, [job("next", low=1), job("second", low=3)], stale)
    assert [action.job for action in planned.actions] == ["next"], "one of the two is its own, nobody knows which"


def test_lent_gpus_are_reclaimed_for_a_pod_only_where_kube_scheduler_could_bind_it():
    """That is not where GPUs are free as it is."""
    first, second = trains("first", extra=2, priority=1), trains("second", extra=3, high=4)
    workers = [*workers_of(first, "full"), *workers_of(second, "open")]
    nodes = [node("full", 3), node("open", 5)]
    busy = [replace(each, granted_at=NOW, changed_at=NOW) for each in (first, second)]
    planned = decide(nodes, busy, [*workers, replace(foreign(1), barred_nodes=1)])
    notice = asked_back("first", 1)
    assert planned.actions == (notice,)


@pytest.mark.parametrize("state", [PENDING, RUNNING, TERMINATING])
def test_a_worker_holds_its_gpu_until_it_is_gone(state):
    ended = replace(trains("ended", high=1), finished=True)
    assert decide([node("n", 1)], [ended, job("next")], workers_of(ended, "n", state)).actions == ()
    assert decide([node("n", 1)], [ended, job("next")]).actions == (Admit(job="next", gpu_type="a"),)


@pytest.mark.parametrize("unfit", [{"ready": False}, {"schedulable": False}, {"departing": 1, "departs_at": 2000.0}])
def test_nodes_that_are_not_fit_offer_nothing(unfit):
    assert decide([node("n", 1, **unfit)], [job("one")]).actions == ()


def test_a_base_worker_that_is_gone_takes_a_lent_gpu():
    hurt, lucky = trains("hurt", high=1), trains("lucky", extra=1)
    planned = decide([node("n", 2)], [hurt, lucky], workers_of(lucky, "n"))
    assert planned.actions == (asked_back("lucky", 0),)


def test_a_running_job_whose_gpu_is_gone_for_good_waits_again():
    hurt = trains("hurt", low=2, high=2)
    planned = decide([node("n", 1)], [hurt], workers_of(hurt, "n")[:1])
    assert planned.actions == (Requeue(job="hurt", reason=Reason.GPU_LOST),)
    evaluates = replace(hurt, evaluating=True)
    assert decide([node("n", 1)], [evaluates], workers_of(hurt, "n")[:1]).actions == (), "its leader is about to end"


@pytest.mark.parametrize(
    ("terms", "facts", "reason"),
    [
        ({"gpu_seconds_budget": 100.0}, {"gpu_seconds_used": 100.0}, Reason.GPU_BUDGET_EXHAUSTED),
        ({"suspend": True}, {}, Reason.SUSPENDED),
    ],
)
def test_a_job_that_is_stopped_has_time_though_it_lacks_a_gpu(terms, facts, reason):
    hurt = trains("hurt", low=2, high=2, **facts)
    hurt = replace(hurt, terms=replace(hurt.terms, **terms))
    (stop,) = decide([node("n", 1)], [hurt], workers_of(hurt, "n")[:1]).actions
    assert (type(stop), stop.reason) == (Stop, reason)


def test_a_job_that_is_stopped_is_asked_for_nothing_else():
    less = trains("less", extra=2)
    less = replace(less, terms=replace(less.terms, suspend=True, max_replicas=2))
    (stop,) = decide([node("n", 3)], [less], workers_of(less, "n")).actions
    assert type(stop) is Stop


# ---- extra GPUs


def test_spare_gpus_are_shared_by_weight_up_to_the_maximum():
    low, high, small = trains("low", high=9), trains("high", priority=1, high=9), trains("small", priority=2, high=2)
    workers = [worker for each in (low, high, small) for worker in workers_of(each, "n")]
    planned = decide([node("n", 10)], [low, high, small], workers)
    assert planned.actions == (
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
        (
            {"generation": 2, "reclaim": Reclaim(extra=0, deadline=NOW + 9, reason=Reason.NEEDED_BY_OTHER_JOB)},
            Reason.RECLAIM_PENDING,
        ),
    ],
)
def test_nothing_is_lent_to_a_job_that_cannot_use_it(changes, reason):
    one = trains("one", **changes)
    planned = decide([node("n", 4)], [one], workers_of(one, "n"))
    assert planned.actions == ()
    assert refused(planned) == {"one": reason}


def test_the_plan_says_when_a_job_is_lent_gpus_again_that_lost_its_extra_workers():
    one = trains("one", lend_after=NOW + 90)
    assert decide([node("n", 4)], [one], workers_of(one, "n")).wake_at == NOW + 90
    late = replace(one, lend_after=NOW)
    assert decide([node("n", 4)], [late], workers_of(late, "n")).actions == (GrantExtra(job="one", extra=3),)


def test_the_plan_says_when_a_cooldown_ends():
    one = trains("one", changed_at=NOW - 20)
    assert decide([node("n", 4)], [one], workers_of(one, "n")).wake_at == NOW + 40


def test_a_promise_counts_until_it_is_seen_or_expires():
    lent = trains("lent", extra=1, high=2)
    base = workers_of(lent, "n")[:1]
    promise = Promise(job="lent", extra=1, expires_at=NOW + 5)
    planned = decide([node("n", 2)], [lent, job("next")], base, [promise])
    assert planned.actions == (asked_back("lent", 0),), (
        "the GPU is free and promised, so it is not granted but asked back"
    )
    told = replace(lent, generation=2, reclaim=Reclaim(extra=0, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB))
    assert decide([node("n", 2)], [told, job("next")], base, [promise]).actions == ()
    planned = decide([node("n", 2)], [lent], base, [replace(promise, expires_at=NOW)])
    assert planned.actions == (ReleaseExtra(job="lent", extra=0, forced=True, reason=Reason.UNSCHEDULABLE),)
    planned = decide([node("n", 2)], [lent], base)
    assert planned.actions == (ReleaseExtra(job="lent", extra=0, forced=True, reason=Reason.GPU_LOST),)


def test_a_waiting_job_has_lent_gpus_reclaimed_from_the_last_in_line():
    first, last = trains("first", extra=1, priority=1, high=2), trains("last", extra=2)
    workers = [*workers_of(first, "n"), *workers_of(last, "n")]
    planned = decide([node("n", 5)], [first, last, job("next")], workers)
    assert planned.actions == (asked_back("last", 1),)
    assert planned.wake_at == NOW + 30


def test_nothing_is_reclaimed_where_it_would_not_be_enough():
    lent = trains("lent", extra=1)
    other = trains("other", low=2, high=2)
    workers = [*workers_of(lent, "n"), *workers_of(other, "n")]
    assert decide([node("n", 4)], [lent, other, job("wide", low=2)], workers).actions == ()


def test_free_gpus_that_a_waiting_gang_needs_are_not_lent_meanwhile():
    giving = trains(
        "giving",
        extra=1,
        high=2,
        generation=3,
        reclaim=Reclaim(extra=0, deadline=NOW + 5, reason=Reason.NEEDED_BY_OTHER_JOB),
    )
    greedy = trains("greedy", priority=1)
    workers = [*workers_of(giving, "n"), *workers_of(greedy, "n")]
    planned = decide([node("n", 4)], [giving, greedy, job("gang", low=2)], workers)
    assert planned.actions == ()
    assert refused(planned)["greedy"] is Reason.NO_FREE_GPU
    planned = decide([node("n", 4)], [giving, greedy, job("pair", gpus_per_worker=2)], workers)
    assert planned.actions == (), "the free one is half of what a worker waits for"
    planned = decide([node("n", 4)], [giving, greedy, job("vast", low=4)], workers)
    assert planned.actions == (GrantExtra(job="greedy", extra=1),), "what comes back is not enough for that one"


def test_only_what_is_on_the_right_node_is_reclaimed():
    wrong, right = trains("wrong", extra=1), trains("right", extra=2, priority=1)
    workers = [*workers_of(wrong, "n"), *workers_of(right, "m")]
    planned = decide([node("n", 2), node("m", 3)], [wrong, right, job("pair", gpus_per_worker=2)], workers)
    assert planned.actions == (asked_back("right", 0),)


def test_a_pod_of_others_gets_lent_gpus_before_anyone_is_evicted():
    lent = trains("lent", extra=2)
    planned = decide([node("n", 3)], [lent], [*workers_of(lent, "n"), foreign(2)])
    assert planned.actions == (asked_back("lent", 0),)
    too_large = decide([node("n", 3)], [lent], [*workers_of(lent, "n"), foreign(4)])
    assert too_large.actions == (), "no reclaim makes room for it"


def test_a_free_gpu_that_a_pod_of_others_waits_for_is_not_lent():
    one = trains("one")
    assert decide([node("n", 2)], [one], [*workers_of(one, "n"), foreign(1)]).actions == ()


def test_a_job_that_has_less_is_given_all_that_is_due_to_it_by_one_notice():
    rich, poor = trains("rich", extra=4, high=9), trains("poor", high=9)
    planned = decide([node("n", 6)], [rich, poor], [*workers_of(rich, "n"), *workers_of(poor, "n")])
    assert planned.actions == (asked_back("rich", 2),)
    assert refused(planned)["poor"] is Reason.NO_FREE_GPU


def test_who_is_granted_free_gpus_asks_for_others_only_after_its_cooldown():
    rich, poor = trains("rich", extra=6, high=9), trains("poor", high=9)
    workers = [*workers_of(rich, "n"), *workers_of(poor, "n")]
    assert decide([node("n", 9)], [rich, poor], workers).actions == (GrantExtra(job="poor", extra=1),)
    hasty = trains("hasty", high=9, cooldown_seconds=0.0)
    workers = [*workers_of(rich, "n"), *workers_of(hasty, "n")]
    assert decide([node("n", 9)], [rich, hasty], workers).actions == (
        GrantExtra(job="hasty", extra=1),
        asked_back("rich", 4),
    )


def test_who_has_just_changed_is_spared_unless_it_must_change_anyway():
    rich, poor = trains("rich", extra=4, high=9, changed_at=NOW - 10), trains("poor", high=9)
    workers = [*workers_of(rich, "n"), *workers_of(poor, "n")]
    planned = decide([node("n", 6)], [rich, poor], workers)
    assert (planned.actions, planned.wake_at) == ((), NOW + 50)
    planned = decide([node("n", 6)], [rich, poor], [*workers, foreign(1)])
    assert planned.actions == (asked_back("rich", 2),)
    young = replace(rich, granted_at=NOW - 10)
    planned = decide([node("n", 6)], [young, poor], [*workers, foreign(1)])
    assert planned.actions == (asked_back("rich", 3),)


def test_a_worker_of_many_gpus_makes_as_few_jobs_as_can_be_give_back():
    holders = [trains(f"holder{number}", extra=4, high=9) for number in range(2)]
    wide = trains("wide", high=3, gpus_per_worker=2)
    workers = [worker for each, on in zip(holders, ("m", "n"), strict=True) for worker in workers_of(each, on)]
    planned = decide([node("m", 5), node("n", 5), node("o", 2)], [*holders, wide], [*workers, *workers_of(wide, "o")])
    assert planned.actions == (asked_back("holder1", 2),)


def test_a_gpu_moves_to_who_has_as_little_at_a_higher_priority_after_the_minimum_runtime():
    holder = trains("holder", extra=1, high=2)
    workers = workers_of(holder, "n")
    equal, higher = trains("equal"), trains("higher", priority=1, high=2)
    planned = decide([node("n", 3)], [holder, equal], [*workers, *workers_of(equal, "n")])
    assert planned.actions == ()
    planned = decide([node("n", 3)], [holder, higher], [*workers, *workers_of(higher, "n")])
    assert planned.actions == (asked_back("holder", 0),)
    young = replace(holder, granted_at=NOW - 10)
    planned = decide([node("n", 3)], [young, higher], [*workers, *workers_of(higher, "n")])
    assert planned.actions == ()
    assert planned.wake_at == NOW + 50


def test_gpus_on_their_way_back_are_reclaimed_only_once():
    giving = trains(
        "giving", extra=2, generation=3, reclaim=Reclaim(extra=1, deadline=NOW + 5, reason=Reason.NEEDED_BY_OTHER_JOB)
    )
    other = trains("other", extra=1)
    planned = decide([node("n", 5)], [giving, other, job("next")], [*workers_of(giving, "n"), *workers_of(other, "n")])
    assert planned.actions == ()
    assert refused(planned)["giving"] is Reason.RECLAIM_PENDING


@pytest.mark.parametrize(
    ("leaves_in", "waits"), [(30, True), (-59, True), (-61, False), (599, True), (601, False), (10**9, False)]
)
def test_a_pod_whose_grace_period_is_a_year_or_long_over_is_not_waited_for(leaves_in, waits):
    """Whoever deletes a pod says for how long it may hold its GPUs; others were let wait for that."""
    holder, leaves_at = trains("holder", extra=1, high=2), NOW + leaves_in
    stays = replace(foreign(1, "n"), state=TERMINATING, leaves_at=leaves_at, grace_seconds=10**9)
    planned = decide([node("n", 3)], [holder, job("next")], [*workers_of(holder, "n"), stays])
    asked = asked_back("holder", 0)
    assert planned.actions == (() if waits else (asked,))
    if waits:
        assert planned.wake_at is not None
        assert NOW < planned.wake_at <= leaves_at + 60, "it is decided again once the pod hangs"
    else:  # by a clock that is far ahead of ours, the end of a short grace period
        short = replace(stays, grace_seconds=30)
        planned = decide([node("n", 3)], [holder, job("next")], [*workers_of(holder, "n"), short])
        assert planned.actions == (() if leaves_in > 0 else (asked,))


@pytest.mark.parametrize(("leaves_in", "waits"), [(30, True), (-59, True), (-61, False)])
def test_a_worker_of_a_job_that_has_stopped_and_hangs_is_not_waited_for(leaves_in, waits):
    holder, stopped = trains("holder", extra=1, high=2), replace(job("stopped"), finished=True)
    hanging = replace(
        foreign(1, "n"), job="stopped", role=WorkerRole.BASE, state=TERMINATING, leaves_at=NOW + leaves_in
    )
    planned = decide([node("n", 3)], [holder, stopped, job("next")], [*workers_of(holder, "n"), hanging])
    asked = asked_back("holder", 0)
    assert planned.actions == (() if waits else (asked,))


def test_what_is_acknowledged_is_released_and_what_is_overdue_is_taken():
    reclaim = Reclaim(extra=0, deadline=NOW + 5, reason=Reason.NEEDED_BY_OTHER_JOB)
    giving = trains("giving", extra=1, generation=3, acknowledged_generation=2, reclaim=reclaim)
    workers = workers_of(giving, "n")
    assert decide([node("n", 2)], [giving], workers).actions == ()
    done = replace(giving, acknowledged_generation=3)
    assert decide([node("n", 2)], [done], workers).actions == (
        ReleaseExtra(job="giving", extra=0, forced=False, reason=Reason.RECLAIM_ACKNOWLEDGED),
    )
    assert decide([node("n", 2)], [giving], workers, now=NOW + 5).actions == (
        ReleaseExtra(job="giving", extra=0, forced=True, reason=Reason.RECLAIM_FORCED),
    )


def test_an_announced_departure_is_a_notice_that_ends_with_it():
    lent = trains("lent", extra=2)
    going = node("n", 3, departing=1, departs_at=NOW + 12)
    assert decide([going], [lent], workers_of(lent, "n")).actions == (
        NoticeReclaim(job="lent", extra=1, deadline=NOW + 12, reason=Reason.GPU_LOST),
    )


# ---- ends


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        (
            {"ended": Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)},
            Finish(job="one", reason=Reason.BUDGET_EXHAUSTED),
        ),
        (
            {"ended": Ended(reason=Reason.LOSS_NOT_FINITE, failed=True, message="step 7")},
            Fail(job="one", reason=Reason.LOSS_NOT_FINITE, message="step 7"),
        ),
        ({"used_seconds": 510.0}, Finish(job="one", reason=Reason.BUDGET_ENFORCED)),
        (
            {"used_seconds": 510.0, "failures": 1, "last_failure": "exit code 7", "leader_running": False},
            Fail(
                job="one",
                reason=Reason.TRAINER_FAILED,
                message="its time budget is used up, and its trainer has failed: exit code 7",
            ),
        ),
        ({"used_seconds": 600.0, "evaluating": True}, Finish(job="one", reason=Reason.BUDGET_ENFORCED)),
        (
            {"failures": 4, "last_failure": "exit code 1"},
            Fail(job="one", reason=Reason.CRASH_LOOP, message="4 failures, backoffLimit 3; the last: exit code 1"),
        ),
        (
            {"preemptions": 3, "max_preemptions": 2},
            Fail(job="one", reason=Reason.TOO_MANY_PREEMPTIONS, message="3 preemptions, maxPreemptions 2"),
        ),
        (
            {"preemptions": 2, "max_preemptions": 2, "used_seconds": 510.0},
            Finish(job="one", reason=Reason.BUDGET_ENFORCED),
        ),
        (
            {"trained": False, "training": False, "admitted_at": NOW - 60, "pre_running_deadline_seconds": 60.0},
            Fail(job="one", reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED, message="60 s after admission"),
        ),
        (
            {"leader_running": False, "down_since": NOW - 60, "pre_running_deadline_seconds": 60.0},
            Requeue(
                job="one",
                reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED,
                message="no leader trains 60 s after the last one ended",
            ),
        ),
        (
            {
                "leader_running": False,
                "down_since": NOW - 61,
                "pre_running_deadline_seconds": 60.0,
                "trouble": Reason.IMAGE_PULL_FAILED,
                "last_failure": "ImagePullBackOff",
            },
            Requeue(
                job="one",
                reason=Reason.IMAGE_PULL_FAILED,
                message="no leader trains 61 s after the last one ended: ImagePullBackOff",
            ),
        ),
        (
            {
                **dict.fromkeys(("trained", "training", "leader_running"), False),
                "admitted_at": NOW - 8,
                "refused_since": NOW - 8,
                "pre_running_deadline_seconds": 8.0,
                "trouble": Reason.POD_REJECTED,
                "last_failure": "denied",
            },
            Requeue(job="one", reason=Reason.POD_REJECTED, message="denied"),
        ),
        ({"suspend": True}, Stop(job="one", reason=Reason.SUSPENDED, deadline=NOW + 30)),
        (
            {"gpu_seconds_budget": 50.0, "gpu_seconds_used": 50.0},
            Stop(job="one", reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW + 30),
        ),
        (
            {"stopping": Stopping(reason=Reason.SUSPENDED, deadline=NOW + 9), "leader_running": False},
            Requeue(job="one", reason=Reason.SUSPENDED),
        ),
        ({"stopping": Stopping(reason=Reason.SUSPENDED, deadline=NOW)}, Requeue(job="one", reason=Reason.SUSPENDED)),
        (
            {"stopping": Stopping(reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW)},
            Finish(job="one", reason=Reason.GPU_BUDGET_EXHAUSTED),
        ),
        (
            {"stopping": Stopping(reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW - 60), "evaluating": True},
            Finish(job="one", reason=Reason.GPU_BUDGET_EXHAUSTED),
        ),
        (
            {"used_seconds": 510.0, "if_forced": Ended(reason=Reason.BUDGET_ENFORCED, failed=True, message="step 7")},
            Fail(job="one", reason=Reason.BUDGET_ENFORCED, message="step 7"),
        ),
        (
            {"used_seconds": 510.0, "if_forced": Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False)},
            Finish(job="one", reason=Reason.BUDGET_EXHAUSTED),
        ),
        (
            {
                "stopping": Stopping(reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW),
                "if_forced": Ended(reason=Reason.BUDGET_ENFORCED, failed=True, message="step 7"),
            },
            Fail(job="one", reason=Reason.BUDGET_ENFORCED, message="step 7"),
        ),
        ({"used_seconds": 590.0, "budget_end_seconds": 580.0}, Finish(job="one", reason=Reason.BUDGET_ENFORCED)),
        ({"used_seconds": 510.0, "budget_end_seconds": 80.0}, Finish(job="one", reason=Reason.BUDGET_ENFORCED)),
    ],
)
def test_jobs_end_for_a_reason(changes, action):
    one = trains("one", high=1, **changes)
    assert decide([node("n", 1)], [one], workers_of(one, "n")).actions == (action,)


def test_a_leader_that_starts_again_has_as_long_as_the_first():
    one = trains("one", high=1, leader_running=False, down_since=NOW - 59, pre_running_deadline_seconds=60.0)
    planned = decide([node("n", 1)], [one], workers_of(one, "n"))
    assert (planned.actions, planned.wake_at) == ((), NOW + 1)


def test_an_overrun_wakes_the_loop_in_time():
    one = trains("one", high=1, used_seconds=490.0)
    assert decide([node("n", 1)], [one], workers_of(one, "n")).wake_at == NOW + 20


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        ({"used_seconds": 510.0}, 60),
        ({"used_seconds": 600.0, "budget_end_seconds": 580.0}, 50),
        ({"stopping": Stopping(reason=Reason.GPU_BUDGET_EXHAUSTED, deadline=NOW - 20)}, 40),
    ],
)
def test_a_leader_that_announced_its_last_evaluation_is_waited_for(changes, until):
    one = trains("one", high=1, evaluating=True, **changes)
    planned = decide([node("n", 1)], [one], workers_of(one, "n"))
    assert (planned.actions, planned.wake_at) == ((), NOW + until)


def test_a_plan_leaves_nothing_to_the_garbage_collector():
    # The operator collects rarely: with 1,000 jobs, cycles of objects took 700 MB until it did.
    jobs = [trains(f"run-{number}", extra=1, high=2) for number in range(3)] + [job("wait", low=2, priority=1)]
    nodes = [node(f"n{number}", 2) for number in range(3)]
    workers = [worker for number, one in enumerate(jobs[:3]) for worker in workers_of(one, f"n{number}")]
    gc.collect()
    gc.disable()
    try:
        planned = decide(nodes, jobs, workers)
        left = gc.collect()
    finally:
        gc.enable()
    assert planned.actions
    assert left == 0
