"""Kueue's Workloads and ResourceFlavors, read; and the Workload of a job, by which Kueue admits its base workers. Pure.

A job labelled with a LocalQueue has its quota there. Its Workload is owned by it, created while it wants base GPUs, and
deleted to give the quota back: a Workload's status is never written. Kueue's assignments, by flavors and admission
checks, are added to the job's pods, and to the planner's constraints.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from espalier_core.k8s.resources import WORKLOADS, Raw, key_of
from espalier_core.types.job import GROUP
from espalier_operator.kube.objects import names, nodes
from espalier_operator.kube.objects.jobs import Assignment, KubeJob
from espalier_operator.kube.objects.manifests import metadata
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.template import Manifest
from espalier_operator.kube.objects.worker_pod import trainer_spec
from espalier_operator.kube.reading import entries, mapping, text, whole
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Worker, WorkerRole, WorkerState
from espalier_operator.model.queues import ExternalAdmission

BOOST: Final = "kueue.x-k8s.io/priority-boost"
"""The annotation of a Workload with an addition to its priority in Kueue (alpha, feature gate PriorityBoost)."""
ASKS: Final = f"{GROUP}/asks"
"""The annotation of a Workload with a digest of its job's request at its creation."""
NO_KUEUE: Final = f"the API server has no Workloads of {WORKLOADS.group}/{WORKLOADS.version}: Kueue is away, or too old"
_LOWEST: Final = -(2**31)
_POD_SET: Final = "main"
_SCHEDULED: Final = (
    *("nodeSelector", "affinity", "tolerations", "overhead", "runtimeClassName", "resources", "resourceClaims"),
    "schedulerName",
)
"""Fields of a pod by which Kueue counts it and chooses flavors."""
_OF_CONTAINER: Final = ("name", "resources", "restartPolicy")
_WORDS: Final = ("Finished", "Evicted", "Admitted", "QuotaReserved")
"""Conditions whose messages describe a Workload, in order of preference."""
_NO_QUOTA: Final = "insufficient unused quota"
_TOPOLOGY: Final = "topology"
"""Parts of Kueue's messages on what a Workload lacks."""
_HOPELESS: Final = "> maximum capacity"
"""Part of Kueue's message on a request that its queue's quotas could never meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A ResourceFlavor: the constraints of pods that count towards it."""

    node_labels: Mapping[str, str]
    tolerations: tuple[Raw, ...]


@dataclass(frozen=True, slots=True)
class Asks:
    """A Workload's request to Kueue."""

    quota: tuple[object, ...]
    """Queue, number of pods, and requests of each. A running job must not use anything else."""
    digest: str
    """Digest of the whole request, including the fields that decide about flavors and order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Workload of Kueue."""

    key: str
    uid: str
    version: int
    owner: JobRef | None
    """The job that it claims as its own."""
    asks: Asks
    extra: int | None
    """Number of the Workload among those of extra workers; None: the Workload of the base workers."""
    deleting: bool
    active: bool
    boost: str
    admitted: bool
    """It has its quota, all admission checks have passed, and it is not evicted."""
    lost: bool
    """Kueue has taken the quota back, or has refused it."""
    over: bool
    """It will not be admitted as it is: it is evicted, or finished."""
    message: str
    """Kueue's message; empty where there is none."""
    flavors: frozenset[str]
    updates: tuple[Raw, ...]
    """Pod updates by admission checks."""
    waits: tuple[Worker, ...]
    """Its pods that want GPUs, if it is not admitted but may be."""


def parse_flavor(raw: Raw) -> Flavor:
    """Return a ResourceFlavor."""
    spec = mapping(raw, "spec")
    return Flavor(node_labels=_texts(spec, "nodeLabels"), tolerations=tuple(entries(spec, "tolerations")))


