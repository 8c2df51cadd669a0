"""Objects as an API server has them: jobs with the statuses that the operator's own functions write, pods, nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from espalier_cli.cluster.case import Case, case_of
from espalier_cli.cluster.client import View
from espalier_cli.cluster.explain_command import explanation
from espalier_core.files.documents import dumps
from espalier_core.k8s.resources import CONFIG_MAPS, JOBS, NODES, PODS, PRIORITY_CLASSES, Listing, Raw, Resource
from espalier_core.types.allocation import Direction
from espalier_core.types.job import API_VERSION, KIND, REPORT_KEY
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, Metric, Report, TrainerPhase
from espalier_core.types.status import parse_status
from espalier_operator.job.state import JobState
from espalier_operator.job.transitions import after
from espalier_operator.job.view import state_of
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import sort_pods
from espalier_operator.model import WorkerRole
from espalier_operator.model.actions import Action, Admit, GrantExtra
from operator_world.kube_looks import look, observed, status_at
from operator_world.kube_objects import adaptation as grown

SETTINGS = KubeSettings()
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC).timestamp()
"""The moment at which tests look, in epoch seconds."""
_versions = count(1)

Object = dict[str, Any]


def time(seconds_ago: float = 0.0) -> str:
    """Return a moment before `NOW` as Kubernetes writes it."""
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata(name: str, namespace: str, age: float) -> Object:
    """Return the metadata of an object that is so many seconds old, in a version of its own."""
    made = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "creationTimestamp": time(age)}
    return {**made, "resourceVersion": str(next(_versions))}


def job(name: str, *, namespace: str = "default", age: float = 600.0, **spec: Any) -> Object:
    """Return a job that nobody has looked at yet; `spec` as in a job file."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**metadata(name, namespace, age), "generation": 1},
        "spec": {"timeBudgetSeconds": 400, "maxReplicas": spec.get("minReplicas", 1), **spec},
    }


def gpus(number: int, gpu_type: str | None = None) -> Object:
    """Return a pod template of a worker with so many GPUs (of a type)."""
    container = {"name": "trainer", "image": "i", "resources": {"limits": {"nvidia.com/gpu": number}}}
    selector = {} if gpu_type is None else {"nodeSelector": {SETTINGS.gpu_type_label: gpu_type}}
    return {"spec": {"containers": [container], **selector}}


def acted(raw: Object, *actions: Action, at: float = NOW, refusal: Reason | None = None, **record: Any) -> Object:
    """Return the job with the status that an operator writes after `actions`; `record` overrides what it remembers.

    Extra workers run at once.
    """
    parsed = parse_job(raw, SETTINGS)
    assert isinstance(parsed, KubeJob)
    kept = state_of(parse_status(raw), parsed.created_at)
    for action in actions:
        kept = after(kept, action, parsed.terms, at, SETTINGS.timing)
        if isinstance(action, GrantExtra):
            kept = kept.granting(parsed.terms.min_replicas + action.extra, Direction.UP, action.reason, parsed.terms)
    return _written(raw, parsed, replace(kept, **record), at, refusal)


def looked_at(
    raw: Object, pods: Sequence[Object], report: Object | None = None, at: float = NOW, refusal: Reason | None = None
) -> Object:
    """Return the job with the status that an operator writes when it has looked at its pods (all nodes are ready)."""
    parsed = parse_job(raw, SETTINGS)
    assert isinstance(parsed, KubeJob)
    said = None if report is None else Report.model_validate_json(report["data"][REPORT_KEY])
    found = [parse_pod(pod, SETTINGS) for pod in pods]
    ready = {pod.node for pod in found if pod.node is not None}
    kept = state_of(parse_status(raw), parsed.created_at)
    kept = look(parsed, kept, observed(parsed, kept, found, said, ready), at, SETTINGS)
    return _written(raw, parsed, kept, at, refusal, found, said)


def _written(
    raw: Object,
    parsed: KubeJob,
    kept: JobState,
    at: float,
    refusal: Reason | None,
    pods: Sequence[Any] = (),
    report: Report | None = None,
) -> Object:
    found = sort_pods(parsed, kept, pods)
    status = status_at(parsed, kept, at, SETTINGS, found, report, refusal, parse_status(raw))
    return {**raw, "status": status.to_json()}


def admitted(raw: Object, *, gpu_type: str = "", extra: int = 0, at: float = NOW) -> Object:
    """Return a job that has its base GPUs, and `extra` extra workers."""
    key = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
    grants: list[Action] = [GrantExtra(job=key, extra=extra)] if extra else []
    return acted(raw, Admit(job=key, gpu_type=gpu_type), *grants, at=at)


def blaming(name: str, *nodes: str, **entry: object) -> Object:
    """Return a job that avoids nodes since its workers failed there ten minutes ago."""
    raw = admitted(job(name), gpu_type="x")
    entries = [{"node": each, "lastTime": time(600.0), "message": "Allocate failed", **entry} for each in nodes]
    raw["status"]["scheduling"]["avoidedNodes"] = entries
    return raw


