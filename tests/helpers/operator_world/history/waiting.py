"""Whether each job that waits says truly why, and waits for something. Clauses 3 to 5."""

from __future__ import annotations

import math
from collections import Counter

from espalier_core.types.reasons import Reason
from espalier_operator.model import REFUSALS, Rules
from espalier_operator.model.actions import Plan
from operator_world.history.demands import demand
from operator_world.history.quotas import Quotas
from operator_world.history.returns import Returns
from operator_world.history.room import Room
from operator_world.history.seen import Seen
from operator_world.history.stopwatch import Stopwatch
from operator_world.history.world import SharedCluster

_QUOTA = (Reason.QUOTA_EXCEEDED, Reason.MIN_RUNTIME)
_BUSY = (Reason.NO_FREE_GPU, Reason.UNSCHEDULABLE, Reason.RESOURCE_QUOTA_EXCEEDED, *_QUOTA)
_SLACK = 1e-6


class Waiting:
    """The waiting jobs of one world."""

    def __init__(
        self,
        world: SharedCluster,
        room: Room,
        quotas: Quotas,
        returns: Returns,
        rules: Rules,
        patience: float,
        *,
        is_fair: bool,
    ) -> None:
        """Nobody waits yet."""
        self._world, self._room, self._quotas, self._returns, self._is_fair = world, room, quotas, returns, is_fair
        self._rules, self._patience = rules, patience
        self.fitting = Stopwatch(world)
        """Jobs that wait for others to give GPUs back though they fit on other ones."""

    def judge(self, jobs: list[Seen], owed: list[Counter[str]], plan: Plan, checked: Counter[str]) -> None:
        """Judge all of `jobs` that wait; `owed` is what is owed to others, `plan` the last one."""
        given = self._room.is_given_back()
        for job in jobs:
            if job.waits:
                checked[f"waits: {job.reason}"] += 1
                if self._may_be_told_so(job):
                    self._judge_what_it_waits_for(job, jobs, owed, plan, given, checked)
        self.fitting.turn()

    def _may_be_told_so(self, job: Seen) -> bool:
        """Judge the reasons that a job alone gives; return whether there may be others."""
        reason, spec = job.reason, job.spec
        queues = self._world.queues
        queue = queues.get(spec.get("queue", "default"))
        limit = None if queue is None else queue["spec"].get("maxPriority")
        held_until = job.status.scheduling.hold_until
        expected: tuple[Reason, ...] | None = None
        if spec.get("suspend"):
            expected, why = (Reason.SUSPENDED,), "is suspended"
        elif queues and (queue is None or job.namespace not in queue["spec"].get("namespaces", (job.namespace,))):
            expected, why = (Reason.QUEUE_NOT_FOUND,), "has no queue"
        elif limit is not None and spec.get("priority", 0) > limit:
            expected, why = (Reason.PRIORITY_TOO_HIGH,), f"is above {limit}"
        elif held_until is not None and held_until.timestamp() > self._world.now:
            expected, why = tuple(REFUSALS), "is held back"
        elif not self._node_pools(job, bare=True):
            expected, why = (Reason.TOO_LARGE,), "is too large"
        elif not self._node_pools(job, bare=False):
            expected, why = (Reason.UNSCHEDULABLE,), "fits on no node"
        elif job.is_barred(self._world.now):
            expected, why = (Reason.NODES_AVOIDED, Reason.HELD_BY_POLICY, *_BUSY), "was refused by a node"
        if expected is None:
            may_say = reason in _BUSY or (reason is Reason.HELD_BY_POLICY and not self._is_fair)
            demand(may_say, 4, f"{job.key} might run and says {reason}")
            return self._is_fair
        demand(reason in expected, 4, f"{job.key} {why} and says {reason}")
        return False

    def _node_pools(self, job: Seen, *, bare: bool) -> set[str]:
        """Return the types of GPU on which a job would fit if nobody else ran."""
        return {kind for kind in self._room.types() if self._room.size(job, kind, bare=bare) >= job.base}

    def _judge_what_it_waits_for(
        self, job: Seen, jobs: list[Seen], owed: list[Counter[str]], plan: Plan, given: bool, checked: Counter[str]
    ) -> None:
        """Judge what a job waits for; `given`: GPUs are being given back."""
        reason = job.reason
        others = [each for each in jobs if each.waits and each.key != job.key and not each.spec.get("suspend")]
        allowed = {kind for kind in self._node_pools(job, bare=False) if self._quotas.allows(job, kind)}
        alike = [each for each in others if self._quotas.are_shared(job, each)]
        near = [each for each in others if each.namespace == job.namespace]
        if reason is Reason.MIN_RUNTIME:
            young = any(self._quotas.has_just_borrowed(job, each) for each in jobs)
            demand(young, 4, f"{job.key} says {reason}, and nobody has just started")
        if reason in _QUOTA:
            demand(not allowed or bool(alike), 4, f"{job.key} waits for a quota that has room")
            order = {share.job: place for place, share in enumerate(plan.shares)}
            is_first = all(order.get(job.key, 0) < order.get(each.key, 0) for each in alike)
            may_start = not near and self._quotas.namespace_fits(job, job.base, jobs)
            owed_quota = any(self._quotas.owes(job, kind, jobs) for kind in self._node_pools(job, bare=False))
            if is_first and may_start and owed_quota:
                what = f"{job.key} waits for its own quota, which others have borrowed,"
                self._returns.expect(what, checked, "is owed a quota", needs_notice=False)
            return
        demand(bool(allowed), 4, f"{job.key} has no quota and says {reason}")
        if reason is Reason.RESOURCE_QUOTA_EXCEEDED:
            room = self._quotas.namespace_fits(job, job.base, jobs)
            demand(not room or bool(near), 4, f"{job.key} waits for a ResourceQuota that has room")
            return
        # What is lent in its namespace is given back once its GPUs are there.
        room = self._quotas.namespace_fits(job, job.base, jobs, later=True)
        if alike or near:
            allowed = allowed if room else set()  # who is before it there may be kept a part
        demand(room or bool(near), 4, f"{job.key} has no room in its namespace and says {reason}")
        possible = allowed if room else set()
        fitting = [kind for kind in possible if self._room.fits(job, kind, owed) >= job.base]
        lent = [kind for kind in possible if self._room.fits(job, kind, owed, without_lent=True) >= job.base]
        if not (fitting or lent) or self._is_after_another(job, others, fitting or lent, plan, given):
            return
        if not fitting:
            self._returns.expect(f"{job.key} waits for GPUs that others are lent", checked, "waits for what is lent")
            return
        told = plan.refusals.get(job.key)
        has_room = self._quotas.namespace_fits(job, job.base, jobs)
        # What others give back, of GPUs or of its namespace's ResourceQuota, it gets in a notice.
        gets = told is not None and ((told.starts_by is None and given) or not has_room)
        waited = self.fitting.seconds(job.key) if gets else math.inf
        demand(waited <= self._patience, 3, f"{job.key} waits ({reason}) though it fits on {fitting}")

    def _is_after_another(self, job: Seen, others: list[Seen], fitting: list[str], plan: Plan, given: bool) -> bool:
        """Return whether a start would delay one that was told by when it starts, or is to get what is reclaimed.

        Or one that waits for a quota that both need, or keeps it until it starts. Who borrows, if only because the GPUs
        of its own quota are not free, or is behind one of its queue that does, comes last.
        """
        order = {share.job: place for place, share in enumerate(plan.shares)}
        queue = job.spec.get("queue", "default")
        ahead = [other for other in others if order.get(other.key, 0) < order.get(job.key, 0)]
        same = [other for other in ahead if other.spec.get("queue", "default") == queue and other.reason in _BUSY]
        borrows = self._borrows(job, set(fitting)) or any(self._borrows(other, self._room.types()) for other in same)
        for other in others:
            refusal = plan.refusals.get(other.key)
            if refusal is None or refusal.reason not in _BUSY:
                continue
            if not borrows and order.get(other.key, 0) > order.get(job.key, 0):
                continue
            closed = refusal.reason in _QUOTA and self._quotas.are_shared(job, other)
            closed |= refusal.reason is Reason.RESOURCE_QUOTA_EXCEEDED and other.namespace == job.namespace
            if given or refusal.starts_by is not None:
                closed |= not any(self._quotas.allows(job, kind, beside=other) for kind in fitting)
            if closed or (given if refusal.starts_by is None else refusal.starts_by < self._ends_by(job) + _SLACK):
                return True
        return False

    def _borrows(self, job: Seen, kinds: set[str]) -> bool:
        """Return whether the queue of a job must borrow for it, on each of these types of GPU."""
        return not any(self._quotas.allows(job, kind, borrows=False) for kind in kinds)

    def _ends_by(self, job: Seen) -> float:
        budget = float(job.spec["timeBudgetSeconds"])
        to_end = max(10.0, budget / 10) + self._rules.evaluation_seconds
        if "program" in job.spec:  # it has the grace period of its pod
            to_end = float(job.template["spec"].get("terminationGracePeriodSeconds", 30))
        left = budget - job.status.time_budget.used_seconds
        return self._world.now + self._rules.startup_seconds + left + to_end
