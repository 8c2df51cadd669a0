"""A pod of the API server, reduced to the scheduler's facts, and its load on its node. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Final

from espalier_core.k8s.resources import Raw, trainer_of
from espalier_core.types.job import ALLOCATION_ANNOTATION
from espalier_operator.kube.objects import names, nodes
from espalier_operator.kube.objects.devices import extended_for, generated_for, with_claimed
from espalier_operator.kube.objects.names import JobRef, owner_of
from espalier_operator.kube.objects.nodes import (
    DEFAULT_PATIENCE,
    constraints_of,
    patience_of,
    request_of,
    requests_gpus,
    requests_of,
    resource_of,
)
from espalier_operator.kube.objects.pod_status import PodStatus, barred_nodes, read_status, wants_gpus
from espalier_operator.kube.objects.template import required_node
from espalier_operator.kube.reading import entries, mapping, text, time, whole
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from espalier_operator.model.constraints import ANYWHERE, Amounts, Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod(PodStatus):
    """One pod that holds or wants GPUs, or is a worker of ours. Times in epoch seconds."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    owner: JobRef | None
    """The job whose worker it claims to be, by its owner reference and its name; None for a foreign worker."""
    role: WorkerRole
    index: int
    attempt: int
    node: str | None
    gpus: int
    gpu_resource: str
    """The resource of its GPUs; of several, the first in the settings."""
    place: str | None
    """The planner's node to which it is bound."""
    gpu_type: str | None
    """The GPU type required by its node selector."""
    constraints: Constraints
    """Its constraints on nodes, while it has none."""
    wants_gpus: bool
    """For a foreign pod without a node: more GPUs on a node may let it start. kube-scheduler's last answer decides: a
    pod without a node for reasons other than a lack of GPUs waits for something else."""
    barred_nodes: int
    """For a foreign pod that wants GPUs: number of nodes that kube-scheduler refuses for reasons unknown to the
    planner."""
    pinned_to: str | None
    """For a worker: the only node of the planner to which it may be bound."""
    gated: bool
    """It has scheduling gates and does not want a node yet."""
    deleting: bool
    leaves_at: float | None
    """End of its grace period, if it is being deleted."""
    grace_seconds: float
    """Length of that grace period."""
    patience: float
    """Seconds for which it stays bound to a node that does not report; infinite for no limit."""
    announced: tuple[int, str | None, float | None, bool] | None
    """(Generation, stop, time budget, whether it waits) of the allocation annotation."""
    device_claims: tuple[str, ...] = ()
    """Keys of the ResourceClaims made for it whose devices are among its GPUs."""
    address: str = ""
    """Its own address; empty if it has none, or shares its node's."""
    container: str = ""
    """Name of its training container."""
    ended_first: bool = False
    """Its worker was seen to have ended before it was deleted."""
    gone: bool = False
    """It was deleted after its worker had ended, and is kept until the end is recorded (`PodIndex`)."""
    asked_to_leave: bool = False
    """An EvictionRequest asks for its end."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good, so that it holds no GPUs."""
        return self.gone or self.phase in ("Succeeded", "Failed")

    @property
    def done(self) -> bool:
        """Whether its worker has ended for good, though another container may still run."""
        return self.ended or self.exit_code is not None

    @property
    def awaits_node(self) -> bool:
        """Whether its node has not yet mounted its volumes or made its sandbox, without reporting a cause."""
        waits = self.node is not None and not (self.prepared or self.trouble or self.done or self.deleting)
        return waits and self.started_at is None


def parse_pod(raw: Raw, settings: KubeSettings, claimed: Amounts = ()) -> Pod:
    """Return the facts of a pod. Never raises: a missing or malformed field counts as absent.

    `claimed` are devices that count as its GPUs, by resource.
    """
    metadata, spec = mapping(raw, "metadata"), with_claimed(mapping(raw, "spec"), claimed)
    name, namespace = text(metadata, "name"), text(metadata, "namespace") or "default"
    owner, (role, index, attempt) = _worker_of(raw)
    node = text(spec, "nodeName") or None
    resource = resource_of(spec, settings)
    selected = text(spec, "nodeSelector", settings.gpu_type_label)
    status = mapping(raw, "status")
    trainer = trainer_of(spec)
    found = read_status(spec, status, trainer)
    return Pod(
        name=name,
        namespace=namespace,
        uid=text(metadata, "uid"),
        resource_version=text(metadata, "resourceVersion"),
        owner=owner,
        role=role,
        index=index,
        attempt=attempt,
        node=node,
        gpus=request_of(spec, resource),
        gpu_resource=resource,
        place=nodes.place_of(node, resource, settings),
        gpu_type=nodes.type_of(selected, resource, settings) if selected else None,
        constraints=ANYWHERE if node else nodes.restricted(constraints_of(spec, resource), resource, settings),
        wants_gpus=wants_gpus(spec, status, resource),
        barred_nodes=barred_nodes(status) if owner is None else 0,
        phase=found.phase,
        pinned_to=None if owner is None else nodes.place_of(required_node(spec), resource, settings),
        gated=any(entries(spec, "schedulingGates")),
        deleting=metadata.get("deletionTimestamp") is not None,
        leaves_at=time(metadata, "deletionTimestamp"),
        grace_seconds=float(min(whole(metadata, "deletionGracePeriodSeconds") or 0, 2**31)),
        overran=found.overran,
        disrupted=found.disrupted,
        stuck_since=found.stuck_since,
        by_node=found.by_node,
        started_at=found.started_at,
        finished_at=found.finished_at,
        exit_code=found.exit_code,
        trouble=found.trouble,
        message=found.message,
        patience=DEFAULT_PATIENCE if owner is None else patience_of(spec),
        announced=None if owner is None else _announced(metadata),
        device_claims=tuple(f"{namespace}/{each}" for each in _claims(raw, own=owner is not None)),
        broken=found.broken,
        ready=owner is None or found.ready,
        refused=found.refused,
        prepared=found.prepared,
        address="" if owner is None else _address(status),
        container="" if owner is None else trainer,
    )