def parse_workload(raw: Raw, settings: KubeSettings) -> Workload | None:
    """Return a Workload; None for a stranger's that is admitted or over. Never raises."""
    spec, status = mapping(raw, "spec"), mapping(raw, "status")
    found = {text(each, "type"): each for each in entries(status, "conditions")}
    holds = {kind for kind, each in found.items() if text(each, "status") == "True"}
    active, owner = spec.get("active") is not False, names.owner_of(raw)
    over = bool(holds & {"Finished", "Evicted"})
    refused = "QuotaReserved" in found and "QuotaReserved" not in holds
    admitted = "Admitted" in holds and active and not over
    deleting = mapping(raw, "metadata").get("deletionTimestamp") is not None
    hopeless = text(found.get("QuotaReserved"), "reason") == "Inadmissible" or any(
        _HOPELESS in text(each, "message") for each in found.values()
    )
    pending = active and not (admitted or over or deleting) and not (refused and hopeless)
    if owner is None and not pending:
        return None
    index = text(raw, "metadata", "labels", names.INDEX_LABEL)
    extra = int(index) if owner is not None and index.isdecimal() else None
    assigned = next(entries(status, "admission", "podSetAssignments"), {})
    return Workload(
        key=key_of(raw),
        uid=text(raw, "metadata", "uid"),
        version=int(text(raw, "metadata", "resourceVersion") or 0),
        owner=owner,
        asks=Asks(_quota(spec, settings), text(raw, "metadata", "annotations", ASKS)),
        extra=extra,
        deleting=deleting,
        active=active,
        boost=text(raw, "metadata", "annotations", BOOST),
        admitted=admitted,
        lost=over or refused or not active,
        over=over,
        message=_message(status, found, active=active),
        flavors=frozenset(_texts(assigned, "flavors").values()),
        updates=tuple(
            update for check in entries(status, "admissionChecks") for update in entries(check, "podSetUpdates")
        ),
        waits=tuple(_waiting(raw, settings)) if pending and extra is None and _needs_gpus(found, settings) else (),
    )


def _needs_gpus(found: Mapping[str, Raw], settings: KubeSettings) -> bool:
    """Return whether GPUs of extra workers may be what Kueue misses for a Workload.

    Extra workers outside of its quotas do not use these up: where only a quota is short, GPUs taken from them would be
    idle until that is raised. Topology-aware scheduling counts their pods.
    """
    reserved = found.get("QuotaReserved")
    if reserved is None:
        return False  # Kueue has not looked at it
    said = text(reserved, "message")
    lacks_quota = text(reserved, "status") != "True" and _NO_QUOTA in said and _TOPOLOGY not in said
    return settings.kueue_extra_workers or not lacks_quota


def _message(status: Raw, found: Mapping[str, Raw], *, active: bool) -> str:
    """Return Kueue's message on a Workload."""
    checks = (each for each in entries(status, "admissionChecks") if text(each, "state") not in ("", "Ready"))
    waits_for = next((f"admission check {text(each, 'name')}: {text(each, 'message')}" for each in checks), "")
    said = next((text(found[kind], "message") for kind in _WORDS if text(found.get(kind), "message")), "")
    if "QuotaReserved" in found and text(found["QuotaReserved"], "status") == "True" and waits_for:
        said = waits_for
    return said if active else f"its Workload is deactivated (spec.active is false). {said}".rstrip()


def _waiting(raw: Raw, settings: KubeSettings) -> Iterator[Worker]:
    """Yield the sets of pods of a Workload that want GPUs."""
    for pod_set in entries(raw, "spec", "podSets"):
        spec, count = mapping(pod_set, "template", "spec"), whole(pod_set, "count") or 0
        resource = nodes.resource_of(spec, settings)
        gpus, selected = nodes.request_of(spec, resource), text(spec, "nodeSelector", settings.gpu_type_label)
        if not gpus or count < 1:
            continue
        yield Worker(
            name=f"{key_of(raw)} (Workload, {text(pod_set, 'name')})",
            job=None,
            role=WorkerRole.FOREIGN,
            node=None,
            gpus=gpus,
            state=WorkerState.PENDING,
            gpu_type=nodes.type_of(selected, resource, settings) if selected else None,
            constraints=nodes.restricted(nodes.constraints_of(spec, resource), resource, settings),
            queued=count,
        )


def tolerating(waits: Iterable[Worker], flavors: Iterable[Flavor]) -> Iterator[Worker]:
    """Yield pods of a Workload with the tolerations of all flavors, as its flavor is not known yet."""
    more = tuple(nodes.toleration_of(each) for flavor in flavors for each in flavor.tolerations)
    for worker in waits:
        constraints = replace(worker.constraints, tolerations=(*worker.constraints.tolerations, *more))
        yield replace(worker, constraints=constraints) if more else worker


def admission_by(
    workload: Workload | None, asks: Asks | None, flavors: Mapping[str, Flavor], trouble: str
) -> ExternalAdmission:
    """Return Kueue's decision about a job with the request `asks` (None: the request of its Workload).

    `trouble` is the reason for a missing Workload. Without a message from Kueue, no quota counts as taken back.
    """
    if workload is None:
        return ExternalAdmission(message=trouble or "its Workload is to be made")
    if asks is not None and workload.asks.quota != asks.quota:
        message = "it has changed, and asks for other than its Workload does, which is made again"
        return ExternalAdmission(withdrawn=True, message=message)
    unknown = sorted(workload.flavors - flavors.keys())
    if workload.admitted and unknown:
        return ExternalAdmission(message=f"Kueue has admitted it to ResourceFlavor {unknown[0]}, which cannot be read")
    silent = f"Kueue has not looked at its Workload {workload.key} yet; its controller may be away"
    admitted = workload.admitted and not workload.deleting
    return ExternalAdmission(admitted=admitted, withdrawn=workload.lost, message=workload.message or silent)


