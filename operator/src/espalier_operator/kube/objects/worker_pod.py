"""Builds the pod of a worker from the job's template. No client, no clock, no environment."""

from __future__ import annotations

import json
from typing import Any, Final

from espalier_core.files.documents import dumps
from espalier_core.types import environment
from espalier_core.types.advice import AUDIENCE, TOKEN_SECONDS, JobIdentity
from espalier_core.types.job import ALLOCATION_ANNOTATION, JOB_ANNOTATION, allocation_document
from espalier_core.types.pod_template import PodMetadata
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects import names, nodes
from espalier_operator.kube.objects.jobs import KubeJob, trainer_document
from espalier_operator.kube.objects.manifests import (
    KEY,
    METRICS_PORT,
    RENDEZVOUS_PORT,
    account,
    given_spec,
    metadata,
    pod_spec,
)
from espalier_operator.kube.objects.template import (
    Manifest,
    absolute,
    mount,
    prefer_others,
    refuse_label,
    require_label_empty,
    require_node,
    set_variables,
)
from espalier_operator.kube.settings import DEVICE_CLASS, KubeSettings
from espalier_operator.model import WorkerRole, host_of

CONTRACT_FOLDER: Final = "/etc/espalier"
"""Folder of a worker's job and allocation, which the kubelet writes from the pod's annotations."""
JOB_FILE: Final = f"{CONTRACT_FOLDER}/job.json"
ALLOCATION_FILE: Final = f"{CONTRACT_FOLDER}/allocation.json"
TOKEN_FOLDER: Final = "/var/run/secrets/espalier.dev/agent"
"""Folder of the token by which the leader proves its job to the agent."""
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""The annotation by which `kubectl logs` and `kubectl exec` choose a container of a pod."""
STAYS: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations that keep cluster-autoscaler and Karpenter from removing the node of a pod that gives nothing back."""
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation by which other controllers may choose the cheapest pods of a job to delete."""
METRICS: Final = "metrics"
"""Name of the port on which the leader is scraped."""
KEY_FOLDER: Final = "/var/run/secrets/espalier.dev/workers"
"""Folder of the key of a job whose workers train together."""
STATUS_FOLDER: Final = "/var/run/secrets/espalier.dev/status"
"""Folder of the token with which the leader of a program posts its progress."""
POSTS_AUDIENCE: Final = "espalier-progress"
"""First part of the audience of that token, like `AUDIENCE` for the agent's."""
STATUS_ROUTE: Final = "/namespaces/{namespace}/jobs/{name}/status"
"""The operator's route for these posts."""
_STATUS_VOLUME: Final = "espalier-status-token"
_CONTRACT_VOLUME: Final = "espalier-contract"
_KEY_VOLUME: Final = "espalier-workers-key"
_TOKEN_VOLUME: Final = "espalier-agent-token"
_TOKEN: Final = "token"
_CHECKPOINT_VOLUME: Final = "espalier-checkpoints"
_SCRATCH_VOLUME: Final = "espalier-tmp"


