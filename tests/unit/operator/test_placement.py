"""Where workers will run: the planner chooses nodes, keeps to them, and gives way to kube-scheduler."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import REFUSALS, JobTerms, Placement, Promise, Reclaim, WorkerRole, WorkerState
from espalier_operator.model.actions import GrantExtra, NoticeReclaim, Replace, Requeue
from operator_world import facts
from operator_world.cluster import Cluster
from operator_world.cycles import step
from operator_world.facts import FAIR, NOW, admitted, decide, job, kinds, starts, worker

EXTRA = WorkerRole.EXTRA
trains = partial(facts.trains, granted_at=None, changed_at=None)
admitted_now, waits_since = partial(job, admitted_at=NOW, gpu_type="a"), partial(job, admitted_at=0.0, gpu_type="a")
MADE_AGAIN = Replace(job="a", workers=(0,), pinned=True, reason=Reason.GPU_LOST)


def test_a_worker_that_is_not_seen_yet_keeps_its_node() -> None:
    """Also where another would be fuller: its pod may have been made in the meantime."""
    given = {"n": 1, "m": 4}, admitted_now("a")
    assert decide(*given).placements["a"].base == {0: "n"}
    assert decide(*given, placements={"a": Placement(base={0: "m"})}).placements["a"].base == {0: "m"}
    promised = trains("b", 1, 2, extra=1), worker("b", node="n"), Promise(job="b", extra=1, expires_at=NOW + 9)
    kept = decide({"n": 2, "m": 4}, *promised, placements={"b": Placement(extra=("m",))})
    assert kept.placements["b"].extra == ("m",)


def test_a_worker_that_waits_for_its_node_holds_its_gpu() -> None:
    """kube-scheduler cannot bind it elsewhere, so that is free for others."""
    planned = decide({"n": 1, "m": 1}, admitted_now("a"), worker("a", pinned_to="m"), job("b"))
    assert planned.actions == starts("b")
    assert planned.placements == {"b": Placement(base={0: "n"})}


def test_a_worker_whose_node_has_no_room_is_made_again_elsewhere() -> None:
    """Its job is not sent back to the queue, and nothing is counted against it."""
    given = admitted_now("a"), worker("a", pinned_to="m"), worker("other", node="m")
    planned = decide({"n": 1, "m": 1}, *given)
    assert planned.actions == (MADE_AGAIN,)
    assert planned.placements["a"].base == {0: "n"}
    assert decide({"m": 1}, *given).actions == (Requeue(job="a", reason=Reason.NO_FREE_GPU),)


def test_a_worker_whose_node_is_still_the_right_one_is_left_there() -> None:
    """There are none elsewhere, and those lent there come back in two parts, of which one is on its way."""
    waits = admitted_now("a", gpus_per_worker=2), worker("a", pinned_to="m", gpus=2)
    back = Reclaim(extra=1, deadline=NOW + 9, reason=Reason.NEEDED_BY_OTHER_JOB)
    holds = [worker("b", node="n"), *(worker("b", index, role=EXTRA, node="m") for index in range(2))]
    planned = decide({"n": 1, "m": 2}, *waits, trains("b", 1, 3, extra=2, generation=3, reclaim=back), holds)
    assert planned.actions == ()
    assert planned.placements["a"].base == {0: "m"}


def test_an_extra_worker_whose_node_has_no_room_is_made_again_elsewhere() -> None:
    lent, promise = worker("a", role=EXTRA, pinned_to="gone"), Promise(job="a", extra=1, expires_at=NOW + 9)
    planned = decide({"n": 1, "m": 1}, trains("a", 1, 2, extra=1), worker("a", node="n"), lent, promise)
    assert planned.actions == ()
    assert planned.placements["a"] == Placement(extra=("m",), moved=frozenset({lent.name}))


def test_an_extra_worker_that_moves_is_not_given_up() -> None:
    """It is promised until it is bound: it was seen, and will be seen again elsewhere."""
    cluster = Cluster()
    cluster.nodes = {name: facts.node(name) for name in "nm"}
    cluster.submit("a", JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=500.0))
    step(cluster, FAIR)
    assert step(cluster, FAIR, binds=False) == [GrantExtra(job="a", extra=1)]
    (lent,) = (each for each in cluster.workers.values() if each.role is EXTRA)
    cluster.lose_node(lent.pinned_to or "")
    cluster.nodes["o"] = facts.node("o")
    assert step(cluster, FAIR, binds=False) == []
    assert cluster.placements["a"] == Placement(extra=("o",), moved=frozenset({lent.name}))
    assert step(cluster, FAIR) == step(cluster, FAIR) == []
    assert cluster.workers[lent.name].node == "o"


def test_kube_scheduler_chooses_where_it_refuses_the_chosen_node() -> None:
    """It knows of volumes and other pods; where it finds no node either the job waits again."""
    planned = decide({"n": 2}, waits_since("a", refused_since=NOW - 5), worker("a", pinned_to="n"))
    assert planned.actions == (Replace(job="a", workers=(0,), pinned=False, reason=Reason.UNSCHEDULABLE),)
    early = decide({"n": 2}, waits_since("a", refused_since=NOW - 4), worker("a", pinned_to="n"))
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    again = decide({"n": 2}, waits_since("a", refused_since=NOW - 5, pinned=False))
    assert (again.actions, again.placements["a"].base) == ((), {0: None})
    late = waits_since("a", refused_since=NOW - 60, pinned=False)
    assert kinds(decide({"n": 2}, late, worker("a"))) == [Requeue]


def test_a_job_whose_pods_were_rejected_waits_with_that_reason_while_it_is_held_back() -> None:
    waits = decide({"n": 1}, job("a", hold_until=NOW + 60, trouble=Reason.POD_REJECTED))
    assert (waits.actions, waits.refusals["a"].reason, waits.wake_at) == ((), Reason.POD_REJECTED, NOW + 60)


def test_a_worker_keeps_its_chosen_node_while_a_quota_refuses_another() -> None:
    refused = waits_since("a", 2, refused_since=NOW - 10, trouble=Reason.POD_REJECTED)
    planned = decide({"n": 2}, refused, worker("a", pinned_to="n"))
    assert (planned.actions, planned.wake_at) == ((), NOW + 10)


@pytest.mark.parametrize("trouble", sorted(REFUSALS - {Reason.UNSCHEDULABLE, Reason.VOLUME_UNAVAILABLE}))
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("is_scarce", [True, False])
def test_what_others_refuse_gives_its_gpus_back_within_seconds(trouble: Reason, bound: bool, is_scarce: bool) -> None:
    """Whether some of the workers have GPUs, or wait for others; one whose leader trains is given more time."""
    workers = [worker("a", node="n")] if bound else []
    workers += [worker("b", node="n", state=WorkerState.TERMINATING)] if is_scarce else []
    refused = waits_since("a", 2, refused_since=NOW - 20, trouble=trouble, last_failure="denied")
    assert decide({"n": 2}, refused, workers).actions == (Requeue(job="a", reason=trouble, message="denied"),)
    early = decide({"n": 2}, replace(refused, refused_since=NOW - 19), workers)
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    trained = decide({"n": 2}, replace(refused, trained=True, leader_running=True), workers)
    assert (trained.actions, trained.wake_at) == ((), NOW + 40)


def test_a_worker_with_scheduling_gates_holds_no_gpus() -> None:
    """Others start on them; when the gates are gone it gets what is free, or its job waits again."""
    gated = waits_since("a", 2, gated=True, trouble=Reason.SCHEDULING_GATED)
    pods = [worker("a", index, pinned_to="n", state=WorkerState.GATED) for index in (0, 1)]
    assert admitted(decide({"n": 2}, gated, pods, job("b", 2, at=NOW))) == ["b"]
    free = replace(gated, gated=False, trouble=None), [replace(pod, state=WorkerState.PENDING) for pod in pods]
    assert decide({"n": 2}, *free).actions == ()
    taken = waits_since("b", 2), [worker("b", index, node="n") for index in (0, 1)]
    assert decide({"n": 2}, *free, *taken).actions == (Requeue(job="a", reason=Reason.NO_FREE_GPU),)


def test_a_job_without_gpus_runs_anywhere() -> None:
    assert decide(job("a", gpus_per_worker=0)).placements == {"a": Placement(base={0: None})}


@pytest.mark.parametrize("pin", ["n", "gone"])
def test_a_worker_whose_place_its_job_is_lent_is_made_again_once_that_is_given_back(pin: str) -> None:
    """Each plan made it again for the same node, and never asked for what is lent; or made it again before the end of
    the notice, where its node was gone.
    """
    lent, workers = trains("a", 1, 2, extra=1), (worker("a", pinned_to=pin), worker("a", role=EXTRA, node="n"))
    (notice,) = decide({"n": 1}, lent, *workers).actions
    assert (type(notice), notice.job) == (NoticeReclaim, "a")
    if pin == "gone":
        asked = replace(lent, reclaim=Reclaim(extra=0, deadline=notice.deadline, reason=notice.reason))
        assert decide({"n": 1}, asked, *workers).actions == ()
        assert decide({"n": 1, "m": 1}, asked, *workers).actions == (MADE_AGAIN,)
        assert decide({"n": 1}, replace(lent, extra=0), workers[0]).actions == (MADE_AGAIN,)
