"""Two operators with jobs of their own on the same nodes: each sees the pods of the other, and not its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    Ended,
    JobFacts,
    JobTerms,
    Node,
    Placement,
    Reclaim,
    Rules,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import Admit, Finish, Plan, Requeue
from espalier_operator.model.constraints import Constraints
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.cluster import Cluster

ROUNDS = 200
TRAINING_ROUNDS = 10


class Shared:
    """One cluster and two planners. In a round, one second, each plans once."""

    def __init__(self, seed: int, nodes: int, gpus: int, together: float) -> None:
        """`together` is the probability that both plan on the same state of the cluster."""
        self.random, self.together = Random(seed), together
        self.cluster = Cluster()
        for number in range(nodes):
            self.cluster.nodes[f"n{number}"] = Node(name=f"n{number}", gpu_type="h100", allocatable=gpus)
        self.placements: dict[str, Mapping[str, Placement]] = {"a": {}, "b": {}}
        self.began: dict[str, int] = {}
        """By job: the round in which it began to train."""

    def submit(self, operator: str, name: str, workers: int) -> None:
        terms = JobTerms(min_replicas=workers, max_replicas=workers, time_budget_seconds=1e6)
        self.cluster.submit(f"{operator}/{name}", terms)

    def seen_by(self, operator: str) -> Snapshot:
        whole = self.cluster.snapshot()
        workers = (worker if _is_of(operator, worker.job) else _rival(worker) for worker in whole.workers)
        return replace(
            whole,
            jobs=tuple(job for job in whole.jobs if _is_of(operator, job.key)),
            workers=tuple(worker for worker in workers if worker.node or worker.pinned_to),
            placements=self.placements[operator],
        )

    def round(self, number: int) -> None:
        turns = self.random.sample(["a", "b"], 2)
        seen = {operator: self.seen_by(operator) for operator in turns}
        at_once = self.random.random() < self.together
        for operator in turns:
            snapshot = seen[operator] if at_once else self.seen_by(operator)
            self.carry_out(operator, plan(snapshot, FairPolicy(), self.cluster.now))
        self.cluster.bury()
        self.cluster.reveal()
        order = self.random.sample(list(self.cluster.workers.items()), len(self.cluster.workers))
        self.cluster.workers = dict(order)  # in which kube-scheduler takes them
        self.cluster.bind()
        self.cluster.start_leaders()
        for node in self.cluster.nodes.values():
            assert self.cluster.free(node) >= 0
        for key, job in self.cluster.jobs.items():
            if job.training and number - self.began.setdefault(key, number) >= TRAINING_ROUNDS:
                self.cluster.complete(key, Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False))
        self.cluster.pass_time(1.0)

    def carry_out(self, operator: str, planned: Plan) -> None:
        self.cluster.place(planned)
        self.placements[operator] = planned.placements
        for action in planned.actions:
            if not isinstance(action, Finish) or not self.cluster.jobs[action.job].finished:
                self.cluster.apply(action)


def _is_of(operator: str, key: str | None) -> bool:
    return key is not None and key.startswith(f"{operator}/")


def _rival(worker: Worker) -> Worker:
    return replace(worker, job=None, role=WorkerRole.FOREIGN, is_rival=True)


@pytest.mark.parametrize("seed", range(6))
def test_two_gangs_that_need_all_nodes_both_train(seed: int) -> None:
    """Also where both always plan at the same moment, so that neither ever sees the other's latest pods."""
    shared = Shared(seed, nodes=4, gpus=2, together=1.0 if seed % 2 else 0.9)
    for operator in "ab":
        shared.submit(operator, f"gang{seed}", workers=8)
    for number in range(ROUNDS):
        shared.round(number)
    assert shared.began.keys() == {f"a/gang{seed}", f"b/gang{seed}"}


@pytest.mark.parametrize("seed", range(3))
def test_many_gangs_of_two_operators_all_train(seed: int) -> None:
    shared = Shared(seed, nodes=4, gpus=4, together=0.9)
    for operator in "ab":
        for number, workers in enumerate((8, 3, 12, 5, 16)):
            shared.submit(operator, f"gang{seed}-{number}", workers)
    for number in range(2 * ROUNDS):
        shared.round(number)
    assert shared.began.keys() == shared.cluster.jobs.keys()


def decide(*facts: JobFacts | Worker, gpus: int = 2) -> Plan:
    return plan(
        Snapshot(
            taken_at=100.0,
            nodes=(Node(name="n", gpu_type="h100", allocatable=gpus, resources={"memory": 64, "pods": 110}),),
            workers=tuple(fact for fact in facts if isinstance(fact, Worker)),
            jobs=tuple(fact for fact in facts if isinstance(fact, JobFacts)),
        ),
        FairPolicy(),
        100.0,
    )


def worker(name: str, job: str | None, *, node: str | None = None, pin: str | None = "n", gpus: int = 2) -> Worker:
    role = WorkerRole.FOREIGN if job is None else WorkerRole.BASE
    state = WorkerState.PENDING if node is None else WorkerState.RUNNING
    pin = pin if node is None else None
    is_rival = job is None
    return Worker(name=name, job=job, role=role, node=node, pinned_to=pin, gpus=gpus, state=state, is_rival=is_rival)


