"""How jobs end. Clause 6."""

from __future__ import annotations

from collections import Counter
from typing import Final

from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_operator.actions import Finish, Plan
from operator_world.history.demands import demand
from operator_world.history.seen import claimant, identity
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of

COUNTS_DIFFER_SECONDS: Final = 5.0
"""An operator that counts so much more than a leader may end it in its evaluation."""


class Ends:
    """The ends of the jobs of one world."""

    def __init__(self, world: SharedCluster) -> None:
        """Nobody has ended yet."""
        self._world = world

    def planned(self, plan: Plan, checked: Counter[str]) -> None:
        """A leader that evaluates in time is not ended because its time budget is used up."""
        for action in plan.actions:
            job = self._world.jobs.get(action.job)
            if not isinstance(action, Finish) or action.reason is not Reason.BUDGET_ENFORCED or job is None:
                continue
            counted = job["status"]["timeBudget"]["usedSeconds"]
            for leader in self._world.live_leaders(job["metadata"]["uid"]):
                since, reports = leader.evaluating_since, self._world.is_ready(leader.node)
                # An operator that was away while a leader started counts its start-up as well.
                agrees = counted - leader.used < COUNTS_DIFFER_SECONDS
                if leader.phase is TrainerPhase.EVALUATING and since is not None and reports and agrees:
                    checked["ended by force"] += 1
                    took = self._world.now - since
                    demand(took > leader.temper.evaluation, 6, f"{action.job} is ended {took:g} s into its evaluation")

    def judge(self, checked: Counter[str]) -> None:
        """A job that somebody's finalizer holds has no workers."""
        jobs = self._world.jobs.items()
        deleted = {identity(job): key for key, job in jobs if "deletionTimestamp" in job["metadata"]}
        for key, pod in self._world.pods.items():
            job = deleted.get(claimant(pod))
            node = node_of(pod)
            if job is not None and not is_over(pod):
                checked["of a deleted job"] += 1
                demand("deletionTimestamp" in pod["metadata"], 6, f"{key} runs on {node}, and {job} is deleted")