def extras_by(workloads: Collection[Workload], extra: int) -> tuple[int, int]:
    """Return the numbers of a job's extra workers that Kueue has admitted, and of the `extra` that it has taken back.

    No more count as admitted until Kueue has decided about each, so that loans are announced together.
    """
    admitted = sum(each.admitted and not each.deleting for each in workloads)
    lost = sum(each.lost for each in workloads)
    said = all(each.admitted or each.lost for each in workloads)
    return admitted if said else min(admitted, extra), max(0, lost - max(0, len(workloads) - extra))


def assignment_of(workload: Workload, flavors: Mapping[str, Flavor]) -> Assignment:
    """Return Kueue's additions to the pods of a job with an admitted Workload."""
    known = [flavors[name] for name in sorted(workload.flavors) if name in flavors]
    changes = [(each.node_labels, each.tolerations) for each in known]
    changes += [(_texts(each, "nodeSelector"), tuple(entries(each, "tolerations"))) for each in workload.updates]
    return Assignment(
        node_labels={key: value for labels, _ in changes for key, value in labels.items()},
        tolerations=tuple(toleration for _, tolerations in changes for toleration in tolerations),
        labels={key: value for each in workload.updates for key, value in _texts(each, "labels").items()},
        annotations={key: value for each in workload.updates for key, value in _texts(each, "annotations").items()},
    )


def boost_of(lost_seconds: float) -> int:
    """Return the priority boost of a running job among others of its priority, 0 to 9, by its loss if it stops.

    The boost rises by 1 with each doubling, so that it is rarely written: 1 from a minute on, 9 from four hours on.
    """
    return min(9, max(0, 1 + int(math.log2(max(lost_seconds, 1.0) / 60.0)))) if lost_seconds >= 60.0 else 0


def workload_of(job: KubeJob, settings: KubeSettings, *, active: bool = True, extra: int | None = None) -> Manifest:
    """Return the Workload of a job's base workers, or of one of its extra workers.

    For a running job whose Workload is gone, it has the assigned node labels, so that the job gets them again.
    """
    spec = _asked(job, settings)
    named = metadata(job, names.workload_name(job.name, job.uid, extra))
    named["annotations"] = {ASKS: _digest(spec)}
    if extra is not None:
        named["labels"][names.INDEX_LABEL] = str(extra)
        spec["priority"], spec["podSets"][0]["count"] = _LOWEST, 1
    labels = job.assigned.node_labels if job.assigned is not None else {}
    if labels:
        pods = spec["podSets"][0]["template"]["spec"]
        pods["nodeSelector"] = {**pods.get("nodeSelector", {}), **labels}
    if not active:
        spec["active"] = False
    version = f"{WORKLOADS.group}/{WORKLOADS.version}"
    return {"apiVersion": version, "kind": WORKLOADS.kind, "metadata": named, "spec": spec}


def asks_of(job: KubeJob, settings: KubeSettings) -> Asks:
    """Return a job's request to Kueue."""
    spec = _asked(job, settings)
    return Asks(_quota(spec, settings), _digest(spec))


def _digest(spec: Raw) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def _quota(spec: Raw, settings: KubeSettings) -> tuple[object, ...]:
    pod_set = next(entries(spec, "podSets"), {})
    pod = mapping(pod_set, "template", "spec")
    resource = nodes.resource_of(pod, settings)
    requests = nodes.request_of(pod, resource), *nodes.requests_of(pod, resource)
    return text(spec, "queueName"), whole(pod_set, "count"), resource, *requests


def _asked(job: KubeJob, settings: KubeSettings) -> Manifest:
    given = trainer_spec(job, settings)
    spec: Manifest = {name: given[name] for name in _SCHEDULED if name in given}
    for kind in ("initContainers", "containers"):
        if given.get(kind):
            spec[kind] = [{key: each[key] for key in _OF_CONTAINER if key in each} for each in given[kind]]
    priority = max(-(2**31), min(job.terms.priority, 2**31 - 1))
    pod_set = {"name": _POD_SET, "count": job.terms.min_replicas, "template": {"spec": spec}}
    return {"queueName": job.local_queue, "priority": priority, "podSets": [pod_set]}


def _texts(raw: Any, name: str) -> dict[str, str]:
    return {key: value for key, value in mapping(raw, name).items() if isinstance(value, str)}
