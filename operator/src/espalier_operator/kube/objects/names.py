"""Names, labels and annotations of the operator's objects, and the job that an object belongs to. Pure.

Names are deterministic: creating an object twice gives one object. An object belongs to the job that its owner
reference names, by namespace, name and UID. Labels are not evidence: anyone can change them. An owner reference is not
evidence either until a job of this UID with this name is in the object's own namespace: the API server accepts any
reference, even to a job of another tenant.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from espalier_core.k8s.resources import ATTEMPT_LABEL as ATTEMPT_LABEL
from espalier_core.k8s.resources import INDEX_LABEL as INDEX_LABEL
from espalier_core.k8s.resources import JOB_LABEL as JOB_LABEL
from espalier_core.k8s.resources import ROLE_LABEL as ROLE_LABEL
from espalier_core.k8s.resources import Raw
from espalier_core.types.job import DEFAULT_CONTROLLER, GROUP, KIND
from espalier_operator.kube.reading import entries, mapping, text
from espalier_operator.model import WorkerRole

REPORT_LABEL: Final = f"{GROUP}/report"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "espalier"

QUEUE_NAME_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""The label of a job that names the LocalQueue of Kueue that has its quota."""

LEASE_NAME: Final = "espalier-operator"
"""Name of the operators' Lease with the default controllerName."""
RECENT_USE: Final = f"{GROUP}/recent-use"
"""The annotation of the Lease with the recent use of queues and namespaces (`policies.memory`)."""
POLICY_MEMORY: Final = f"{GROUP}/policy-memory"
"""The annotation of the Lease with the policy's memory (`policies.memory`)."""

LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that hold or want GPUs."""
ENDED_PODS: Final = "status.phase!=Pending,status.phase!=Running"
"""Field selector of all other pods."""
WORKERS: Final = ROLE_LABEL
"""Label selector of pods that are watched to their ends and beyond. Foreign pods (its negation) are watched only while
they live."""
OWN_PODS: Final = f"{MANAGED_BY_LABEL}={MANAGER},{ROLE_LABEL}"
"""Label selector of workers, including ended ones."""
REPORTS: Final = f"{REPORT_LABEL}=true"
"""Label selector of ConfigMaps that leaders report to."""

_WORKER: Final = re.compile(
    rf"(?P<role>{WorkerRole.BASE}|{WorkerRole.EXTRA})-(?P<index>[0-9]{{1,9}})-(?P<attempt>[0-9]{{1,9}})"
)


def lease_name(controller: str) -> str:
    """Return the name of the Lease of operators with this controllerName, of which only one acts in a namespace."""
    if controller == DEFAULT_CONTROLLER:
        return LEASE_NAME
    return f"{LEASE_NAME}-{hashlib.sha256(controller.encode()).hexdigest()[:10]}"


def pod_name(job: str, role: WorkerRole, index: int, attempt: int) -> str:
    """Return the name of a worker's pod; `attempt` is the allocation's generation for an extra worker."""
    return f"{host_name(job, role, index)}-{attempt}"


def worker_of(job: str, pod: str) -> tuple[WorkerRole, int, int] | None:
    """Return role, index and attempt of the worker with the pod name `pod`, inverse to `pod_name`; None for others."""
    found = _WORKER.fullmatch(pod.removeprefix(f"{job}-")) if pod.startswith(f"{job}-") else None
    return None if found is None else (WorkerRole(found["role"]), int(found["index"]), int(found["attempt"]))


def host_name(job: str, role: WorkerRole, index: int) -> str:
    """Return the worker's host name under the job's headless Service, the same for every attempt."""
    return f"{job}-{role}-{index}"


def report_name(job: str) -> str:
    """Return the name of the ConfigMap that the leader reports to."""
    return f"{job}-report"


def secret_name(job: str, uid: str) -> str:
    """Return the name of the Secret with the key of the job's workers, distinct from that of an earlier namesake."""
    return f"{job}-workers-{uid}"


def workload_name(job: str, uid: str, extra: int | None = None) -> str:
    """Return the name of the Workload of the job's base workers, or of one of its extra workers."""
    return f"{job}-base-{uid}" if extra is None else f"{job}-extra-{extra}-{uid}"


def network_policy_name(job: str) -> str:
    """Return the name of the NetworkPolicy of the job's workers."""
    return f"{job}-workers"


def account_name(job: str) -> str:
    """Return the name of the job's ServiceAccount, Role and RoleBinding."""
    return f"{job}-trainer"


def labels(job: str) -> dict[str, str]:
    """Return the labels of all objects of `job`."""
    return {JOB_LABEL: job, MANAGED_BY_LABEL: MANAGER}


def worker_labels(job: str, role: WorkerRole, index: int, attempt: int) -> dict[str, str]:
    """Return the labels of a worker's pod."""
    return {**labels(job), ROLE_LABEL: str(role), INDEX_LABEL: str(index), ATTEMPT_LABEL: str(attempt)}


def selector(job: str) -> str:
    """Return the label selector of a job's pods."""
    return f"{JOB_LABEL}={job},{ROLE_LABEL}"


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job, or the job that an object claims as its owner."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def owner_of(raw: Raw) -> JobRef | None:
    """Return the job that an object claims as its controlling owner; None where it claims none."""
    metadata = mapping(raw, "metadata")
    for reference in entries(metadata, "ownerReferences"):
        ours = text(reference, "kind") == KIND and text(reference, "apiVersion").partition("/")[0] == GROUP
        if ours and reference.get("controller") is True and text(reference, "name") and text(reference, "uid"):
            namespace = text(metadata, "namespace") or "default"
            return JobRef(namespace, text(reference, "name"), text(reference, "uid"))
    return None