def owned_by(raw: Object) -> list[Object]:
    """Return the references of what belongs to the job `raw`."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "controller": True}
    return [{**owner, "name": raw["metadata"]["name"], "uid": raw["metadata"]["uid"]}]


def worker(
    raw: Object,
    node: str | None,
    *,
    role: WorkerRole = WorkerRole.BASE,
    index: int = 0,
    attempt: int = 0,
    number: int = 1,
    phase: str = "Running",
    age: float = 60.0,
    **status: Any,
) -> Object:
    """Return the pod of a worker of the job `raw`, with `number` GPUs."""
    owner = raw["metadata"]
    name = names.pod_name(owner["name"], role, index, attempt)
    made = pod(name, number, node, namespace=owner["namespace"], phase=phase, age=age)
    made["metadata"]["labels"] = names.worker_labels(owner["name"], role, index, attempt)
    made["metadata"]["ownerReferences"] = owned_by(raw)
    made["status"] |= status
    return made


def pod(
    name: str, number: int, node: str | None, *, namespace: str = "default", phase: str = "Running", age: float = 60.0
) -> Object:
    """Return somebody's pod with `number` GPUs."""
    running = {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": time(age)}}}]}
    resources = {"limits": {"nvidia.com/gpu": str(number)}, "requests": {"nvidia.com/gpu": str(number)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(name, namespace, age),
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            **({} if node is None else {"nodeName": node}),
        },
        "status": {"phase": phase, **(running if phase == "Running" else {})},
    }


def node(name: str, number: int, gpu_type: str = "", **change: Any) -> Object:
    """Return a ready node with `number` GPUs; `change`: `ready`, `unschedulable`, `taints`."""
    ready = "True" if change.pop("ready", True) else "Unknown"
    label = {SETTINGS.gpu_type_label: gpu_type} if gpu_type else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "resourceVersion": str(next(_versions)), "labels": label},
        "spec": change,
        "status": {
            "allocatable": {"cpu": "8", "nvidia.com/gpu": str(number)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def adaptation(**change: Any) -> Adaptation:
    """Return a growth that the agent advised."""
    whole: dict[str, Any] = {
        **{"decision_id": "d1", "time": datetime.fromtimestamp(NOW - 20, UTC), "used_seconds": 12.5, "seconds": 0.2},
        **{"action": "Deepen(block0)", "policy": "default@1", "accuracy_before": 0.81, "accuracy_after": 0.83},
        "probabilities": {"Nothing": 0.1, "Deepen(block0)": 0.7, "Deepen(block1)": 0.2},
        **{"depth_before": 4, "depth_after": 5, "parameters_before": 306, "parameters_after": 636},
    }
    return grown(**whole | change)


def report(raw: Object, leader: Object, *, acknowledged: int = 1, **said: Any) -> Object:
    """Return the ConfigMap in which the leader of the job `raw` reports that it trains; `said` are Report's fields."""
    metadata = raw["metadata"]
    whole = {
        "job": f"{metadata['namespace']}/{metadata['name']}",
        "incarnation": leader["metadata"]["uid"],
        "acknowledged_generation": acknowledged,
        "phase": TrainerPhase.TRAINING,
        "epoch": 3,
        "step": 1200,
        "used_seconds": 50.0,
        "metrics": (Metric(name="validation_accuracy", value=0.81),),
        "depth": 4,
        "parameters": 306,
        "updated_time": datetime.fromtimestamp(NOW - 2, UTC),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.report_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "uid": f"report-{metadata['uid']}",
            "resourceVersion": str(next(_versions)),
            "labels": {names.REPORT_LABEL: "true", **names.labels(metadata["name"])},
            "ownerReferences": owned_by(raw),
        },
        "data": {REPORT_KEY: dumps(Report.model_validate(whole | said))},
    }


def lists(
    jobs: Sequence[Raw] = (),
    pods: Sequence[Raw] = (),
    nodes: Sequence[Raw] = (),
    reports: Sequence[Raw] = (),
    classes: Mapping[str, int] | None = None,
) -> Mapping[Resource, Listing]:
    """Return what `fetch` returns; `classes` are the values of PriorityClasses, None: they may not be listed."""
    version = next(_versions)
    kinds = {JOBS: jobs, PODS: pods, NODES: nodes, CONFIG_MAPS: reports}
    if classes is not None:
        kinds[PRIORITY_CLASSES] = [
            {"metadata": {"name": name, "resourceVersion": "1"}, "value": value} for name, value in classes.items()
        ]
    return {resource: Listing(items=items, version=version) for resource, items in kinds.items()}


def case(name: str = "a", **objects: Any) -> Case:
    """Return a job among these objects, as `espalier explain` reads it."""
    return case_of("default", name, View(lists(**objects)), NOW, SETTINGS)  # type: ignore[return-value]


def sections(what: Case) -> Mapping[str, Sequence[str]]:
    """Return what it says, by heading."""
    return {section.title: section.lines for section in explanation(what)}


def stands(what: Case) -> str:
    """Return what it says under the first heading."""
    return " ".join(sections(what)["Where it stands"])


def reporting(
    raw: Object, *, age: float = 60.0, refusal: Reason | None = None, **said: Any
) -> tuple[Object, Object, Object]:
    """Return a job whose leader runs on node `n` and reports: itself, its leader's pod, its report."""
    leader = worker(raw, "n", age=age)
    told = report(raw, leader, **said)
    return looked_at(raw, [leader], told, refusal=refusal), leader, told


def training(**spec: Any) -> tuple[Object, Object, Object]:
    """Return a job that trains with a lent GPU: itself, its leader's pod, its report."""
    raw = admitted(job("a", maxReplicas=3, **spec), gpu_type="x", extra=1, at=NOW - 90)
    return reporting(raw, age=80, acknowledged=2, adaptations=(adaptation(),))


def on(*nodes: Object, reports: tuple[Object, Object, Object]) -> Case:
    """Return a job that `reporting` or `training` made, on these nodes."""
    raw, leader, said = reports
    return case(jobs=[raw], pods=[leader], nodes=nodes, reports=[said])
