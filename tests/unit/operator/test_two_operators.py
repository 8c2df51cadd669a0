"""Two operators with jobs of their own on the same nodes: each sees the pods of the other, and not its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    Ended,
    JobFacts,
    Node,
    Placement,
    Reclaim,
    Rules,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import Finish, Plan, Requeue
from espalier_operator.model.constraints import Constraints
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world import facts
from operator_world.cluster import Cluster
from operator_world.facts import kinds, starts

ROUNDS = 200
TRAINING_ROUNDS = 10


class Shared:
    """One cluster and two planners. In a round, one second, each plans once."""

    def __init__(self, seed: int, nodes: int, gpus: int, together: float) -> None:
        """`together` is the probability that both plan on the same state of the cluster."""
        self.random, self.together = Random(seed), together
        self.cluster = Cluster()
        for number in range(nodes):
            self.cluster.nodes[f"n{number}"] = facts.node(f"n{number}", gpus, "h100")
        self.placements: dict[str, Mapping[str, Placement]] = {"a": {}, "b": {}}
        self.began: dict[str, int] = {}
        """By job: the round in which it began to train."""

    def submit(self, operator: str, name: str, workers: int) -> None:
        self.cluster.submit(f"{operator}/{name}", facts.job("", workers, time_budget_seconds=1e6).terms)

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


decide = partial(facts.decide, now=100.0)


def node(gpus: int = 2) -> Node:
    return facts.node("n", gpus, "h100", resources={"memory": 64, "pods": 110})


def theirs(gpus: int = 2, node: str | None = None, **changes: Any) -> Worker:
    """A pod of the other operator: bound, or about to be."""
    pin = "n" if node is None else None
    return facts.foreign(gpus, node, **{"name": "theirs", "pinned_to": pin, "is_rival": True, **changes})


def ours(key: str = "ns/b", node: str | None = None, **changes: Any) -> Worker:
    return facts.worker(key, node=node, **{"pinned_to": None if node else "n", "gpus": 2, **changes})


def job(key: str = "ns/a", high: int = 1, **changes: Any) -> JobFacts:
    return facts.job(key, 1, high, **{"gpus_per_worker": 2, **changes})


admitted = partial(job, admitted_at=99.0, gpu_type="h100")
runs = partial(admitted, "ns/b", 2, extra=1, **facts.TRAINS)


def test_gpus_chosen_by_another_operator_are_not_handed_out() -> None:
    assert decide(node(), job(), theirs()).refusals["ns/a"].reason is Reason.NO_FREE_GPU
    assert decide(node(4), job(), theirs()).actions == starts("ns/a", on="h100")


def test_gpus_that_a_pod_gives_back_go_to_the_worker_of_another_operator_that_waits_for_them() -> None:
    """Not to one of ours that is to be made again there: kube-scheduler would bind theirs."""
    leaves = facts.foreign(2, "n", state=WorkerState.TERMINATING)
    assert decide(node(), admitted(), leaves).placements["ns/a"].base == {0: "n"}
    lost = decide(node(), admitted(), leaves, theirs())
    assert (kinds(lost), lost.placements) == ([Requeue], {})
    shared = decide(node(4), admitted(), leaves, replace(leaves, name="too"), theirs())
    assert (shared.actions, shared.placements["ns/a"].base) == ((), {0: "n"}), "there is enough for both"


def test_what_our_job_is_asked_to_give_back_is_not_kept_for_another_operator() -> None:
    """Else each plan would ask for more."""
    lent = runs(reclaim=Reclaim(extra=0, deadline=110.0, reason=Reason.NEEDED_BY_OTHER_JOB), generation=2)
    asked = decide(node(4), admitted(), facts.running_on("n", lent), theirs())
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
    assert decide(node(), job(), theirs(constraints=constraints)).actions == starts("ns/a", on="h100")


@pytest.mark.parametrize("pod", [ours(), ours(node="n", gpus=0)])
def test_nobody_new_gets_what_two_that_chose_the_same_gpus_leave(pod: Worker) -> None:
    """Theirs is bound first, or ours, which is pending or has ended and is made again: two GPUs are no third one's."""
    given = node(4), admitted("ns/b"), job(), pod
    found = decide(*given, theirs(4))
    assert (found.actions, found.refusals["ns/a"].reason) == ((), Reason.NO_FREE_GPU)
    assert decide(*given, theirs(5)).actions == starts("ns/a", on="h100"), "theirs would not fit anyway"


def test_kube_scheduler_decides_between_two_that_chose_the_same_gpus() -> None:
    """Until then, neither gives way; afterwards, the loser waits for a while."""
    assert decide(node(), admitted(), ours("ns/a"), theirs()).actions == ()
    (action,) = decide(node(), admitted(), ours("ns/a"), theirs(node="n")).actions
    assert isinstance(action, Requeue)
    assert 100.0 <= action.hold_until <= 100.0 + Rules().rivalry_seconds
    lost = Requeue(job="ns/a", reason=Reason.NO_FREE_GPU)
    assert decide(node(1), admitted(), ours("ns/a")).actions == (lost,), "there is no rival"


def test_what_another_operator_waits_for_is_not_reclaimed_from_our_jobs() -> None:
    assert decide(node(), facts.running_on("n", runs(gpus_per_worker=1)), theirs(1)).actions == ()
