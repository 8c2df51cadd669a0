"""What a case of the operator's benchmark is, and what is put into its cluster: nodes, others' pods, jobs, reports.

Plain dicts; pure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from espalier_core.files.documents import dumps
from espalier_core.types.job import REPORT_KEY
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Metric, Report, TrainerPhase

Raw = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
GPUS_OF_A_NODE: Final = 8
JOBS_API: Final = "/apis/espalier.dev/v1alpha1"
NAMESPACES: Final = tuple(f"load-{number}" for number in range(10))
MANAGED: Final = {"type": "kwok"}
"""Label of the nodes whose pods kwok runs."""
MOST_EXTRA: Final = 4
"""maxReplicas - minReplicas of every job."""
_IMAGES_OF_A_NODE: Final = 40
"""The kubelet reports up to 50; they are most of a node's size."""


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:05}"


def node(number: int) -> Raw:
    """Return a node with 8 GPUs that is Ready. About 8 kB of JSON, as real ones are."""
    name = node_name(number)
    now = now_text()
    resources = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "3Ti", "pods": "110", GPU: str(GPUS_OF_A_NODE)}
    conditions = [
        {
            "type": kind,
            "status": str(kind == "Ready"),
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says so of {kind}",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {
            "names": [
                f"registry.example.org/team-{image}/service@sha256:{image:064x}",
                f"registry.example.org/team-{image}/service:v1.{image}",
            ],
            "sizeBytes": 100_000_000 + image,
        }
        for image in range(_IMAGES_OF_A_NODE)
    ]
    labels = {
        **MANAGED,
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "a",
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"}],
            "images": images,
        },
    }


def foreign(name: str, node_name: str, gpus: int) -> Raw:
    """Return somebody else's pod that is bound already; deleted it is gone at once."""
    return {
        "metadata": {"name": name, "namespace": NAMESPACES[0], "labels": {"app": "foreign"}},
        "spec": {
            "nodeName": node_name,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "foreign", "resources": {"limits": {GPU: str(gpus)}}}],
        },
    }


def idle(number: int, node_name: str) -> Raw:
    """Return somebody else's pod without GPUs that is bound already. About 5 kB of JSON, as real ones are."""
    requests = {"cpu": f"{100 + number % 4 * 50}m", "memory": f"{64 << number % 3}Mi"}
    return {
        "metadata": {
            "name": f"idle-{number:06}",
            "namespace": NAMESPACES[number % len(NAMESPACES)],
            "labels": {"app": f"service-{number % 100}", "pod-template-hash": f"{number % 100:08x}"},
            "annotations": {"checksum/config": f"{number % 100:064x}"},
        },
        "spec": {
            "nodeName": node_name,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": name,
                    "image": f"registry.example.org/{name}:v1",
                    "env": [{"name": f"SETTING_{each}", "value": f"value-of-{each}" * 3} for each in range(15)],
                    "resources": {"requests": requests, "limits": requests},
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
                }
                for name in ("service", "proxy")
            ],
        },
    }


def jobs(count: int, seed: int) -> list[Raw]:
    """Return jobs with 1, 2 or 4 base workers (5 : 3 : 2) of one GPU each, evenly over the namespaces."""
    chance = random.Random(seed)
    return [job(number, chance.choices((1, 2, 4), (5, 3, 2))[0]) for number in range(count)]


def job(number: int, workers: int) -> Raw:
    """Return a job that takes every GPU it can get: no cooldown, and a budget that it will not use up."""
    container = {"name": "trainer", "image": "trainer:load", "resources": {"limits": {GPU: "1"}}}
    return {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": f"job-{number:05}", "namespace": NAMESPACES[number % len(NAMESPACES)]},
        "spec": {
            "timeBudgetSeconds": 100_000,
            "minReplicas": workers,
            "maxReplicas": workers + MOST_EXTRA,
            "preemption": {"cooldownSeconds": 0, "minRuntimeSeconds": 0},
            "template": {"spec": {"containers": [container]}},
        },
    }


