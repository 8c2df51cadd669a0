"""Interpretation of a pod's status: obstacles to its start, and its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from espalier_core.causes import cause_in
from espalier_core.k8s.resources import Raw
from espalier_core.types.reasons import Reason
from espalier_operator.kube.reading import entries, mapping, text, time, whole
from espalier_operator.kube.settings import DEVICE_CLASS

MAX_MESSAGE: Final = 1000
"""Maximum length of a stored message of a pod, in characters."""
_NO_DEVICES: Final = "cannot allocate all claims"
"""Part of kube-scheduler's message (plugin DynamicResources) on a pod without devices for its claims."""
_JUDGED: Final = (
    "Insufficient ",
    "Too many pods",
    "node(s) had untolerated taint ",
    "node(s) had taint ",
    "node(s) were unschedulable",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    _NO_DEVICES,
)
"""Beginnings of kube-scheduler's reasons that the planner evaluates itself (`espalier_operator.model.constraints`)."""
_NO_VOLUME: Final = (
    "persistentvolumeclaim ",
    "unbound immediate PersistentVolumeClaims",
    "available persistent volumes to bind",
)
"""Parts of kube-scheduler's messages on a pod whose volumes exist on no node, so that no node would help."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_PULL_TROUBLE: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
_START_TROUBLE: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
    "CrashLoopBackOff",  # of a side-car, as no other container is restarted
)
_EVICTED: Final = "Evicted"
_RUNTIME_TROUBLE: Final = ("CreateContainerError", "RunContainerError")
"""Reasons in `_START_TROUBLE` for which another node may do better: its devices, hooks or runtime fail."""
_DISRUPTIONS: Final = (_EVICTED, "NodeLost", "Preempted", "Preempting", "Terminated", "Shutdown", "NodeShutdown")
"""Values of `status.reason` of pods that the kubelet or the control plane ended."""
_OWN_USAGE: Final = (
    "Usage of EmptyDir volume ",
    "Pod ephemeral local storage usage exceeds ",
    "exceeded its local ephemeral storage limit ",
)
"""Parts of the kubelet's messages on a pod evicted because it exceeds limits of its template. Other evictions are due
to a lack of resources of the node ("The node was low on resource: ...")."""
_VANISHED: Final = ("ContainerStatusUnknown", "Unknown")
"""Values of `reason` of a container lost with its node or its runtime; its exit code means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """The state of a pod. Times in epoch seconds."""

    phase: str
    overran: bool
    """It was ended because it exceeded a limit of its template, of storage or time."""
    disrupted: bool
    """It was evicted, preempted, or lost with its node or its device, but not for a limit of its template."""
    stuck_since: float | None
    """Time since which the runtime of its node may have failed to create or start its containers, if it has."""
    by_node: bool
    """Its node refused it, evicted it for lack of resources, lost it, or gave it a failed device; elsewhere it may
    run."""
    started_at: float | None
    finished_at: float | None
    exit_code: int | None
    """Exit code of the training container once it has ended, or of the one that failed before it started."""
    trouble: Reason | None
    """The obstacle to its start."""
    message: str
    """Message on its trouble or its end, for people."""
    broken: bool
    """The kubelet reports one of its devices as unhealthy (Kubernetes' feature ResourceHealthStatus)."""
    ready: bool
    """The readiness probe of the training container, if any, succeeds."""
    refused: bool
    """It waits for something that may never come. This excludes a node that cannot start it (`stuck_since`), and a
    volume, which may take minutes to mount."""
    prepared: bool | None
    """Its node has mounted its volumes and made its network and sandbox (condition PodReadyToStartContainers); None:
    unknown."""


