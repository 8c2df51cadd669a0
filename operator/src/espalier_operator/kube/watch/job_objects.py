"""The object of a job as the store keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from espalier_core.k8s.resources import Raw, key_of
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.reading import text as text_of
from espalier_operator.kube.reading import time as time_of
from espalier_operator.kube.settings import KubeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObject:
    """A job's object, read."""

    key: str
    uid: str
    generation: int
    version: str
    """Its `metadata.resourceVersion`, with that of its status."""
    deleting: bool
    orphans: bool
    """Its deletion is to leave what it owns (`kubectl delete --cascade=orphan`)."""
    parsed: KubeJob | InvalidJob
    raw: Raw
    """Without its status."""
    status: Mapping[str, Any] | None

    @property
    def ref(self) -> JobRef:
        """What its objects name as their owner."""
        namespace, _, name = self.key.partition("/")
        return JobRef(namespace, name, self.uid)

    @property
    def created_at(self) -> float:
        """When it was made, epoch seconds."""
        return time_of(self.raw, "metadata", "creationTimestamp") or 0.0


def job_object(
    raw: Raw, before: JobObject | None, settings: KubeSettings, parse: Callable[[Raw], KubeJob | InvalidJob]
) -> JobObject | None:
    """Return a job of this operator, None for another's; `parse` reads its specification, if `before` has another one.

    Another's workers count as pods of others.
    """
    if (text_of(raw, "spec", "controllerName") or DEFAULT_CONTROLLER) != settings.controller_name:
        return None
    metadata = raw["metadata"]
    generation, deleting = int(metadata["generation"]), "deletionTimestamp" in metadata
    version = str(metadata["resourceVersion"])
    orphans = deleting and "orphan" in (metadata.get("finalizers") or ())
    if before is not None and before.uid == metadata["uid"] and before.generation == generation:
        return replace(before, version=version, deleting=deleting, orphans=orphans, status=raw.get("status"))
    kept = {key: value for key, value in raw.items() if key != "status"}
    kept["metadata"] = {key: value for key, value in metadata.items() if key != "managedFields"}
    return JobObject(
        key=key_of(raw),
        uid=metadata["uid"],
        generation=generation,
        version=version,
        deleting=deleting,
        orphans=orphans,
        parsed=parse(kept),
        raw=kept,
        status=raw.get("status"),
    )
