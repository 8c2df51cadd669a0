"""A pod as the API server holds it, reduced to what the scheduler reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, Final

from espalier_api.causes import cause_in
from espalier_api.reasons import Reason
from espalier_api.signal import ALLOCATION_ANNOTATION
from espalier_kube.resources import Raw
from espalier_operator.constraints import ANYWHERE, Amounts, Constraints, Expression, Taint, Term, Toleration
from espalier_operator.facts import Role
from espalier_operator.kube.objects import gpus, names
from espalier_operator.kube.objects.device_claims import extended_for, generated_for, with_claimed
from espalier_operator.kube.objects.owners import JobRef, owner_of
from espalier_operator.kube.objects.template import required_node
from espalier_operator.kube.reading import count, entries, mapping, text, time, whole
from espalier_operator.kube.settings import DEVICE_CLASS, KubeSettings

UNREACHABLE: Final = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
"""The taint of a node that does not report."""
DEFAULT_PATIENCE: Final = 300.0
"""What the API server fills in as `tolerationSeconds` of this taint unless a pod tolerates it already."""
MAX_MESSAGE: Final = 1000
"""Maximum characters kept of a pod's messages."""
_NO_DEVICES: Final = "cannot allocate all claims"
"""Part of the message of kube-scheduler (plugin DynamicResources) on a pod for whose claims devices are missing."""
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
    "CrashLoopBackOff",  # of a side-car: all else is restarted never
)
_DISRUPTIONS: Final = ("Evicted", "NodeLost", "Preempted", "Preempting", "Terminated", "Shutdown", "NodeShutdown")
"""`status.reason` of pods that the kubelet or the control plane ended."""
_OWN_USAGE: Final = (
    "Usage of EmptyDir volume ",
    "Pod ephemeral local storage usage exceeds ",
    "exceeded its local ephemeral storage limit ",
)
"""Parts of the kubelet's messages on a pod that it evicts because the pod exceeds limits of its template. Other
evictions are for want of resources of the node ("The node was low on resource: ...")."""
_VANISHED: Final = ("ContainerStatusUnknown", "Unknown")
"""`reason` of a container that went with its node or its runtime; its exit code means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod that holds or wants GPUs, or is a worker of ours. Times in epoch seconds."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    owner: JobRef | None
    """The job whose worker it claims to be by its owner reference and its name; None for a foreign worker."""
    role: Role
    index: int
    attempt: int
    node: str | None
    gpus: int
    gpu_resource: str
    """The resource of its GPUs; of several the first of the settings."""
    place: str | None
    """The planner's node that it is bound to."""
    gpu_type: str | None
    """The type that its node selector insists on."""
    constraints: Constraints
    """What it asks of a node, while it has none."""
    wants_gpus: bool
    """More GPUs on a node may let it start; of a foreign one without a node. kube-scheduler's last answer decides: a
    pod for which it has found no node, and not for lack of GPUs, waits for something else."""
    phase: str
    pinned_to: str | None
    """The planner's node that is the only one that it may be bound to; of a worker."""
    gated: bool
    """It has scheduling gates: it does not want a node yet."""
    deleting: bool
    leaves_at: float | None
    """When its grace period ends, if it is being deleted."""
    grace_seconds: float
    """That grace period."""
    overran: bool
    """It was ended because it exceeded a limit of its template: of its storage, or of its time."""
    disrupted: bool
    """It was evicted, preempted, or lost with its node, and not for a limit of its template."""
    started_at: float | None
    finished_at: float | None
    exit_code: int | None
    """Of the container that trains (the first), once it has ended; of the one that failed, where it never started."""
    trouble: Reason | None
    """What keeps it from starting."""
    message: str
    """Message on its trouble or its end, for a person."""
    patience: float
    """Seconds for which it stays bound to a node that does not report, infinite for ever."""
    announced: tuple[int, str | None] | None
    """Generation and stop of the allocation annotation."""
    device_claims: tuple[str, ...] = ()
    """Keys of the ResourceClaims that were made for it and whose devices are among its GPUs."""
    ready: bool = True
    """The readiness probe of its first container, if it has one, succeeds."""
    address: str = ""
    """Its own address; empty if it has none, or that of its node."""
    container: str = ""
    """Name of its first container."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good: it holds no GPUs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def done(self) -> bool:
        """Whether its worker has ended for good, though another container may still run."""
        return self.ended or self.exit_code is not None


def concerns_gpus(raw: Raw, settings: KubeSettings, claimed: Amounts = ()) -> bool:
    """Return whether a pod requests GPUs, or claims to be a worker of a job; `claimed` as for `parse_pod`."""
    spec = with_claimed(mapping(raw, "spec"), claimed)
    return any(request_of(spec, each) for each in settings.gpu_resources) or owner_of(raw) is not None


def parse_pod(raw: Raw, settings: KubeSettings, claimed: Amounts = ()) -> Pod:
    """Return the facts of a pod. Never raises: a field that is missing or strange counts as absent.

    `claimed` are devices that count as its GPUs, by resource.
    """
    metadata, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    spec = with_claimed(spec, claimed)
    name, namespace = text(metadata, "name"), text(metadata, "namespace") or "default"
    owner, worker = worker_of(raw)
    phase = text(status, "phase") or "Pending"
    trainer, others = _containers(spec, status)
    waits = [state for entry in (*trainer, *others) if (state := mapping(entry, "state", "waiting"))]
    ends = [state for entry in (*trainer, *others) if (state := mapping(entry, "state", "terminated"))]
    own = [state for entry in trainer for state in mapping(entry, "state").values()]
    starts = [at for state in own if (at := time(state, "startedAt")) is not None]
    trouble, message = _trouble(status, waits)
    ended = phase in ("Succeeded", "Failed")
    code = _exit_code(trainer, ends if ended else ())
    overran = _overran(status)
    resource = resource_of(spec, settings)
    selected = text(spec, "nodeSelector", settings.gpu_type_label)
    return Pod(
        name=name,
        namespace=namespace,
        uid=text(metadata, "uid"),
        resource_version=text(metadata, "resourceVersion"),
        owner=owner,
        role=worker[0],
        index=worker[1],
        attempt=worker[2],
        node=text(spec, "nodeName") or None,
        gpus=request_of(spec, resource),
        gpu_resource=resource,
        place=gpus.place_of(text(spec, "nodeName") or None, resource, settings),
        gpu_type=gpus.type_of(selected, resource, settings) if selected else None,
        constraints=gpus.restricted(constraints_of(spec, resource), resource, settings)
        if not text(spec, "nodeName")
        else ANYWHERE,
        wants_gpus=_wants_gpus(spec, status, resource),
        phase=phase,
        pinned_to=None if owner is None else gpus.place_of(required_node(spec), resource, settings),
        gated=any(entries(spec, "schedulingGates")),
        deleting=metadata.get("deletionTimestamp") is not None,
        leaves_at=time(metadata, "deletionTimestamp"),
        grace_seconds=float(min(whole(metadata, "deletionGracePeriodSeconds") or 0, 2**31)),
        overran=overran,
        disrupted=not overran
        and (
            text(status, "reason") in _DISRUPTIONS
            or _is_true(status, "DisruptionTarget")
            or any(text(state, "reason") in _VANISHED for state in own)
        ),
        started_at=min((at for at in starts if at > 0), default=None),  # the kubelet's 1970: it could not be started
        finished_at=max((at for state in own or ends if (at := time(state, "finishedAt")) is not None), default=None),
        exit_code=code,
        trouble=None if ended or code is not None else trouble,
        message=_end_message(status, ends) if ended or code is not None else message,
        patience=DEFAULT_PATIENCE if owner is None else _patience(spec),
        announced=None if owner is None else _announced(metadata),
        device_claims=tuple(f"{namespace}/{each}" for each in _claims(raw, own=owner is not None)),
        ready=owner is None or _is_ready(spec, trainer),
        address="" if owner is None else _address(status),
        container="" if owner is None else next((text(each, "name") for each in entries(spec, "containers")), ""),
    )


def worker_of(raw: Raw) -> tuple[JobRef | None, tuple[Role, int, int]]:
    """Return the job that a pod claims as its own, None if none, and which of its workers it is by its name."""
    owner = owner_of(raw)
    worker = None if owner is None else names.worker_of(owner.name, text(raw, "metadata", "name"))
    return (None, (Role.FOREIGN, 0, 0)) if worker is None else (owner, worker)


@dataclass(frozen=True, slots=True)
class Load:
    """What a pod takes of its node, GPUs excluded."""

    node: str
    requests: Amounts
    owner: JobRef | None
    """As of `Pod`."""


def parse_load(raw: Raw, settings: KubeSettings) -> Load | None:
    """Return what a pod takes of its node; None where it takes nothing any more, or has no node yet.

    Devices that it claims are not part of that.
    """
    spec = mapping(raw, "spec")
    node = text(spec, "nodeName")
    if not node or text(raw, "status", "phase") in ("Succeeded", "Failed"):
        return None
    requests = _shared(requests_of(spec, resource_of(spec, settings)))
    return Load(intern(node), requests, worker_of(raw)[0])


@lru_cache(maxsize=4096)
def _shared(requests: Amounts) -> Amounts:
    """Return `requests`, the same tuple for equal ones: pods by the ten thousand request one of few things."""
    return requests


def _claims(raw: Raw, *, own: bool) -> Iterator[str]:
    """Yield the names of the ResourceClaims of a pod whose devices are among its GPUs.

    Those of others' pods are counted where their devices are: pods may share them.
    """
    if own:
        yield from generated_for(raw).values()
    if extended := extended_for(raw):
        yield extended


def resource_of(spec: Raw, settings: KubeSettings) -> str:
    """Return the first GPU resource of the settings that a pod of `spec` requests; the first one if it has none."""
    if not settings.other_gpu_resources:
        return settings.gpu_resource
    return next((each for each in settings.gpu_resources if request_of(spec, each)), settings.gpu_resource)


def constraints_of(spec: Raw, gpu_resource: str, tolerated: Iterable[str] = ()) -> Constraints:
    """Return what a pod of `spec` asks of nodes; taints with a key in `tolerated` are tolerated as well.

    A malformed requirement matches no node, as for kube-scheduler.
    """
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    selector = mapping(spec, "nodeSelector")
    return Constraints(
        node_selector=tuple(sorted((key, str(value)) for key, value in selector.items())),
        affinity=terms_of(required) if required else None,
        tolerations=(
            *map(_toleration, entries(spec, "tolerations")),
            *(Toleration(key, "Exists") for key in tolerated),
        ),
        requests=requests_of(spec, gpu_resource),
    )


def terms_of(required: Raw) -> tuple[Term, ...]:
    """Return the terms of a required node affinity."""
    return tuple(map(_term, entries(required, "nodeSelectorTerms")))


def _toleration(raw: Raw) -> Toleration:
    operator = text(raw, "operator") or "Equal"
    return Toleration(text(raw, "key"), operator, text(raw, "value"), text(raw, "effect"))


def _term(raw: Raw) -> Term:
    def expressions(field: str) -> tuple[Expression, ...]:
        return tuple(
            Expression(text(each, "key"), text(each, "operator"), tuple(map(str, _values(each))))
            for each in entries(raw, field)
        )

    return Term(expressions("matchExpressions"), expressions("matchFields"))


def _values(expression: Raw) -> Iterable[Any]:
    values = expression.get("values")
    return values if isinstance(values, list | tuple) else ()


def requests_of(spec: Raw, gpu_resource: str) -> Amounts:
    """Return what a pod of `spec` requests of a node, GPUs excluded.

    What is requested for the whole pod stands in place of what its containers request; its limits, where these request
    nothing.
    """
    named = {name for container in _all_containers(spec) for name in _requests(container)}
    overhead, limits = mapping(spec, "overhead"), mapping(spec, "resources", "limits")
    whole_pod = {name: limits[name] for name in limits if name not in named} | {
        **mapping(spec, "resources", "requests")
    }
    amounts = {
        name: (amount_of(name, whole_pod[name]) if name in whole_pod else request_of(spec, name))
        + amount_of(name, overhead.get(name))
        for name in named | overhead.keys() | whole_pod.keys()
    }
    amounts.pop(gpu_resource, None)
    return (*sorted((name, amount) for name, amount in amounts.items() if amount), ("pods", 1))


def amount_of(resource: str, quantity: Any) -> int:
    """Return a quantity of a resource: CPUs in thousandths, because pods request fractions; the rest in whole units."""
    return count(quantity, 1000 if resource == "cpu" else 1)


def _all_containers(spec: Raw) -> Iterator[Raw]:
    yield from entries(spec, "initContainers")
    yield from entries(spec, "containers")


def _requests(container: Raw) -> Raw:
    """Return requests by resource; limits are read where requests are not given, as the API server does."""
    resources = mapping(container, "resources")
    return {**mapping(resources, "limits"), **mapping(resources, "requests")}


def request_of(spec: Raw, resource: str) -> int:
    """Return how much of a resource a pod of `spec` takes: the sum over containers and side-cars, or more where an init
    container, which runs together with the side-cars before it, requests more.
    """

    def of(container: Raw) -> int:
        return amount_of(resource, _requests(container).get(resource))

    running, largest = 0, 0
    for container in entries(spec, "initContainers"):
        if _is_side_car(container):
            running += of(container)
            largest = max(largest, running)
        else:
            largest = max(largest, running + of(container))
    return max(running + sum(of(container) for container in entries(spec, "containers")), largest)


def _is_side_car(container: Raw) -> bool:
    return text(container, "restartPolicy") == "Always"


def _containers(spec: Raw, status: Raw) -> tuple[Sequence[Raw], Sequence[Raw]]:
    """Return the statuses of the container that trains (one or none), and of the others.

    The kubelet sorts them by name, so the first of the template has to be looked up.
    """
    first = next((text(container, "name") for container in entries(spec, "containers")), "")
    statuses = list(entries(status, "containerStatuses"))
    trainer = [entry for entry in statuses if text(entry, "name") == first][:1]
    others = [entry for entry in statuses if text(entry, "name") != first]
    return trainer, [*others, *entries(status, "initContainerStatuses")]


def _exit_code(trainer: Iterable[Raw], ends: Iterable[Raw]) -> int | None:
    own = [mapping(entry, "state", "terminated") for entry in trainer]
    if own and own[0]:
        return whole(own[0], "exitCode")
    codes = [code for end in ends if (code := whole(end, "exitCode")) is not None]
    return next((code for code in codes if code), None)  # ended before the worker began


def _trouble(status: Raw, waits: Iterable[Raw]) -> tuple[Reason | None, str]:
    for waiting in waits:
        reason = text(waiting, "reason")
        message = f"{reason}: {text(waiting, 'message')}".rstrip(": ")[:MAX_MESSAGE]
        if reason in _PULL_TROUBLE:
            return Reason.IMAGE_PULL_FAILED, message
        if reason in _START_TROUBLE:
            return Reason.POD_REJECTED, message
    refusal = _scheduler_refusal(status)
    return (None, "") if refusal is None else (Reason.UNSCHEDULABLE, refusal[:MAX_MESSAGE])


def _scheduler_refusal(status: Raw) -> str | None:
    """Return why kube-scheduler found no node for the pod, None where it has found one or has not tried."""
    for condition in entries(status, "conditions"):
        if text(condition, "type") == "PodScheduled" and text(condition, "reason") == "Unschedulable":
            return text(condition, "message")
    return None


def _wants_gpus(spec: Raw, status: Raw, resource: str) -> bool:
    if (text(spec, "schedulerName") or _DEFAULT_SCHEDULER) != _DEFAULT_SCHEDULER:
        return False  # when and where another scheduler binds it is not known
    refusal = _scheduler_refusal(status)
    missing = _NO_DEVICES if resource.startswith(DEVICE_CLASS) else f"Insufficient {resource}"
    return refusal is None or missing in refusal


def _overran(status: Raw) -> bool:
    reason, message = text(status, "reason"), text(status, "message")
    return reason == "DeadlineExceeded" or (reason == "Evicted" and any(part in message for part in _OWN_USAGE))


def _end_message(status: Raw, ends: Iterable[Raw]) -> str:
    ends = list(ends)
    words = [text(status, "reason"), text(status, "message")]
    words += [reason for end in ends if (reason := text(end, "reason")) not in ("Completed", "Error")]
    words += [cause_in(text(end, "message")) for end in ends]  # the end of its log, if it wrote nothing else
    return ": ".join(word for word in words if word)[:MAX_MESSAGE]


def _patience(spec: Raw) -> float:
    """Return for how long a pod tolerates that its node does not report: the shortest of its tolerations.

    One of all taints is meant for others, and does not make it stay for ever.
    """
    fitting = [each for each in entries(spec, "tolerations") if _toleration(each).tolerates(UNREACHABLE)]
    seconds = [max(0, limit) for each in fitting if (limit := whole(each, "tolerationSeconds")) is not None]
    if seconds:
        return float(min(seconds))
    return math.inf if any(text(each, "key") for each in fitting) else DEFAULT_PATIENCE


def _announced(metadata: Raw) -> tuple[int, str | None] | None:
    try:
        document = json.loads(text(metadata, "annotations", ALLOCATION_ANNOTATION))
    except (ValueError, RecursionError):
        return None  # somebody changed it; it is written again
    generation = whole(document, "allocation", "generation")
    return None if generation is None else (generation, text(document, "stop") or None)


def _is_ready(spec: Raw, trainer: Iterable[Raw]) -> bool:
    first = next(entries(spec, "containers"), {})
    return not mapping(first, "readinessProbe") or any(entry.get("ready") is True for entry in trainer)


def _address(status: Raw) -> str:
    own = text(status, "podIP")
    return "" if own == text(status, "hostIP") else own


def _is_true(status: Raw, kind: str) -> bool:
    conditions = entries(status, "conditions")
    return any(text(entry, "type") == kind and text(entry, "status") == "True" for entry in conditions)
