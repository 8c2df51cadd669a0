"""Jobs and pods of a shared cluster, read as plainly as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionType, JobStatus
from espalier_operator.job.view import state_of
from operator_world.kube_api import owner_of
from operator_world.kube_objects import GPU_RESOURCES, Raw
from operator_world.kube_scheduler import requests_of


@dataclass(frozen=True)
class Seen:
    """A job of the world, read."""

    key: str
    raw: Raw
    status: JobStatus
    template: Raw
    """Of its workers, as the API server makes them."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """What its author wrote."""
        found: Mapping[str, Any] = self.raw["spec"]
        return found

    @cached_property
    def wants(self) -> Counter[str]:
        """What each of its workers requests."""
        return requests_of(self.template)

    @property
    def base(self) -> int:
        """Its base workers, but for those that are completed."""
        return int(self.spec["minReplicas"]) - len(self.status.scheduling.completed_workers)

    @cached_property
    def resource(self) -> str:
        """What its GPUs are."""
        return next(name for name in GPU_RESOURCES if self.wants[name])

    @property
    def gpus(self) -> int:
        """Of its base workers."""
        return self.base * self.wants[self.resource]

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status.completion_time is not None

    @property
    def holds(self) -> bool:
        """Whether base GPUs are its own."""
        return self.status.scheduling.admitted_at is not None and not self.is_over

    @property
    def waits(self) -> bool:
        """Whether it waits for them."""
        return self.status.scheduling.admitted_at is None and not self.is_over

    def is_barred(self, now: float) -> bool:
        """Whether a node has refused its workers, and is not tried again yet."""
        blames = state_of(self.status).blames
        return any(now < blame.barred_until for blame in blames)

    @property
    def reason(self) -> Reason:
        """Why it waits."""
        found = next(each for each in self.status.conditions if each.type is ConditionType.ADMITTED)
        return found.reason


Claimant = tuple[str, str]
"""Namespace and UID of the job that a pod is of, or claims to be of."""


def identity(job: Raw) -> Claimant:
    """Return the namespace and the UID of a job."""
    return job["metadata"]["namespace"], job["metadata"]["uid"]


def claimant(pod: Raw) -> Claimant:
    """Return the job that a pod is of: one of another namespace is not."""
    return pod["metadata"]["namespace"], owner_of(pod) or ""


def times(left: Mapping[str, int], wants: Mapping[str, int]) -> int:
    """Return how often `wants` fits into what is left, 0 or more."""
    return max(0, min((left.get(name, 0) // needed for name, needed in wants.items() if needed), default=0))
