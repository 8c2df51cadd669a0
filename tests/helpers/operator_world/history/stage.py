"""Operators at work in a shared cluster, and what judges them whenever they come to rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Final

from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules
from espalier_operator.policies import Policy
from operator_world.history.deciding import Deciding, by_policy, by_policy_file, drawn
from operator_world.history.demands import ClauseError
from operator_world.history.devices import KINDS as DEVICE_KINDS
from operator_world.history.kept import Kept
from operator_world.history.kinds import PLAIN, Kind
from operator_world.history.watched import Watched
from operator_world.history.world import DEFAULTS, KINDS, NAMESPACES, SharedCluster
from operator_world.kube_devices import RESOURCE
from operator_world.kube_objects import EPOCH, MIG
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
    """A cluster and its operators. `random` decides all that happens to both."""

    def __init__(
        self, seed: int, *, judges_plans: bool = True, policy: Policy | None = None, kind: Kind = PLAIN
    ) -> None:
        """Begin the history of this seed.

        `judges_plans`: each plan is judged as well, by the invariants of the planner (`operator_world.invariants`).
        `policy`: that of the operators; None: it is drawn.
        """
        self.seed, self.random, self.kind = seed, Random(seed), kind
        self.lines: list[str] = []
        """What has happened, for people."""
        scheduler = KubeScheduler(self.random.choice((LEAST_ALLOCATED, MOST_ALLOCATED)), Random(seed))
        self.world = SharedCluster(scheduler, self.random)
        self._kept = Kept(self.world)
        self.kinds = {**(DEVICE_KINDS if kind.has_devices else {}), **KINDS, **(DEFAULTS if kind.has_defaults else {})}
        """Of objects that operators see, in the order in which they list them."""
        self.world.webhooks.injects_side_cars = kind.has_side_cars
        if kind.has_devices:
            self.world.devices.install((*NAMESPACES, "others"))
        self.rules = Rules(
            stop_grace_seconds=10,
            startup_seconds=15,
            evaluation_seconds=5,
            reservations=self.random.choice((1, 2, 8)),
            aging_seconds=self.random.choice((0.0, 60.0)),
            fair_share_half_life_seconds=self.random.choice((0.0, 120.0)),
        )
        self._runner, self._judges_plans = asyncio.Runner(), judges_plans
        self.serial = 0
        self.operators = []
        for controller in kind.controllers:
            deciding = drawn(self.random) if policy is None else by_policy(policy)
            if kind.answers is not None:
                deciding = by_policy_file(f"{seed} {controller}", answers=kind.answers)
            self.operators.append(self._watched(deciding, controller))

    def close(self) -> None:
        """End the operators."""
        for each in self.operators:
            each.operator.close()
        self._runner.close()

    def rest(self) -> None:
        """Let operators and cluster do all that is to be done now, and judge."""
        for _ in range(ROUNDS_TO_REST):
            self._cluster_moves()
            if not self._operators_work():
                for each in self.operators:
                    each.clauses.at_rest()
                self.world.over_quota.clear()
                self.world.strangers_claimed.clear()
                return
        raise ClauseError("clause 4: the operators come to no rest")

    def _operators_work(self) -> bool:
        """Let each operator work that has anything to do; return whether one had.

        Each sees what those before it have done, and kube-scheduler has not seen yet; or all of them look at once, and
        work in turn or at the same time.
        """
        if len(self.operators) > 1:
            self.random.shuffle(self.operators)
        way = 0.0 if len(self.operators) == 1 else self.random.random()
        if way < 0.5:
            worked = False
            for each in self.operators:
                if each.look():
                    each.work()
                    worked = True
            return worked
        busy = [each for each in self.operators if each.look()]
        if way < 0.75 and len(busy) > 1:
            busy[0].work_beside(busy[1:])
            return True
        for number, each in enumerate(busy):
            each.clauses.is_fresh = number == 0
            each.work()
        return bool(busy)

    def _watched(self, deciding: Deciding, controller: str) -> Watched:
        others = ((MIG, self.kind.has_slices), (RESOURCE, self.kind.has_devices))
        resources = tuple(name for name, is_there in others if is_there)
        settings = replace(SETTINGS, controller_name=controller, other_gpu_resources=resources)
        return Watched(
            self.world,
            self._kept,
            deciding,
            settings,
            self.rules,
            self._runner,
            self._say,
            kinds=self.kinds,
            judges_plans=self._judges_plans,
        )

    def _one(self) -> Watched:
        """Return the operator to which something happens: any, they come in a random order."""
        return self.operators[0]

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