def worker_pod(
    job: KubeJob,
    status: JobStatus,
    worker: WorkerRole,
    index: int,
    attempt: int,
    settings: KubeSettings,
    gpu_type: str | None = None,
    node: str | None = None,
) -> Manifest:
    """Return the pod of a worker, from the job's template.

    The template's fields stay; the first container trains. Fields that a worker needs are reserved: restart policy,
    host name, the contract's folder and variables, our labels and annotations. The ready trainer image (a template
    without image) also gets the settings of restricted pod security. `gpu_type` keeps the pod on nodes of that type, ''
    on nodes without one; None: on any. `node` is the only one to which it may be bound.
    """
    spec = trainer_spec(job, settings)
    container = spec["containers"][0]
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # the cause of an end, for the status
    if job.terms.program and not (spec.get("serviceAccountName") or spec.get("serviceAccount")):
        spec.setdefault("automountServiceAccountToken", False)
    spec["serviceAccountName"] = account(job, spec)
    spec.pop("serviceAccount", None)  # the old name of the same field
    spec["restartPolicy"] = "Never"
    spec["hostname"] = names.host_name(job.name, worker, index)
    spec["subdomain"] = job.name
    spec.setdefault("enableServiceLinks", False)
    _set_class(spec, job, worker, settings)
    label = None if gpu_type is None else nodes.label_of(gpu_type)
    requested = settings.labels_of(status.scheduling.node_group) if worker is WorkerRole.BASE else {}
    if requested:  # an autoscaler may not know the type's label before a node exists
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **requested}
    elif label:
        spec.setdefault("nodeSelector", {})[settings.gpu_type_label] = label
    elif label is not None:
        require_label_empty(spec, settings.gpu_type_label)
    if node is not None:
        require_node(spec, host_of(node))
    else:  # kube-scheduler ignores labels of nodes that are about to go
        for sign in settings.departing_nodes:
            refuse_label(spec, sign)
        for avoided in status.scheduling.avoided_nodes:
            prefer_others(spec, avoided.node)
    assigned = job.assigned
    if assigned is not None:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **assigned.node_labels}
        spec["tolerations"] += [dict(each) for each in assigned.tolerations if each not in spec["tolerations"]]
    folder = absolute(job.job.spec.checkpoint.path)
    _set_environment(container, job, worker, index, attempt, settings, folder)
    if gpu_type:
        set_variables(container, {environment.GPU_TYPE: gpu_type}, {})
    if worker is WorkerRole.BASE and index == 0 and not job.terms.program:
        _name_metrics_port(spec, container)
    mount(spec, container, _CONTRACT_VOLUME, CONTRACT_FOLDER, _contract_volume(), reserved=True)
    if _reports_outcome(job, worker, index, settings):
        mount(spec, container, _TOKEN_VOLUME, TOKEN_FOLDER, _token_volume(job, AUDIENCE), reserved=True)
    if _posts(job, worker, index, settings):
        mount(spec, container, _STATUS_VOLUME, STATUS_FOLDER, _token_volume(job, POSTS_AUDIENCE), reserved=True)
    if job.terms.trains_together:
        secret = {"secretName": names.secret_name(job.name, job.uid)}
        mount(spec, container, _KEY_VOLUME, KEY_FOLDER, {"secret": secret}, reserved=True)
    mount(spec, container, _CHECKPOINT_VOLUME, folder, {"emptyDir": {}})
    template = job.job.spec.template
    given = template.metadata if template is not None and template.metadata is not None else PodMetadata()
    named = metadata(job, names.pod_name(job.name, worker, index, attempt))
    named["labels"] = {
        **(given.labels or {}),
        **(assigned.labels if assigned else {}),
        **names.worker_labels(job.name, worker, index, attempt),
    }
    stays = worker is WorkerRole.BASE and not job.terms.base_preemptible
    named["annotations"] = {
        DEFAULT_CONTAINER: container["name"],
        DELETION_COST: str(_deletion_cost(worker, index)),
        **(STAYS if stays else {}),
        **(given.annotations or {}),
        **(assigned.annotations if assigned else {}),
        JOB_ANNOTATION: json.dumps(trainer_document(job.job)),
        ALLOCATION_ANNOTATION: dumps(allocation_document(job.job, status)),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}


def trainer_spec(job: KubeJob, settings: KubeSettings) -> Manifest:
    """Return the template's spec, completed for nodes and quotas."""
    spec = pod_spec(job)
    if not spec["containers"][0].get("image"):
        _make_ready_trainer(spec, given_spec(job), settings, job.terms.gpu_resource)
    tolerations = spec.setdefault("tolerations", [])
    ours = [{"key": key, "operator": "Exists"} for key in settings.tolerated_taints]
    tolerations += [toleration for toleration in ours if toleration not in tolerations]
    return spec


def _deletion_cost(worker: WorkerRole, index: int) -> int:
    """Return the deletion cost: highest for the leader, then other base workers, lowest for the last extra worker."""
    if worker is WorkerRole.EXTRA:
        return -1 - index
    return 1000 if index == 0 else 100


def _make_ready_trainer(spec: Manifest, given: Manifest, settings: KubeSettings, gpu_resource: str) -> None:
    container = spec["containers"][0]
    container["image"] = settings.trainer_image
    if settings.image_pull_policy is not None:
        container.setdefault("imagePullPolicy", settings.image_pull_policy)
    pulls = spec.get("imagePullSecrets") or []
    secrets = pulls + [{"name": name} for name in settings.image_pull_secrets if {"name": name} not in pulls]
    if secrets:
        spec["imagePullSecrets"] = secrets
    limited = (resource in _limits(other) for other in spec["containers"] for resource in settings.gpu_resources)
    if not any(limited) and not gpu_resource.startswith(DEVICE_CLASS):  # those may be claimed
        container.setdefault("resources", {}).setdefault("limits", {})[settings.gpu_resource] = 1
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.trainer_user is not None:
        security |= {"runAsUser": int(settings.trainer_user), "fsGroup": int(settings.trainer_user)}
    _secure(spec, given, security)
    capabilities = {"drop": ["ALL"]}
    own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": capabilities}
    _secure(container, given["containers"][0] if given else {}, own)
    mount(spec, container, _SCRATCH_VOLUME, "/tmp", {"emptyDir": {}})


def _secure(target: Manifest, given: Manifest, defaults: Manifest) -> None:
    """Complete a securityContext; a null in the template's, `given`, leaves a field to the platform."""
    known = given.get("securityContext") or {}
    missing = {key: value for key, value in defaults.items() if key not in known}
    target["securityContext"] = {**(target.get("securityContext") or {}), **missing}


def _limits(container: Manifest) -> Manifest:
    limits: Manifest = (container.get("resources") or {}).get("limits") or {}
    return limits