def read_status(spec: Raw, status: Raw, trainer_name: str) -> PodStatus:
    """Return the state of a pod of `spec` with the training container `trainer_name`. Never raises."""
    phase = text(status, "phase") or "Pending"
    trainer, others = _containers(status, trainer_name)
    waits = [state for entry in (*trainer, *others) if (state := mapping(entry, "state", "waiting"))]
    ends = [state for entry in (*trainer, *others) if (state := mapping(entry, "state", "terminated"))]
    own = [state for entry in trainer for state in mapping(entry, "state").values() if isinstance(state, Mapping)]
    starts = [at for state in own if (at := time(state, "startedAt")) is not None]
    ended = phase in ("Succeeded", "Failed")
    code, overran = _exit_code(trainer, ends if ended else ()), _overran(status)
    done = ended or code is not None
    said = [state for state in own if "exitCode" in state] or ends  # the ends of side-cars do not matter
    trouble, message = (None, _end_message(status, said)) if done else _trouble(spec, status, waits)
    broken = any(map(_has_unhealthy_device, (*trainer, *others)))
    if failed_by_device := broken and code not in (None, 0):
        message = ": ".join(filter(None, (message, "one of its devices is unhealthy")))[-MAX_MESSAGE:]
    stuck = not done and _is_stuck(waits)
    mounts = trouble is Reason.VOLUME_UNAVAILABLE and bool(text(spec, "nodeName"))
    return PodStatus(
        phase=phase,
        overran=overran,
        disrupted=not overran and (_is_disrupted(status, own) or failed_by_device),
        stuck_since=time(status, "startTime") if stuck else None,
        by_node=not overran and ((phase == "Failed" and _is_by_node(status, own, code)) or failed_by_device),
        started_at=min((at for at in starts if at > 0), default=None),  # 1970 from the kubelet: could not be started
        finished_at=max((at for state in own or ends if (at := time(state, "finishedAt")) is not None), default=None),
        exit_code=code,
        trouble=trouble,
        message=message,
        broken=broken,
        ready=_is_ready(spec, trainer_name, trainer),
        refused=trouble not in (None, Reason.SCHEDULING_GATED) and phase == "Pending" and not (stuck or mounts),
        prepared=_is_prepared(status, phase),
    )


def wants_gpus(spec: Raw, status: Raw, resource: str) -> bool:
    """Return whether more GPUs of `resource` on a node may let an unbound pod start; see `Pod.wants_gpus`."""
    if (text(spec, "schedulerName") or _DEFAULT_SCHEDULER) != _DEFAULT_SCHEDULER:
        return False  # another scheduler's choice of time and node is unknown
    refusal = _scheduler_refusal(status)
    missing = _NO_DEVICES if resource.startswith(DEVICE_CLASS) else f"Insufficient {resource}"
    return refusal is None or missing in refusal


def barred_nodes(status: Raw) -> int:
    """Return the number of nodes that kube-scheduler last refused for a pod for reasons unknown to the planner.

    They are affinity to other pods, topology spread, volumes, ports and the like. kube-scheduler names one plugin per
    node, and most of these come after the one for GPUs, so such nodes have GPUs for the pod.
    """
    reasons = (_scheduler_refusal(status) or "").partition(" nodes are available: ")[2].partition(" preemption: ")[0]
    found = (re.fullmatch("([0-9]{1,6}) (.*)", each, re.DOTALL) for each in re.split(", (?=[0-9])", reasons))
    return sum(int(each[1]) for each in found if each is not None and not each[2].startswith(_JUDGED))


def _containers(status: Raw, trainer_name: str) -> tuple[Sequence[Raw], Sequence[Raw]]:
    """Return the statuses of the training container (one or none), and of the others."""
    statuses = list(entries(status, "containerStatuses"))
    trainer = [entry for entry in statuses if text(entry, "name") == trainer_name][:1]
    others = [entry for entry in statuses if text(entry, "name") != trainer_name]
    return trainer, [*others, *entries(status, "initContainerStatuses")]


