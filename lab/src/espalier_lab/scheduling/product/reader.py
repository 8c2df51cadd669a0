"""The reader of policy files for `espalier_operator.policies.learned`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.files import AllocationLineage, LearnedPolicyError, read_policy
from espalier_lab.scheduling.learned.network import Weights
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.placement.beliefs import Prior
from espalier_lab.scheduling.product.placing import placed
from espalier_operator.policies.learned import Allotment, PolicyAnswer, PolicyFileError
from espalier_operator.policies.view import View


def prior_of(tensors: Weights) -> Prior:
    """Return the placement prior of a file's tensors (`learned.files.PLACEMENT`)."""
    mean, variance = (float(each) for each in tensors["placement.slowness"])
    rest, covariance = (tensors[f"placement.{name}"].astype(np.float64) for name in ("rest", "covariance"))
    return Prior((mean, variance), rest, covariance)


def tensors_of(prior: Prior) -> dict[str, NDArray[np.float32]]:
    """Return a placement prior as the tensors of a file."""
    parts = {"slowness": prior.slowness, "rest": prior.rest, "covariance": prior.covariance}
    return {f"placement.{name}": np.asarray(value, np.float32) for name, value in parts.items()}


class AllocationPolicyFile:
    """A loaded policy file (`espalier_operator.policies.learned.PolicyFile`)."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raise `PolicyFileError`."""
        try:
            self._policy = read_policy(path)
            self._allocation = LearnedAllocation(self._policy)
        except LearnedPolicyError as error:
            raise PolicyFileError(str(error)) from error
        tensors = self._policy.placement
        self._prior = prior_of(tensors) if tensors else None

    @property
    def lineage(self) -> AllocationLineage:
        """Its lineage."""
        return self._policy.lineage

    @property
    def version(self) -> str:
        """Name and version."""
        return f"{self._policy.lineage.name}@{self._policy.version}"

    def answer(self, view: View) -> PolicyAnswer:
        """Return the workers of each job.

        Raise `PolicyFileError` if it cannot serve the cluster, or its scores overflow.
        """
        serves = self._policy.lineage.serves
        refusal = serves.refusal(view.gpus)
        if refusal is None and len(view.jobs) > serves.max_jobs:
            refusal = f"there are {len(view.jobs)} jobs, and the policy serves {serves.max_jobs} at most"
        if refusal is not None:
            raise PolicyFileError(f"{self.version}: {refusal}")
        try:
            decision = self._allocation.decide(view)
        except LearnedPolicyError as error:
            raise PolicyFileError(f"{self.version}: {error}") from error
        allotments = tuple(
            Allotment(job=share.job, workers=share.workers, spare=share.spare) for share in decision.shares
        )
        if self._prior is not None and len(view.gpu_types) < 2:  # a gang's nodes must be of one type
            allotments = placed(self._prior, view, allotments)
        return PolicyAnswer(
            policy=self.version,
            allotments=allotments,
            preempts=decision.preempts,
            until=decision.until,
            follows_progress=decision.follows_progress,
        )
