"""A pod as the API server holds it, reduced to what the scheduler reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from espalier_api.job import KIND
from espalier_api.reasons import Reason
from espalier_api.signal import ALLOCATION_ANNOTATION
from espalier_operator.facts import Role
from espalier_operator.kube import names
from espalier_operator.kube.settings import KubeSettings

_PULL_TROUBLE: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_START_TROUBLE: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod that holds or wants GPUs, or is a worker of ours. Times in epoch seconds."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    job: str | None
    """Key of the job that owns it; None for an alien."""
    job_uid: str | None
    role: Role
    index: int
    attempt: int
    node: str | None
    gpus: int
    gpu_type: str | None
    """The type that its node selector insists on."""
    phase: str
    gated: bool
    """It has scheduling gates: it does not want a node yet."""
    deleting: bool
    disrupted: bool
    """It was evicted, preempted, or lost with its node."""
    started_at: float | None
    finished_at: float | None
    exit_code: int | None
    """The first that is not 0, once all containers have ended."""
    trouble: Reason | None
    """What keeps it from starting."""
    message: str
    """On its trouble or its end, for a person."""
    told: tuple[int, str | None] | None
    """Generation and stop of the allocation annotation."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")


def parse_pod(raw: Mapping[str, Any], settings: KubeSettings) -> Pod:
    """Return the facts of a pod."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    owner = _owner(metadata, labels)
    containers = [entry.get("state") or {} for entry in status.get("containerStatuses") or ()]
    ends = [state["terminated"] for state in containers if state.get("terminated")]
    phase = status.get("phase", "Pending")
    code = next((int(end["exitCode"]) for end in ends if end.get("exitCode")), 0 if ends else None)
    waits = [state["waiting"] for state in containers if state.get("waiting")]
    waits += [
        entry["state"]["waiting"]
        for entry in status.get("initContainerStatuses") or ()
        if (entry.get("state") or {}).get("waiting")
    ]
    trouble, message = _trouble(status, waits)
    if phase in ("Succeeded", "Failed"):
        message = _end_message(status, ends)
    running = [state["running"] for state in containers if state.get("running")]
    return Pod(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata["uid"],
        resource_version=metadata.get("resourceVersion", ""),
        job=None if owner is None else f"{metadata.get('namespace', 'default')}/{owner[0]}",
        job_uid=None if owner is None else owner[1],
        role=Role.ALIEN if owner is None else Role(labels[names.ROLE_LABEL]),
        index=0 if owner is None else _number(labels.get(names.INDEX_LABEL)),
        attempt=0 if owner is None else _number(labels.get(names.ATTEMPT_LABEL)),
        node=spec.get("nodeName"),
        gpus=_gpus(spec, settings.gpu_resource),
        gpu_type=(spec.get("nodeSelector") or {}).get(settings.gpu_type_label),
        phase=phase,
        gated=bool(spec.get("schedulingGates")),
        deleting="deletionTimestamp" in metadata,
        disrupted=status.get("reason") in ("Evicted", "NodeLost", "Preempted", "Terminated", "Shutdown")
        or _is_true(status, "DisruptionTarget"),
        started_at=_first((*running, *ends), "startedAt"),
        finished_at=_last(ends, "finishedAt"),
        exit_code=code if phase in ("Succeeded", "Failed") else None,
        trouble=trouble,
        message=message,
        told=None if owner is None else _told(metadata),
    )


def _owner(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Return name and UID of the job that the pod is a worker of. Labels alone can be put on by anyone."""
    if labels.get(names.ROLE_LABEL) not in (Role.BASE, Role.EXTRA):
        return None
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("kind") == KIND and reference.get("controller"):
            return reference["name"], reference["uid"]
    return None


def _gpus(spec: Mapping[str, Any], resource: str) -> int:
    """Return the effective request: the sum over containers and side-cars, or the largest init container if more.

    Limits are read where requests are not given: for extended resources they are equal.
    """

    def of(container: Mapping[str, Any]) -> int:
        resources = container.get("resources") or {}
        amount = (resources.get("requests") or {}).get(resource, (resources.get("limits") or {}).get(resource, 0))
        return int(amount) if str(amount).isdecimal() else 0

    running, largest = 0, 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            running += of(container)
            largest = max(largest, running)
        else:
            largest = max(largest, running + of(container))
    return max(running + sum(of(container) for container in spec.get("containers") or ()), largest)


def _trouble(status: Mapping[str, Any], waits: Iterable[Mapping[str, Any]]) -> tuple[Reason | None, str]:
    for waiting in waits:
        reason = waiting.get("reason", "")
        message = f"{reason}: {waiting.get('message', '')}".rstrip(": ")
        if reason in _PULL_TROUBLE:
            return Reason.IMAGE_PULL_FAILED, message
        if reason in _START_TROUBLE:
            return Reason.POD_REJECTED, message
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Reason.UNSCHEDULABLE, condition.get("message", "")
    return None, ""


def _end_message(status: Mapping[str, Any], ends: Iterable[Mapping[str, Any]]) -> str:
    words = [status.get("reason", ""), status.get("message", "")]
    words += [end["reason"] for end in ends if end.get("reason") not in (None, "Completed", "Error")]
    words += [end["message"].strip() for end in ends if end.get("message")]
    return ": ".join(word for word in words if word)[:500]


def _told(metadata: Mapping[str, Any]) -> tuple[int, str | None] | None:
    try:
        document = json.loads((metadata.get("annotations") or {})[ALLOCATION_ANNOTATION])
        return int(document["allocation"]["generation"]), document.get("stop")
    except (KeyError, TypeError, ValueError):
        return None  # somebody changed it; it is written anew


def _is_true(status: Mapping[str, Any], kind: str) -> bool:
    return any(entry.get("type") == kind and entry.get("status") == "True" for entry in status.get("conditions") or ())


def _first(entries: Iterable[Mapping[str, Any]], field: str) -> float | None:
    return min((seconds(entry[field]) for entry in entries if entry.get(field)), default=None)


def _last(entries: Iterable[Mapping[str, Any]], field: str) -> float | None:
    return max((seconds(entry[field]) for entry in entries if entry.get(field)), default=None)


def seconds(text: str) -> float:
    """Return epoch seconds of a Kubernetes time."""
    return datetime.fromisoformat(text).timestamp()


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
