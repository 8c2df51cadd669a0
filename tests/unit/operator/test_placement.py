"""Where workers will run: the planner chooses nodes, keeps to them, and gives way to kube-scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    REFUSALS,
    JobFacts,
    JobTerms,
    Node,
    Placement,
    Promise,
    Reclaim,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import Admit, GrantExtra, NoticeReclaim, Plan, Replace, Requeue
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.cluster import Cluster

NOW = 1000.0
TRAINS = {"admitted_at": 0.0, "gpu_type": "a", "leader_running": True, "has_reported": True, "training": True}


def job(key: str, *, low: int = 1, high: int | None = None, **facts: object) -> JobFacts:
    terms = JobTerms(min_replicas=low, max_replicas=high or low, time_budget_seconds=500.0)
    return JobFacts(**{"key": key, "terms": terms, "submitted_at": 0.0, **facts})  # type: ignore[arg-type]


def worker(
    key: str,
    index: int = 0,
    *,
    role: WorkerRole = WorkerRole.BASE,
    node: str | None = None,
    pin: str | None = None,
    state: WorkerState | None = None,
) -> Worker:
    state = state or (WorkerState.PENDING if node is None else WorkerState.RUNNING)
    name = f"{key}-{role}-{index}"
    return Worker(name=name, job=key, role=role, index=index, node=node, gpus=1, state=state, pinned_to=pin)


def decide(sizes: dict[str, int], *facts: object, placements: dict[str, Placement] | None = None) -> Plan:
    def of(kind: type) -> tuple[object, ...]:
        return tuple(fact for fact in facts if isinstance(fact, kind))

    snapshot = Snapshot(
        taken_at=NOW,
        nodes=tuple(Node(name=name, gpu_type="a", allocatable=gpus) for name, gpus in sizes.items()),
        workers=of(Worker),  # type: ignore[arg-type]
        promises=of(Promise),  # type: ignore[arg-type]
        jobs=of(JobFacts),  # type: ignore[arg-type]
        placements=placements or {},
    )
    return plan(snapshot, FairPolicy(), NOW)


def test_an_admitted_gang_gets_nodes() -> None:
    planned = decide({"n": 1, "m": 1}, job("a", low=2))
    assert planned.actions == (Admit(job="a", gpu_type="a"),)
    assert sorted(planned.placements["a"].base.values()) == ["m", "n"]
    assert sorted(planned.placements["a"].base) == [0, 1]


def test_a_granted_worker_gets_a_node() -> None:
    grown = decide({"n": 1, "m": 1}, job("a", high=2, **TRAINS), worker("a", node="m"))
    assert grown.actions == (GrantExtra(job="a", extra=1),)
    assert grown.placements["a"].extra == ("n",)


def test_a_worker_that_is_not_seen_yet_keeps_its_node() -> None:
    """Also where another would be fuller: its pod may have been made in the meantime."""
    sizes, admitted = {"n": 1, "m": 4}, job("a", admitted_at=NOW, gpu_type="a")
    assert decide(sizes, admitted).placements["a"].base == {0: "n"}
    before = {"a": Placement(base={0: "m"})}
    assert decide(sizes, admitted, placements=before).placements["a"].base == {0: "m"}
    promised = job("b", high=2, extra=1, **TRAINS), worker("b", node="n"), Promise(job="b", extra=1, expires_at=NOW + 9)
    kept = decide({"n": 2, "m": 4}, *promised, placements={"b": Placement(extra=("m",))})
    assert kept.placements["b"].extra == ("m",)


def test_a_worker_that_waits_for_its_node_holds_its_gpu() -> None:
    """kube-scheduler cannot bind it elsewhere, so that is free for others."""
    waits = job("a", admitted_at=NOW, gpu_type="a"), worker("a", pin="m")
    planned = decide({"n": 1, "m": 1}, *waits, job("b"))
    assert planned.actions == (Admit(job="b", gpu_type="a"),)
    assert planned.placements == {"b": Placement(base={0: "n"})}


def test_a_worker_whose_node_has_no_room_is_made_again_elsewhere() -> None:
    """Its job is not sent back to the queue, and nothing is counted against it."""
    facts = job("a", admitted_at=NOW, gpu_type="a"), worker("a", pin="m"), worker("other", node="m")
    planned = decide({"n": 1, "m": 1}, *facts)
    assert planned.actions == (Replace(job="a", workers=(0,), pinned=True, reason=Reason.GPU_LOST),)
    assert planned.placements["a"].base == {0: "n"}
    assert decide({"m": 1}, *facts).actions == (Requeue(job="a", reason=Reason.NO_FREE_GPU),)


def test_a_worker_whose_node_is_still_the_right_one_is_left_there() -> None:
    """There are none elsewhere, and those lent there come back in two parts, of which one is on its way."""
    large = JobTerms(min_replicas=1, max_replicas=1, gpus_per_worker=2, time_budget_seconds=500.0)
    waits = replace(job("a", admitted_at=NOW, gpu_type="a"), terms=large), replace(worker("a", pin="m"), gpus=2)
    back = Reclaim(extra=1, deadline=NOW + 9, reason=Reason.NEEDED_BY_OTHER_JOB)
    holds = [worker("b", node="n"), *(worker("b", index, role=WorkerRole.EXTRA, node="m") for index in range(2))]
    facts = *waits, job("b", high=3, extra=2, generation=3, reclaim=back, **TRAINS), *holds
    planned = decide({"n": 1, "m": 2}, *facts)
    assert planned.actions == ()
    assert planned.placements["a"].base == {0: "m"}


def test_an_extra_worker_whose_node_has_no_room_is_made_again_elsewhere() -> None:
    lent = worker("a", role=WorkerRole.EXTRA, pin="gone")
    promise = Promise(job="a", extra=1, expires_at=NOW + 9)
    planned = decide({"n": 1, "m": 1}, job("a", high=2, extra=1, **TRAINS), worker("a", node="n"), lent, promise)
    assert planned.actions == ()
    assert planned.placements["a"] == Placement(extra=("m",), moved=frozenset({lent.name}))


def test_an_extra_worker_that_moves_is_not_given_up() -> None:
    """It is promised until it is bound: it was seen, and will be seen again elsewhere."""
    cluster = Cluster()
    cluster.nodes = {name: Node(name=name, gpu_type="a", allocatable=1) for name in "nm"}
    cluster.submit("a", JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=500.0))

    def tick() -> Plan:
        planned = plan(cluster.snapshot(), FairPolicy(), cluster.now)
        cluster.place(planned)
        for action in planned.actions:
            cluster.apply(action)
        return planned

    tick()
    cluster.reveal()
    cluster.bind()
    cluster.start_leaders()
    assert tick().actions == (GrantExtra(job="a", extra=1),)
    cluster.reveal()
    (lent,) = (each for each in cluster.workers.values() if each.role is WorkerRole.EXTRA)
    cluster.lose_node(lent.pinned_to or "")
    cluster.nodes["o"] = Node(name="o", gpu_type="a", allocatable=1)
    assert tick().placements["a"] == Placement(extra=("o",), moved=frozenset({lent.name}))
    assert tick().actions == ()
    cluster.reveal()
    cluster.bind()
    assert tick().actions == ()
    assert cluster.workers[lent.name].node == "o"


def test_kube_scheduler_chooses_where_it_refuses_the_chosen_node() -> None:
    """It knows of volumes and other pods; where it finds no node either the job waits again."""
    refused = {"admitted_at": 0.0, "gpu_type": "a", "refused_since": NOW - 5}
    planned = decide({"n": 2}, job("a", **refused), worker("a", pin="n"))
    assert planned.actions == (Replace(job="a", workers=(0,), pinned=False, reason=Reason.UNSCHEDULABLE),)
    early = decide({"n": 2}, job("a", **{**refused, "refused_since": NOW - 4}), worker("a", pin="n"))
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    again = decide({"n": 2}, job("a", **refused, pinned=False))
    assert (again.actions, again.placements["a"].base) == ((), {0: None})
    late = job("a", **{**refused, "refused_since": NOW - 60}, pinned=False)
    assert [type(action) for action in decide({"n": 2}, late, worker("a")).actions] == [Requeue]


def test_a_job_that_a_quota_rejects_waits_again_with_that_reason() -> None:
    rejected = {"admitted_at": 0.0, "gpu_type": "a", "refused_since": NOW - 60, "trouble": Reason.POD_REJECTED}
    (action,) = decide({"n": 1}, job("a", **rejected, last_failure="exceeded quota: none")).actions
    assert action == Requeue(job="a", reason=Reason.POD_REJECTED, message="exceeded quota: none")
    waits = decide({"n": 1}, job("a", hold_until=NOW + 60, trouble=Reason.POD_REJECTED))
    assert (waits.actions, waits.refusals["a"].reason, waits.wake_at) == ((), Reason.POD_REJECTED, NOW + 60)


def test_a_worker_keeps_its_chosen_node_while_a_quota_refuses_another() -> None:
    refused = {"admitted_at": 0.0, "gpu_type": "a", "refused_since": NOW - 10, "trouble": Reason.POD_REJECTED}
    planned = decide({"n": 2}, job("a", low=2, **refused), worker("a", pin="n"))
    assert (planned.actions, planned.wake_at) == ((), NOW + 10)


@pytest.mark.parametrize("trouble", sorted(REFUSALS - {Reason.UNSCHEDULABLE, Reason.VOLUME_UNAVAILABLE}))
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("is_scarce", [True, False])
def test_what_others_refuse_gives_its_gpus_back_within_seconds(trouble: Reason, bound: bool, is_scarce: bool) -> None:
    """Whether some of the workers have GPUs, or wait for others; one whose leader trains is given more time."""
    refused = {"admitted_at": 0.0, "gpu_type": "a", "refused_since": NOW - 20, "trouble": trouble}
    workers = (worker("a", node="n"),) if bound else ()
    others = (worker("b", node="n", state=WorkerState.TERMINATING),) if is_scarce else ()
    facts = job("a", low=2, **refused, last_failure="denied")
    assert decide({"n": 2}, facts, *workers, *others).actions == (Requeue(job="a", reason=trouble, message="denied"),)
    early = decide({"n": 2}, replace(facts, refused_since=NOW - 19), *workers, *others)
    assert (early.actions, early.wake_at) == ((), NOW + 1)
    trains = decide({"n": 2}, replace(facts, trained=True, leader_running=True), *workers, *others)
    assert (trains.actions, trains.wake_at) == ((), NOW + 40)


def test_a_worker_with_scheduling_gates_holds_no_gpus() -> None:
    """Others start on them; when the gates are gone it gets what is free, or its job waits again."""
    gated = job("a", low=2, admitted_at=0.0, gpu_type="a", gated=True, trouble=Reason.SCHEDULING_GATED)
    pods = [worker("a", index=index, pin="n", state=WorkerState.GATED) for index in (0, 1)]
    (start,) = decide({"n": 2}, gated, *pods, job("b", low=2, submitted_at=NOW)).actions
    assert (type(start), start.job) == (Admit, "b")
    free = replace(gated, gated=False, trouble=None)
    assert decide({"n": 2}, free, *(replace(pod, state=WorkerState.PENDING) for pod in pods)).actions == ()
    taken = job("b", low=2, admitted_at=0.0, gpu_type="a"), *(worker("b", index=index, node="n") for index in (0, 1))
    planned = decide({"n": 2}, free, *(replace(pod, state=WorkerState.PENDING) for pod in pods), *taken)
    assert planned.actions == (Requeue(job="a", reason=Reason.NO_FREE_GPU),)


def test_a_job_without_gpus_runs_anywhere() -> None:
    terms = JobTerms(min_replicas=1, max_replicas=1, gpus_per_worker=0, time_budget_seconds=500.0)
    planned = decide({}, JobFacts(key="a", terms=terms, submitted_at=0.0))
    assert planned.placements == {"a": Placement(base={0: None})}


def test_a_worker_whose_place_its_job_is_lent_is_made_again_once_that_is_given_back() -> None:
    """Each plan made it again for the same node, and never asked for what is lent."""
    facts = job("a", high=2, extra=1, **TRAINS)
    planned = decide({"n": 1}, facts, worker("a", pin="n"), worker("a", role=WorkerRole.EXTRA, node="n"))
    (notice,) = planned.actions
    assert (type(notice), notice.job) == (NoticeReclaim, "a")


def test_a_worker_whose_node_is_gone_is_made_again_once_its_job_has_given_back_its_loan() -> None:
    """The plan after the notice made it again, though its GPU was still lent."""
    facts = job("a", high=2, extra=1, **TRAINS)
    workers = worker("a", pin="gone"), worker("a", role=WorkerRole.EXTRA, node="n")
    (notice,) = decide({"n": 1}, facts, *workers).actions
    assert isinstance(notice, NoticeReclaim)
    asked = replace(facts, reclaim=Reclaim(extra=0, deadline=notice.deadline, reason=notice.reason), generation=1)
    assert decide({"n": 1}, asked, *workers).actions == ()
    again = Replace(job="a", workers=(0,), pinned=True, reason=Reason.GPU_LOST)
    assert decide({"n": 1, "m": 1}, asked, *workers).actions == (again,)
    assert decide({"n": 1}, replace(facts, extra=0), workers[0]).actions == (again,)