def report(job: str, incarnation: str, *, generation: int, seconds: float, completed: bool = False) -> Raw:
    """Return the patch that brings a leader's report into its ConfigMap; `seconds`: for how long it has trained."""
    report = Report(
        job=job,
        incarnation=incarnation,
        acknowledged_generation=generation,
        phase=TrainerPhase.COMPLETED if completed else TrainerPhase.TRAINING,
        reason=Reason.COMPLETED if completed else None,
        epoch=int(seconds / 10),
        step=int(seconds * 20),
        used_seconds=seconds,
        metrics=tuple(Metric(name=name, value=1 / (1 + seconds)) for name in ("loss", "accuracy", "learningRate")),
        depth=12,
        parameters=1_000_000,
        updated_time=datetime.now(UTC),
    )
    return {"data": {REPORT_KEY: dumps(report)}}


def pod_begin(pod: Raw) -> Raw:
    """Return the status of a pod whose containers run now."""
    begun = now_text()
    statuses = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "containerID": f"none://{each['name']}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": begun}},
        }
        for each in pod["spec"]["containers"]
    ]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": begun}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {"status": {"phase": "Running", "startTime": begun, "conditions": conditions, "containerStatuses": statuses}}


def pod_end(pod: Raw) -> Raw:
    """Return the status of a pod whose containers have ended well."""
    begun = pod["status"].get("startTime") or now_text()
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": now_text()}}
    statuses = [
        {**each, "ready": False, "started": False, "state": state} for each in pod["status"]["containerStatuses"]
    ]
    return {"status": {"phase": "Succeeded", "containerStatuses": statuses}}


def gpus_of(pod: Raw) -> int:
    """Return the GPUs that a pod of this benchmark asks for."""
    limits = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limit.get(GPU, 0)) for limit in limits)


def key(item: Raw) -> str:
    """Return `namespace/name`."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def path_of(plural: str, namespace: str, name: str = "", api: str = "/api/v1") -> str:
    """Return the path of an object, or of a collection."""
    return f"{api}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def now_text() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one case is."""

    nodes: int
    jobs: int
    events: int
    """GPUs that are freed one after the other; none are where jobs have to wait for GPUs."""
    spacing: float = 0.5
    """Mean seconds from one to the next; each is drawn from half to one and a half of it."""
    report_seconds: float = 10.0
    """How often a leader reports while nothing happens; 0: never."""
    seed: int = 0
    idle_pods: int = 0
    """Other people's pods without GPUs, evenly over the nodes."""
    operator_cores: frozenset[int] = frozenset()
    """The cores of the operator; none: those of the benchmark."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * GPUS_OF_A_NODE


@dataclass(frozen=True, slots=True)
class Layout:
    """What is put into the cluster."""

    jobs: list[Raw]
    foreign: list[Raw]
    """Other people's pods: they hold all GPUs that the jobs' base workers do not need."""
    single: list[str]
    """Names of those that hold one GPU: some are deleted to free it."""
    idle: list[Raw]
    """Other people's pods without GPUs."""

    @property
    def foreign_gpus(self) -> int:
        """GPUs that other people's pods hold."""
        return sum(gpus_of(pod) for pod in self.foreign)


def layout_of(case: Case) -> Layout:
    """Return what is put into the cluster; `ValueError` where it is too small for the events."""
    made = jobs(case.jobs, case.seed)
    base, size = sum(job["spec"]["minReplicas"] for job in made), GPUS_OF_A_NODE
    others = [idle(number, node_name(number % case.nodes)) for number in range(case.idle_pods)]
    if base >= case.gpus:
        return Layout(made, [], [], others)
    held = case.gpus - base
    singles = held % size
    while singles < case.events and singles + size <= held:
        singles += size
    if singles < case.events or (case.jobs - case.events) * MOST_EXTRA < case.events:
        raise ValueError(f"{case.events} events are too many for {case.nodes} nodes and {case.jobs} jobs; give fewer")
    held_by, place = [], base  # GPUs are numbered through all nodes; the first ones are left to the jobs
    for number, gpus in enumerate([1] * singles + [size] * ((held - singles) // size)):
        held_by.append(foreign(f"foreign-{number:06}", node_name(place // size), gpus))
        place += gpus
    return Layout(made, held_by, [pod["metadata"]["name"] for pod in held_by[:singles]], others)
