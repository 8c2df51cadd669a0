"""An operator at work in a shared cluster, and what judges both whenever it comes to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from espalier_operator.actions import Plan
from espalier_operator.facts import Rules, Snapshot
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.policies import Policy
from espalier_operator.policies.fair import FairPolicy
from operator_world.history.clauses import Clauses
from operator_world.history.demands import ClauseError
from operator_world.history.draws import COOLDOWNS, NOTICES, policy_of
from operator_world.history.world import KINDS, SharedCluster
from operator_world.invariants import check
from operator_world.kube_objects import EPOCH
from operator_world.kube_operator import KilledError, LiveOperator
from operator_world.kube_scheduler import LEAST_ALLOCATED, MOST_ALLOCATED, KubeScheduler
from operator_world.kubernetes import TYPE_LABEL

SETTINGS: Final = KubeSettings(
    start_up_allowance_seconds=20,
    promise_seconds=15,
    pre_running_deadline_seconds=90,
    restart_seconds=1,
    max_restart_seconds=8,
    persist_seconds=30,
    gpu_type_label=TYPE_LABEL,
)
ROUNDS_TO_REST: Final = 100


class Stage:
    """A cluster and an operator in it. `random` decides all that happens to both."""

    def __init__(self, seed: int, *, judges_plans: bool = True, policy: Policy | None = None) -> None:
        """Begin the history of this seed.

        `judges_plans`: each plan is judged as well, by the invariants of the planner (`operator_world.invariants`).
        `policy`: that of the operator; None: it is drawn.
        """
        self.seed, self.random, self._judges_plans = seed, Random(seed), judges_plans
        self.lines: list[str] = []
        """What has happened, for people."""
        scheduler = KubeScheduler(self.random.choice((LEAST_ALLOCATED, MOST_ALLOCATED)), Random(seed))
        self.world = SharedCluster(scheduler, self.random)
        self.rules = Rules(
            stop_grace_seconds=10,
            startup_seconds=15,
            evaluation_seconds=5,
            reservations=self.random.choice((1, 2, 8)),
            aging_seconds=self.random.choice((0.0, 60.0)),
            fair_share_half_life_seconds=self.random.choice((0.0, 120.0)),
        )
        self.policy = policy or policy_of(self.random)
        is_fair = isinstance(self.policy, FairPolicy)
        self.clauses = Clauses(self.world, self.rules, max(NOTICES) + max(COOLDOWNS), is_fair=is_fair)
        self.runner = asyncio.Runner()
        self.serial = 0
        self.operator = self._operator()

    def close(self) -> None:
        """End the operator."""
        self.operator.close()
        self.runner.close()

    def rest(self) -> None:
        """Let operator and cluster do all that is to be done now, and judge."""
        for _ in range(ROUNDS_TO_REST):
            self._cluster_moves()
            changed, calls = self.operator.see(*KINDS), self.operator.client.calls
            dues = (self.operator.due, self.clauses.plan.wake_at)
            due = any(at is not None and at <= self.world.now for at in dues)
            self.clauses.saw_all()
            if self._is_quiet and not (changed or due or self.operator.woken):
                self.clauses.at_rest()
                return
            self._is_quiet = self._tick() and self.operator.client.calls == calls
        raise ClauseError("clause 4: the operator comes to no rest")

    _is_quiet = False

    # ---- the operator

    def _operator(self) -> LiveOperator:
        operator = LiveOperator(self.world, self.policy, SETTINGS, self.rules, self.runner, KINDS)
        operator.on_plan, operator.client.on_create = self._planned, self._creating
        operator.validates_every = 10
        self._is_quiet = False
        return operator

    def _tick(self) -> bool:
        """Let the operator work once; return whether it lives."""
        knows_queues = self.operator.view["queues"] == self.world.queues
        try:
            self.operator.tick()
        except KilledError:
            self._say("the operator is killed")
            self.operator = self._operator()
            return False
        finally:
            if not knows_queues:
                self.clauses.count_again()  # what it has granted is right by the quotas that it saw
        return True

    def _planned(self, snapshot: Snapshot, plan: Plan) -> None:
        for action in plan.actions:
            self._say(f"  {action}")
        self.clauses.planned(snapshot, plan)
        if self._judges_plans:
            types = {share.job: share.gpu_type for share in plan.shares}
            preempts = not isinstance(self.policy, FairPolicy)
            check(snapshot, plan, self.world.now, preempts=preempts, types=types)

    def _creating(self, manifest: Mapping[str, Any]) -> None:
        if manifest["kind"] == "Pod":
            self.clauses.creating(manifest)

    def _cluster_moves(self) -> None:
        self.world.controllers()
        self.world.schedule()
        self.world.kubelets()

    # ---- for people

    def _name(self, stem: str) -> str:
        self.serial += 1
        return f"{stem}{self.serial}"

    def _say(self, line: str) -> None:
        self.lines.append(f"{self.world.now - EPOCH:7.1f} {line}")
