"""A learnt policy in the place of a rule: a `Policy` of the operator's protocol. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from espalier_operator.policies.view import Decision, Elasticity, Share, View
from espalier_scheduling.learned.description import WORKERS_ONLY
from espalier_scheduling.learned.files import LearnedPolicy, LearnedPolicyError
from espalier_scheduling.learned.picture import Picture


@dataclass(frozen=True, slots=True)
class LearnedAllocation:
    """Gives workers one at a time to the job that the network scores highest, until "stop" scores highest.

    Jobs with the same score: the first one of the view. A job of which no speed is known gets its base workers, and
    spare ones while no share needs their GPUs.
    """

    policy: LearnedPolicy
    name: str = "learned"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS

    def __post_init__(self) -> None:
        actions = self.policy.lineage.actions
        if actions != WORKERS_ONLY:
            raise LearnedPolicyError(
                f"policy {self.policy.lineage.name}: gives {', '.join(actions)}; here only workers can be given: name "
                "one that was learnt on jobs with all-reduce"
            )

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by the learned policy"

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to all GPUs at most, in the order in which jobs first got workers."""
        if not view.jobs:
            return Decision(shares=(), preempts=True, follows_progress=True)
        picture = Picture.of(view)
        order = [int(index) for index in np.flatnonzero(picture.workers)]
        while (mask := picture.mask()).any():
            chosen = int(self.policy.network.scores(picture.inputs(), mask).argmax())
            if chosen == len(view.jobs):
                break
            if not picture.workers[chosen]:
                order.append(chosen)
            picture.give(chosen)
        order += [index for index in range(len(view.jobs)) if not picture.workers[index]]
        return Decision(
            shares=tuple(self._share(view, index, int(picture.workers[index])) for index in order),
            preempts=True,
            follows_progress=True,
        )

    @staticmethod
    def _share(view: View, index: int, workers: int) -> Share:
        job = view.jobs[index]
        spare = 0 if job.key in view.outlooks or not workers else job.max_workers - workers
        return Share(job=job.key, workers=workers, spare=spare)
