"""Whether free GPUs are lent to jobs that may have them. Clause 3."""

from __future__ import annotations

from collections import Counter

from espalier_core.types.report import TrainerPhase
from espalier_core.types.status import JobPhase
from operator_world.history.demands import demand
from operator_world.history.quotas import Quotas
from operator_world.history.room import Room
from operator_world.history.seen import Seen
from operator_world.history.stopwatch import Stopwatch
from operator_world.history.world import SharedCluster


class Lent:
    """The running jobs of one world."""

    def __init__(self, world: SharedCluster, room: Room, quotas: Quotas, patience: float) -> None:
        """Nobody runs yet."""
        self._world, self._room, self._quotas, self._patience = world, room, quotas, patience
        self.idle = Stopwatch(world)
        """Jobs that might be lent a GPU that is free."""

    def judge(self, jobs: list[Seen], owed: list[Counter[str]], checked: Counter[str]) -> None:
        """A running job that may have an extra worker gets a free GPU, within a notice and a cooldown."""
        given = self._room.is_given_back()
        for job in jobs:
            if given or not self._may_be_lent(job) or not self._quotas.namespace_fits(job, 1, jobs):
                continue
            checked["might be lent"] += 1
            if self._room.fits(job, job.status.scheduling.gpu_type or "", owed) >= 1:
                waited = self.idle.seconds(job.key)
                demand(waited <= self._patience, 3, f"{job.key} is lent nothing for {waited:g} s, and a GPU is free")
        self.idle.turn()

    def _may_be_lent(self, job: Seen) -> bool:
        kept, now = job.status.scheduling, self._world.now
        temper = self._world.tempers.get(job.key)
        budget = float(job.spec["timeBudgetSeconds"])
        later = [at.timestamp() for at in (kept.hold_until, kept.lend_after) if at is not None]
        if kept.changed_at is not None:
            later.append(kept.changed_at.timestamp() + job.spec["preemption"]["cooldownSeconds"])
        return (
            job.holds
            and not job.is_barred(now)
            and job.status.phase is JobPhase.RUNNING
            and self._is_heard_of(job)
            and temper is not None
            and not temper.silent
            and kept.extra < job.spec["maxReplicas"] - job.spec["minReplicas"]
            and budget - job.status.time_budget.used_seconds > 0.1 * budget
            and "gpuSecondsBudget" not in job.spec
            and all(at <= now for at in later)
        )

    def _is_heard_of(self, job: Seen) -> bool:
        """Return whether the leader of a job trains on a node that reports."""
        leaders = self._world.live_leaders(job.raw["metadata"]["uid"])
        return any(self._world.is_ready(leader.node) and leader.phase is TrainerPhase.TRAINING for leader in leaders)
