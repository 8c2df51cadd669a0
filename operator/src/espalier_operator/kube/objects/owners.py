"""Which job an object belongs to: by namespace, name and UID, as its owner reference says.

Labels are not evidence: anyone can change them. An owner reference is not evidence either until a job of this UID with
this name is in the object's own namespace: the API server takes any reference, also to a job of another tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

from espalier_core.k8s.resources import Raw
from espalier_core.types.job import GROUP, KIND
from espalier_operator.kube.reading import entries, mapping, text


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job, or what an object claims to be its job."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def owner_of(raw: Raw) -> JobRef | None:
    """Return the job that an object claims as the owner that controls it; None where it claims none."""
    metadata = mapping(raw, "metadata")
    for reference in entries(metadata, "ownerReferences"):
        ours = text(reference, "kind") == KIND and text(reference, "apiVersion").partition("/")[0] == GROUP
        if ours and reference.get("controller") is True and text(reference, "name") and text(reference, "uid"):
            namespace = text(metadata, "namespace") or "default"
            return JobRef(namespace, text(reference, "name"), text(reference, "uid"))
    return None
