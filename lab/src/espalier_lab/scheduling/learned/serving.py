"""A learnt policy in the place of a rule, with the operator's `Policy` protocol. Without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from espalier_lab.scheduling.learned.description import WORKERS_ONLY
from espalier_lab.scheduling.learned.files import AllocationPolicy, LearnedPolicyError
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.learned.ranking import Ranking
from espalier_operator.policies.view import Decision, Elasticity, View


@dataclass(frozen=True, slots=True)
class LearnedAllocation:
    """Gives workers one at a time to the job that the network scores highest, until "stop" scores highest.

    Among jobs with the same score, the first one of the view wins. It has no memory. GPUs of several types are divided
    among the jobs of each type.
    """

    policy: AllocationPolicy
    name: str = "learned"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS
    queue_order: ClassVar[str] = "by the learned policy"

    def __post_init__(self) -> None:
        actions = self.policy.lineage.actions
        if actions != WORKERS_ONLY:
            raise LearnedPolicyError(
                f"policy {self.policy.lineage.name}: gives {', '.join(actions)}; here only workers can be given; name "
                "one that was learnt on jobs with all-reduce"
            )

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to at most all GPUs, and at most those of each type if types differ.

        Raise `LearnedPolicyError` if the scores of the network overflow.
        """
        if len(view.gpu_types) < 2:
            return self._decide(view)
        decisions = [self._decide(part) for part in by_type(view)]
        runs = {job.key for job in view.jobs if job.workers}
        shares = [share for decision in decisions for share in decision.shares]
        # Running jobs come first: a job that starts has GPUs in its part, and must stop no job in another part.
        shares.sort(key=lambda share: (not share.workers, share.job not in runs))
        ends = [decision.until for decision in decisions if decision.until is not None]
        return Decision(shares=tuple(shares), preempts=True, until=min(ends, default=None))

    def _decide(self, view: View) -> Decision:
        picture = PartialDecision.of(view)
        if view.jobs:
            with np.errstate(over="ignore", invalid="ignore"):  # the ranking raises where that matters
                ranking = Ranking(self.policy.network, picture)
                while (chosen := ranking.choice()) is not None:
                    ranking.give(chosen)
        return picture.decision(view.now)


def by_type(view: View) -> list[View]:
    """Divide a view by types of GPU; each job is in the part of the type that it has, or may find.

    A waiting job counts at the type with the most GPUs left beside the base workers of the others, among types with
    enough for its own; the first one among equals. The planner, which knows where it may run, chooses where it starts.
    """
    left, types = dict(view.gpu_types), dict[str, str]()
    for job in sorted(view.jobs, key=lambda job: job.gpu_type not in left):  # jobs with a type first
        need = max(1, job.min_workers) * max(1, job.gpus_per_worker)
        gpu_type = job.gpu_type
        if gpu_type not in left:
            enough = {each: view.gpu_types[each] >= need for each in left}
            gpu_type = max(left, key=lambda each: (enough[each], left[each]))
        left[gpu_type] -= need
        types[job.key] = gpu_type
    return [
        replace(view, gpus=gpus, jobs=tuple(job for job in view.jobs if types[job.key] == each), gpu_types={})
        for each, gpus in view.gpu_types.items()
    ]
