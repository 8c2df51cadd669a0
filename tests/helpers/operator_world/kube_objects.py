"""Objects as an API server holds them, made by wrappers that say only what matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from espalier_core.files.documents import dumps
from espalier_core.types.job import API_VERSION, KIND
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Report, TrainerPhase
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from operator_world.kube_devices import RESOURCE

Raw = dict[str, Any]

EPOCH = 1_800_000_000.0
"""When the clusters of tests begin, in epoch seconds."""
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.5gb"
"""A slice of a GPU: a resource that is counted apart."""
GPU_RESOURCES = (GPU, MIG, RESOURCE)


def time_at(seconds: float) -> str:
    """Return epoch seconds as Kubernetes writes them: whole ones."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def raw_job(
    name: str = "one", spec: Mapping[str, Any] | None = None, *, uid: str = "uid-1", created_at: float = EPOCH
) -> Raw:
    """Return a job in namespace `ns` as the API server holds it; `spec` beside a budget of 100 s."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "generation": 1,
            "creationTimestamp": time_at(created_at),
        },
        "spec": {"timeBudgetSeconds": 100, **(spec or {})},
    }


def kube_job(
    name: str = "one", spec: Mapping[str, Any] | None = None, settings: KubeSettings | None = None, **changes: Any
) -> KubeJob:
    """Return a job as the operator understands it; `changes` as for `raw_job`. `ValueError` where it is invalid."""
    job = parse_job(raw_job(name, spec, **changes), settings or KubeSettings())
    if not isinstance(job, KubeJob):
        raise ValueError("; ".join(job.problems))
    return job


def template(container: Mapping[str, Any] | None = None, **spec: Any) -> Raw:
    """Return a pod template with one container: image `mine`, one GPU, and what `container` says."""
    first = {"name": "trainer", "image": "mine", "resources": {"limits": {GPU: 1}}, **(container or {})}
    return {"spec": {"containers": [first], **spec}}


def raw_node(name: str = "node", gpus: int = 4, gpu_type: str = "", *, ready: str = "True") -> Raw:
    """Return a node; `ready` is the status of its condition."""
    labels = {"nvidia.com/gpu.product": gpu_type} if gpu_type else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", GPU: str(gpus)}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def raw_worker(
    job: KubeJob,
    index: int = 0,
    attempt: int = 0,
    *,
    role: WorkerRole = WorkerRole.BASE,
    uid: str | None = None,
    node: str | None = "node",
    phase: str = "Running",
    state: Mapping[str, Any] | None = None,
    deleted_at: float | None = None,
    gates: Iterable[str] = (),
    **status: Any,
) -> Raw:
    """Return the pod of a worker that has run since `EPOCH`; `state` is that of its container."""
    name = names.pod_name(job.name, role, index, attempt)
    running = {"running": {"startedAt": time_at(EPOCH)}} if phase == "Running" else {}
    container = {"name": "trainer", "state": running if state is None else state}
    return {
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "uid": f"uid-of-{name}" if uid is None else uid,
            "resourceVersion": "1",
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid, "controller": True}
            ],
            **({} if deleted_at is None else {"deletionTimestamp": time_at(deleted_at)}),
        },
        "spec": {
            "containers": [{"name": "trainer", "resources": {"limits": {GPU: "1"}, "requests": {GPU: "1"}}}],
            **({"nodeName": node} if node else {}),
            **({"schedulingGates": [{"name": name} for name in gates]} if gates else {}),
        },
        "status": {"phase": phase, "containerStatuses": [container], **status},
    }


def raw_stranger(name: str = "stranger", resources: Mapping[str, Any] | None = None, **changes: Any) -> Raw:
    """Return somebody else's pod, which has one GPU if `resources` do not say otherwise; `changes` as a worker's."""
    raw = raw_worker(kube_job(), uid=f"uid-of-{name}", **changes)
    raw["metadata"] |= {"ownerReferences": [], "name": name}
    if resources is not None:
        raw["spec"]["containers"][0]["resources"] = dict(resources)
    return raw


def at(version: int, raw: Raw) -> Raw:
    """Return an object as of a version; it has a UID."""
    known = {"uid": f"uid-of-{raw['metadata']['name']}", **raw["metadata"], "resourceVersion": str(version)}
    return {**raw, "metadata": known}


def waiting_for(reason: str, message: str = "") -> Raw:
    """Return the state of a container that waits, for example for its image."""
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def unschedulable(message: str = "") -> Raw:
    """Return the condition of a pod that kube-scheduler refuses."""
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def terminated(code: int, at: float = EPOCH + 10, *, started: float = EPOCH, **words: Any) -> Raw:
    """Return the state of a container that has ended."""
    return {"terminated": {"exitCode": code, "startedAt": time_at(started), "finishedAt": time_at(at), **words}}


def report(incarnation: str, phase: TrainerPhase = TrainerPhase.TRAINING, *, at: float = EPOCH, **facts: Any) -> Report:
    """Return what a leader says at `at`."""
    updated = datetime.fromtimestamp(at, UTC)
    return Report(job="ns/one", incarnation=incarnation, phase=phase, updated_time=updated, **facts)


def adaptation(**facts: Any) -> Adaptation:
    """Return a growth that the agent advised; `facts` are other values of its fields."""
    whole: dict[str, Any] = {
        "decision_id": "d",
        "time": datetime.fromtimestamp(EPOCH + 5, UTC),
        "used_seconds": 5,
        "trigger": "ExtraGPUsGranted",
        "generation": 2,
        "action": "Deepen(a)",
        "source": AdaptationSource.AGENT,
        "probabilities": {"Deepen(a)": 1.0},
        "result": AdaptationResult.GROWN,
        "depth_before": 1,
        "depth_after": 2,
        "parameters_before": 1,
        "parameters_after": 2,
        "seconds": 1,
    }
    return Adaptation(**whole | facts)


def raw_report(job: KubeJob, said: Report) -> Raw:
    """Return the ConfigMap that holds a report."""
    return {
        "metadata": {
            "name": names.report_name(job.name),
            "namespace": job.namespace,
            "labels": {names.REPORT_LABEL: "true"},
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid, "controller": True}
            ],
        },
        "data": {"report.json": dumps(said)},
    }
