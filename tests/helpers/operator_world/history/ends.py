"""How jobs end. Clause 6."""

from __future__ import annotations

from collections import Counter
from typing import Final

from espalier_core.files.documents import loads
from espalier_core.types.job import REPORT_KEY
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.kube.objects import names
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Fail, Finish, Plan, Requeue
from operator_world.history.demands import demand
from operator_world.history.seen import claimant, identity
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of
from operator_world.kube_objects import Raw

COUNTS_DIFFER_SECONDS: Final = 5.0
"""An operator that counts so much more than a leader may end it in its evaluation."""


class Ends:
    """The ends of the jobs of one world."""

    def __init__(self, world: SharedCluster) -> None:
        """Nobody has ended yet."""
        self._world = world

    def planned(self, snapshot: Snapshot, plan: Plan, checked: Counter[str]) -> None:
        """A leader that evaluates in time, or will, is not ended because its time budget is used up."""
        for action in plan.actions:
            job = self._world.jobs.get(action.job)
            if not isinstance(action, Fail | Finish) or action.reason is not Reason.BUDGET_ENFORCED or job is None:
                continue
            (facts,) = (each for each in snapshot.jobs if each.key == action.job)
            counted, terms = facts.used_at(self._world.now), facts.terms
            end = max(terms.time_budget_seconds, facts.budget_end_seconds or 0.0)
            for leader in self._world.live_leaders(job["metadata"]["uid"]):
                # An operator that was away while a leader started counts its start-up as well.
                agrees = counted - leader.used < COUNTS_DIFFER_SECONDS
                # Nor is one in its last evaluation that still trains when the time to stop for its GPU budget is over.
                trains = leader.phase is TrainerPhase.EVALUATING
                trains |= leader.phase is TrainerPhase.TRAINING and facts.stopping is None
                # One that is started past the end has what an earlier one has left of the time to evaluate.
                trains = trains and leader.resumed_at <= end
                # One that obeys nothing has been ended before, where it was stopped for another reason.
                trains = trains and not (leader.temper.deaf and self._is_deleted(leader.key))
                if trains and agrees and self._world.is_ready(leader.node):
                    checked["ended by force"] += 1
                    since = leader.evaluating_since
                    took = 0.0 if since is None else self._world.now - since
                    demand(took > leader.temper.evaluation, 6, f"{action.job} is ended {took:g} s into its evaluation")

    def _is_deleted(self, key: str) -> bool:
        return "deletionTimestamp" in self._world.pods.get(key, {}).get("metadata", {})

    def saw(self, plan: Plan, checked: Counter[str]) -> None:
        """No job waits to run again whose leader was seen to say that it is complete."""
        for action in plan.actions:
            job = self._world.jobs.get(action.job)
            if isinstance(action, Requeue) and job is not None:
                checked["waits again"] += 1
                demand(not self._is_complete(action.job, job), 6, f"{action.job} is complete, and is to run again")

    def _is_complete(self, key: str, job: Raw) -> bool:
        """Return whether the last report is of a leader that runs, and says so."""
        config_map = self._world.config_maps.get(names.report_name(key), {})
        text = config_map.get("data", {}).get(REPORT_KEY)
        said = None if text is None else loads(text, Report, "the ConfigMap")
        if said is None or said.phase is not TrainerPhase.COMPLETED:
            return False
        return any(leader.uid == said.incarnation for leader in self._world.live_leaders(job["metadata"]["uid"]))

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