def job(**facts: object) -> JobFacts:
    terms = JobTerms(min_replicas=1, max_replicas=1, gpus_per_worker=2, time_budget_seconds=500.0)
    return JobFacts(key="ns/a", terms=terms, submitted_at=0.0, **facts)  # type: ignore[arg-type]


ADMITTED = job(admitted_at=99.0, gpu_type="h100")
RUNNING = replace(ADMITTED, key="ns/b", extra=1, leader_running=True, has_reported=True, training=True, trained=True)


def test_gpus_chosen_by_another_operator_are_not_handed_out() -> None:
    assert decide(job(), worker("theirs", None)).refusals["ns/a"].reason is Reason.NO_FREE_GPU
    assert decide(job(), worker("theirs", None), gpus=4).actions == (Admit(job="ns/a", gpu_type="h100"),)


def test_gpus_that_a_pod_gives_back_go_to_the_worker_of_another_operator_that_waits_for_them() -> None:
    """Not to one of ours that is to be made again there: kube-scheduler would bind theirs."""
    leaves = replace(worker("leaves", None, node="n"), is_rival=False, state=WorkerState.TERMINATING)
    assert decide(ADMITTED, leaves).placements["ns/a"].base == {0: "n"}
    lost = decide(ADMITTED, leaves, worker("theirs", None))
    assert [type(action) for action in lost.actions] == [Requeue]
    assert lost.placements == {}
    shared = decide(ADMITTED, leaves, replace(leaves, name="too"), worker("theirs", None), gpus=4)
    assert (shared.actions, shared.placements["ns/a"].base) == ((), {0: "n"}), "there is enough for both"


def test_what_our_job_is_asked_to_give_back_is_not_kept_for_another_operator() -> None:
    """Else each plan would ask for more."""
    terms = JobTerms(min_replicas=1, max_replicas=2, gpus_per_worker=2, time_budget_seconds=500.0)
    reclaim = Reclaim(extra=0, deadline=110.0, reason=Reason.NEEDED_BY_OTHER_JOB)
    lent = replace(RUNNING, terms=terms, reclaim=reclaim, generation=2)
    base = worker("base", "ns/b", node="n")
    extra = replace(base, name="extra", role=WorkerRole.EXTRA)
    asked = decide(ADMITTED, lent, base, extra, worker("theirs", None), gpus=4)
    assert (asked.actions, asked.placements["ns/a"].base) == ((), {0: "n"})


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(node_selector=(("disk", "tape"),)),
        Constraints(requests=(("memory", 65), ("pods", 1))),
        Constraints(requests=(("memory", 2**62), ("pods", 1))),
    ],
)
def test_a_pod_that_cannot_be_bound_where_it_is_pinned_keeps_nothing(constraints: Constraints) -> None:
    """Whoever may create pods can write a job that does not exist as the owner of one, and any node."""
    theirs = replace(worker("theirs", None), constraints=constraints)
    assert decide(job(), theirs).actions == (Admit(job="ns/a", gpu_type="h100"),)


@pytest.mark.parametrize("ours", [worker("ours", "ns/b"), replace(worker("ours", "ns/b", node="n"), gpus=0)])
def test_nobody_new_gets_what_two_that_chose_the_same_gpus_leave(ours: Worker) -> None:
    """Theirs is bound first, or ours, which is pending or has ended and is made again: two GPUs are no third one's."""
    owner = replace(ADMITTED, key="ns/b")
    theirs = worker("theirs", None, gpus=4)
    found = decide(owner, job(), ours, theirs, gpus=4)
    assert (found.actions, found.refusals["ns/a"].reason) == ((), Reason.NO_FREE_GPU)
    (started,) = decide(owner, job(), ours, replace(theirs, gpus=5), gpus=4).actions
    assert started == Admit(job="ns/a", gpu_type="h100"), "theirs would not fit anyway"


def test_kube_scheduler_decides_between_two_that_chose_the_same_gpus() -> None:
    """Until then, neither gives way; afterwards, the loser waits for a while."""
    assert decide(ADMITTED, worker("ours", "ns/a"), worker("theirs", None)).actions == ()
    (action,) = decide(ADMITTED, worker("ours", "ns/a"), worker("theirs", None, node="n")).actions
    assert isinstance(action, Requeue)
    assert action.hold_until is not None
    assert 100.0 <= action.hold_until <= 100.0 + Rules().rivalry_seconds
    (lost,) = decide(ADMITTED, worker("ours", "ns/a"), gpus=1).actions
    assert lost == Requeue(job="ns/a", reason=Reason.NO_FREE_GPU), "there is no rival"


def test_what_another_operator_waits_for_is_not_reclaimed_from_our_jobs() -> None:
    terms = JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=500.0)
    base = worker("base", "ns/b", node="n", gpus=1)
    extra = replace(base, name="extra", role=WorkerRole.EXTRA)
    assert decide(replace(RUNNING, terms=terms), base, extra, worker("theirs", None, gpus=1)).actions == ()