def _exit_code(trainer: Iterable[Raw], ends: Iterable[Raw]) -> int | None:
    own = [mapping(entry, "state", "terminated") for entry in trainer]
    if own and own[0]:
        return whole(own[0], "exitCode")
    codes = [code for end in ends if (code := whole(end, "exitCode")) is not None]
    return next((code for code in codes if code), None)  # ended before the worker began


def _trouble(spec: Raw, status: Raw, waits: Iterable[Raw]) -> tuple[Reason | None, str]:
    if gates := ", ".join(text(gate, "name") for gate in entries(spec, "schedulingGates")):
        return Reason.SCHEDULING_GATED, f"its pods wait for the removal of scheduling gates: {gates}"[:MAX_MESSAGE]
    for waiting in waits:
        reason = text(waiting, "reason")
        message = f"{reason}: {text(waiting, 'message')}".rstrip(": ")[:MAX_MESSAGE]
        if reason in _PULL_TROUBLE:
            return Reason.IMAGE_PULL_FAILED, message
        if reason in _START_TROUBLE:
            return Reason.POD_REJECTED, message
    refusal = _scheduler_refusal(status)
    if refusal is None:
        return None, ""
    volume = any(part in refusal for part in _NO_VOLUME)
    return Reason.VOLUME_UNAVAILABLE if volume else Reason.UNSCHEDULABLE, refusal[:MAX_MESSAGE]


def _scheduler_refusal(status: Raw) -> str | None:
    """Return the reason for which kube-scheduler found no node; None where it has found one or has not tried."""
    for condition in entries(status, "conditions"):
        if text(condition, "type") == "PodScheduled" and text(condition, "reason") == "Unschedulable":
            return text(condition, "message")
    return None


def _overran(status: Raw) -> bool:
    reason, message = text(status, "reason"), text(status, "message")
    return reason == "DeadlineExceeded" or (reason == "Evicted" and any(part in message for part in _OWN_USAGE))


def _is_disrupted(status: Raw, own: Iterable[Raw]) -> bool:
    return (
        text(status, "reason") in _DISRUPTIONS
        or _is_true(status, "DisruptionTarget")
        or any(text(state, "reason") in _VANISHED for state in own)
    )


def _is_stuck(waits: Iterable[Raw]) -> bool:
    return any(text(waiting, "reason") in _RUNTIME_TROUBLE for waiting in waits)


def _is_by_node(status: Raw, own: Iterable[Raw], code: int | None) -> bool:
    reason = text(status, "reason")
    refused = code is None and reason not in ("", *_DISRUPTIONS)
    return refused or reason == _EVICTED or any(text(state, "reason") in _VANISHED for state in own)


def _end_message(status: Raw, ends: Iterable[Raw]) -> str:
    ends = list(ends)
    words = [text(status, "reason"), text(status, "message")]
    words += [reason for end in ends if (reason := text(end, "reason")) not in ("Completed", "Error")]
    words += [cause_in(text(end, "message")) for end in ends]  # the end of its log, unless it wrote a message
    return ": ".join(word for word in words if word)[:MAX_MESSAGE]


def _has_unhealthy_device(container: Raw) -> bool:
    devices = (each for kind in entries(container, "allocatedResourcesStatus") for each in entries(kind, "resources"))
    return any(text(device, "health") == "Unhealthy" for device in devices)


def _is_ready(spec: Raw, trainer_name: str, trainer: Iterable[Raw]) -> bool:
    named = (each for each in entries(spec, "containers") if text(each, "name") == trainer_name)
    return not mapping(next(named, {}), "readinessProbe") or any(entry.get("ready") is True for entry in trainer)


def _is_prepared(status: Raw, phase: str) -> bool | None:
    if phase != "Pending":
        return True
    known = [entry for entry in entries(status, "conditions") if text(entry, "type") == "PodReadyToStartContainers"]
    return text(known[0], "status") == "True" if known else None


def _is_true(status: Raw, kind: str) -> bool:
    conditions = entries(status, "conditions")
    return any(text(entry, "type") == kind and text(entry, "status") == "True" for entry in conditions)
