"""One operator of a shared cluster, its later lives, and what judges it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from espalier_core.k8s.resources import Resource
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules, Snapshot
from espalier_operator.model.actions import Plan
from operator_world.history.clauses import Clauses
from operator_world.history.deciding import Deciding
from operator_world.history.draws import COOLDOWNS, NOTICES
from operator_world.history.kept import Kept
from operator_world.history.world import SharedCluster
from operator_world.invariants import check
from operator_world.kube_operator import KilledError, LiveOperator


class Watched:
    """An operator that is started again whenever it has ended."""

    def __init__(
        self,
        world: SharedCluster,
        kept: Kept,
        deciding: Deciding,
        settings: KubeSettings,
        rules: Rules,
        runner: asyncio.Runner,
        say: Callable[[str], None],
        *,
        kinds: Mapping[str, Resource],
        judges_plans: bool,
    ) -> None:
        """Start it. `say` is told what it does; it sees objects of `kinds`; `judges_plans` as for `Stage`."""
        self._kinds = kinds
        self._world, self._runner, self._say, self._judges_plans = world, runner, say, judges_plans
        self._settings, self._rules, self._deciding = settings, rules, deciding
        patience, name = max(NOTICES) + max(COOLDOWNS), settings.controller_name
        self.clauses = Clauses(world, kept, rules, patience, controller=name, is_fair=deciding.is_fair)
        self._is_quiet = False
        self._seen_at = self._ticked_at = world.now
        self.operator = self._next_life()

    def look(self) -> bool:
        """See all; return whether there is anything to do."""
        changed = self.operator.see(*self._kinds)
        due = self.operator.due is not None and self.operator.due <= self._world.now
        self.clauses.saw_all()
        self._seen_at = self._world.now
        return not self._is_quiet or changed or due or self.operator.woken

    def work(self) -> None:
        """Work by what it sees, and take note of whether that was all."""
        calls = self.operator.client.calls
        self._is_quiet = self.tick() and self.operator.client.calls == calls

    def work_beside(self, others: Collection[Watched]) -> None:
        """Work at the same time as others: what each creates comes between what the others do."""
        both = (self, *others)
        calls = [each.operator.client.calls for each in both]
        for each in both:
            each.clauses.is_fresh = False
        self.operator.tick_beside([each.operator for each in others])
        for each, before in zip(both, calls, strict=True):
            each._is_quiet = each.operator.client.calls == before

    def tick(self) -> bool:
        """Let it work once by what it sees; return whether it lives."""
        knows_queues = self.operator.view["queues"] == self._world.queues
        now = self._world.now
        self.clauses.kept.blind += max(0.0, now - max(self._seen_at, self._ticked_at))
        self._ticked_at = now
        try:
            self.operator.tick()
        except KilledError:
            self._say(f"{self._settings.controller_name} is killed")
            self.operator = self._next_life()
            return False
        finally:
            if not knows_queues:
                self.clauses.count_again()  # what it has granted is right by the quotas that it saw
        self.clauses.kept.look()
        return True

    def restart(self) -> None:
        """End it at once, and start it again."""
        self.operator.close()
        self.operator = self._next_life()

    def freeze(self) -> LiveOperator:
        """Let another operator take the place of the one that acts, and return that."""
        frozen, self.operator = self.operator, self._next_life()
        return frozen

    def _next_life(self) -> LiveOperator:
        self.clauses.operator_ends()
        policy, asking = self._deciding.policy, self._deciding.asking
        operator = LiveOperator(self._world, policy, self._settings, self._rules, self._runner, self._kinds, asking)
        operator.on_plan, operator.client.on_create = self._planned, self._creating
        operator.validates_every = 10
        self.clauses.refused.begin_again()
        self._is_quiet = False
        return operator

    def _planned(self, snapshot: Snapshot, plan: Plan) -> None:
        for action in plan.actions:
            self._say(f"  {action}")
        knows_quotas = self.operator.view["resource_quotas"] == self._world.resource_quotas
        self.clauses.planned(snapshot, plan, knows_quotas=knows_quotas)
        if self._judges_plans:
            types = {share.job: share.gpu_type for share in plan.shares}
            check(snapshot, plan, self._world.now, preempts=not self._deciding.is_fair, types=types)

    def _creating(self, manifest: Mapping[str, Any]) -> None:
        if manifest["kind"] == "Pod":
            self.clauses.creating(manifest)