def _set_class(spec: Manifest, job: KubeJob, worker: WorkerRole, settings: KubeSettings) -> None:
    name = job.job.spec.priority_class_name
    if worker is WorkerRole.EXTRA and settings.extra_priority_class is not None and not job.has_lower_class:
        name = settings.extra_priority_class
        spec.pop("preemptionPolicy", None)  # the class has its own
    if name is not None:
        spec["priorityClassName"] = name
        spec.pop("priority", None)  # admission derives it from the class, and refuses any other


def _set_environment(
    container: Manifest, job: KubeJob, worker: WorkerRole, index: int, attempt: int, settings: KubeSettings, folder: str
) -> None:
    contract: dict[str, Any] = {
        environment.JOB_FILE: JOB_FILE,
        environment.ALLOCATION_FILE: ALLOCATION_FILE,
        environment.JOB_NAME: job.name,
        environment.JOB_NAMESPACE: job.namespace,
        environment.REPORT_CONFIG_MAP: names.report_name(job.name),
        environment.WORKER_ROLE: str(worker),
        environment.WORKER_INDEX: str(index),
        environment.JOB_UID: job.uid,
        environment.ATTEMPT: str(attempt),
        environment.INCARNATION: {"fieldRef": {"fieldPath": "metadata.uid"}},
        environment.NODE: {"fieldRef": {"fieldPath": "spec.nodeName"}},
    }
    if job.terms.program:
        contract[environment.WORKERS] = str(job.terms.min_replicas)
        contract[environment.LEADER] = f"{names.host_name(job.name, WorkerRole.BASE, 0)}.{job.name}"
        contract[environment.CHECKPOINT_DIR] = folder
    if _reports_outcome(job, worker, index, settings):
        contract[environment.AGENT_TOKEN_FILE] = f"{TOKEN_FOLDER}/{_TOKEN}"
    if job.terms.trains_together:
        leader = f"{names.host_name(job.name, WorkerRole.BASE, 0)}.{job.name}"
        contract[environment.RENDEZVOUS] = f"{leader}:{RENDEZVOUS_PORT}"
        contract[environment.RENDEZVOUS_KEY_FILE] = f"{KEY_FOLDER}/{KEY}"
    if folder != job.job.spec.checkpoint.path:
        contract[environment.CHECKPOINT_DIR] = folder
    defaults = {} if settings.agent_url is None else {environment.AGENT_URL: settings.agent_url}
    if settings.progress_url is not None and _posts(job, worker, index, settings):
        route = STATUS_ROUTE.format(namespace=job.namespace, name=job.name)
        defaults[environment.STATUS_URL] = f"{settings.progress_url.rstrip('/')}{route}"
        defaults[environment.STATUS_TOKEN_FILE] = f"{STATUS_FOLDER}/{_TOKEN}"
    if settings.traces_endpoint is not None and not job.terms.program:
        defaults[environment.TRACES_ENDPOINT] = settings.traces_endpoint
    set_variables(container, contract, defaults)


def _name_metrics_port(spec: Manifest, container: Manifest) -> None:
    """Add the named port of the leader's metrics, unless the template uses its name or number, or the host's ports."""
    ports = container.get("ports", [])
    if spec.get("hostNetwork") or not isinstance(ports, list):
        return
    if any(not isinstance(port, dict) or METRICS in port.values() or METRICS_PORT in port.values() for port in ports):
        return
    container["ports"] = [*ports, {"name": METRICS, "containerPort": METRICS_PORT}]
    if all(given.get("name") != environment.METRICS_PORT for given in container["env"]):
        container["env"].append({"name": environment.METRICS_PORT, "value": str(METRICS_PORT)})


def _reports_outcome(job: KubeJob, worker: WorkerRole, index: int, settings: KubeSettings) -> bool:
    """Return whether the worker reports the job's end to an agent: it is the leader, and there is an agent."""
    if (worker, index) != (WorkerRole.BASE, 0) or job.terms.program:
        return False
    return job.job.spec.adaptation.agent_url(settings.agent_url) is not None


def _posts(job: KubeJob, worker: WorkerRole, index: int, settings: KubeSettings) -> bool:
    """Return whether the worker may post the progress of its program."""
    return job.terms.program and (worker, index) == (WorkerRole.BASE, 0) and settings.progress_url is not None


def _token_volume(job: KubeJob, service: str) -> Manifest:
    """Return a volume with a token that proves the job to one service, as no other accepts its audience."""
    audience = JobIdentity(job.namespace, job.name, job.uid).audience_of(service)
    token = {"path": _TOKEN, "audience": audience, "expirationSeconds": TOKEN_SECONDS}
    return {"projected": {"sources": [{"serviceAccountToken": token}]}}


def _contract_volume() -> Manifest:
    files = {"job.json": JOB_ANNOTATION, "allocation.json": ALLOCATION_ANNOTATION}
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        for path, annotation in files.items()
    ]
    return {"downwardAPI": {"items": items}}