def _worker_of(raw: Raw) -> tuple[JobRef | None, tuple[WorkerRole, int, int]]:
    """Return the job that a pod claims (None if none), and by its name the role, index and attempt of the worker."""
    owner = owner_of(raw)
    worker = None if owner is None else names.worker_of(owner.name, text(raw, "metadata", "name"))
    return (None, (WorkerRole.FOREIGN, 0, 0)) if worker is None else (owner, worker)


def _claims(raw: Raw, *, own: bool) -> Iterator[str]:
    """Yield the names of the ResourceClaims of a pod whose devices are among its GPUs.

    Claims of foreign pods are counted at their devices, as pods may share them.
    """
    if own:
        yield from generated_for(raw).values()
    if extended := extended_for(raw):
        yield extended


def _announced(metadata: Raw) -> tuple[int, str | None, float | None, bool] | None:
    try:
        document = json.loads(text(metadata, "annotations", ALLOCATION_ANNOTATION))
    except (ValueError, RecursionError):
        return None  # another client has changed it, so it is written again
    generation, budget = whole(document, "allocation", "generation"), mapping(document, "timeBudget")
    seconds = budget.get("budgetSeconds")
    known = seconds if isinstance(seconds, int | float) else None
    waits = mapping(document).get("waitsForWorkers") is True
    return None if generation is None else (generation, text(document, "stop") or None, known, waits)


def _address(status: Raw) -> str:
    own = text(status, "podIP")
    return "" if own == text(status, "hostIP") else own


Target = tuple[str, str]
"""A pod: `namespace/name` and UID."""


def parse_eviction_request(raw: Raw) -> Target | None:
    """Return the pod that an EvictionRequest asks to leave; None where it is withdrawn or over. Never raises."""
    metadata, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    over = {text(each, "type") for each in entries(raw, "status", "conditions") if text(each, "status") == "True"}
    if text(spec, "intent") != "Eviction" or metadata.get("deletionTimestamp") or over & {"Evicted", "Failed"}:
        return None
    pod = mapping(spec, "target", "pod")
    name, uid = text(pod, "name"), text(pod, "uid")
    return (f"{text(metadata, 'namespace')}/{name}", uid) if name and uid else None


@dataclass(frozen=True, slots=True)
class Load:
    """A pod's load on its node, GPUs excluded."""

    node: str
    requests: Amounts
    owner: JobRef | None
    """As in `Pod`."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """What is kept of any pod of the cluster: most neither hold nor want GPUs, and are only loads."""

    pod: Pod | None
    """It holds or wants GPUs, or is a worker of ours."""
    load: Load | None
    """None where it has ended, or has no node yet."""


UNKNOWN: Final = KnownPod(None, None)
"""What is known of a pod that does not exist."""


def read_pod(raw: Raw, settings: KubeSettings, claimed_by: Callable[[Raw, bool], Amounts]) -> KnownPod | None:
    """Return what is to be known of a pod; None: nothing. Never raises.

    `claimed_by` returns the devices that count as its GPUs, given whether it claims to be a worker of a job.
    """
    spec, owner = mapping(raw, "spec"), _worker_of(raw)[0]
    node, ended = text(spec, "nodeName"), text(raw, "status", "phase") in ("Succeeded", "Failed")
    claimed = claimed_by(raw, owner is not None)
    pod, load = None, None
    if owner is not None or (not ended and requests_gpus(with_claimed(spec, claimed), settings)):
        pod = parse_pod(raw, settings, claimed)
    if node and not ended:
        load = Load(intern(node), _shared(requests_of(spec, resource_of(spec, settings))), owner)
    return None if pod is None and load is None else KnownPod(pod, load)


@lru_cache(maxsize=4096)
def _shared(requests: Amounts) -> Amounts:
    """Return `requests`, as the same tuple for equal ones: tens of thousands of pods have few different requests."""
    return requests
