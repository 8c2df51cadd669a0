"""What is built of jobs, before a real API server: taken as it is, strictly, and under restricted pod security."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apiserver import JOBS, ApiServer, ServerError
from operators import EXTRA_CLASS, make_extra_class

from espalier_core.k8s.resources import resource_of
from espalier_core.types.allocation import Allocation
from espalier_core.types.job import MAX_NAME_LENGTH
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.objects.manifests import owned_objects, worker_secret
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from operator_world.kube_objects import GPU, raw_job, template

STATUS = JobStatus(allocation=Allocation(generation=3, replicas=2, gpus=2))
READY = KubeSettings(agent_url="http://agent:8080", image_pull_policy="IfNotPresent")
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
HELPER = {"name": "helper", "image": "helper", "resources": {"limits": {GPU: 1}}}
PROXY = {"name": "proxy", "image": "proxy", "restartPolicy": "Always"}
REQUIRED = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
    ]
}


def with_metadata(given: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**given, "metadata": metadata}


LIMITED = {"name": "trainer", "resources": {"limits": {GPU: 1}}}
TOGETHER = {"training": {"elasticBatch": "keepGlobal"}, "maxReplicas": 2}
SPECS: dict[str, dict[str, Any]] = {
    "no template": {},
    "no image": {"template": {"spec": {"containers": [{"resources": {"limits": {GPU: 2}}}]}}},
    "own image": {"template": template()},
    "own account": {"template": template(serviceAccountName="mine")},
    "old name of the account": {"template": template(serviceAccount="mine")},
    "own volumes": {
        "template": template({"volumeMounts": [{"name": "data", "mountPath": "/data/"}]}, volumes=[CLAIM]),
        "checkpoint": {"path": "/data/run"},
    },
    "a volume called ours": {"template": template(volumes=[{**CLAIM, "name": "espalier-checkpoints"}])},
    "relative checkpoints": {"template": template(), "checkpoint": {"path": "runs/a"}},
    "the contract's folder taken": {
        "template": template({"volumeMounts": [{"name": "data", "mountPath": "/etc/espalier"}]}, volumes=[CLAIM])
    },
    "own environment": {
        "template": template(
            {
                "env": [
                    {"name": "ESPALIER_JOB_FILE", "value": "mine"},
                    {"name": "LOGS", "value": "$(ESPALIER_JOB_NAME)"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ]
            }
        )
    },
    "several containers": {
        "template": {
            "spec": {
                "containers": [{"name": "trainer", "image": "mine"}, HELPER],
                "initContainers": [PROXY, {"name": "fetch", "image": "fetch"}],
            }
        }
    },
    "placement": {
        "template": template(
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}},
            nodeSelector={"disk": "fast"},
            tolerations=[{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
        )
    },
    "names that are ours to give": {"template": template(hostname="mine", subdomain="mine", restartPolicy="OnFailure")},
    "labels and annotations": {
        "template": with_metadata(template(), labels={"team": "a"}, annotations={"note": "b" * 1000})
    },
    "a priority": {"template": template(), "priorityClassName": EXTRA_CLASS},
    "many workers": {"template": template(), "minReplicas": 10, "maxReplicas": 10_000},
    "workers that train together": TOGETHER
    | {"template": template({"ports": [{"containerPort": 6006}, {"containerPort": 53, "protocol": "UDP"}]})},
    "a long program": {"training": {"model": {"name": "digits", "options": {"text": "é" * 20_000, "n": [1.5, None]}}}},
}


@pytest.fixture
def namespace(cluster: ApiServer) -> str:
    """Return a new namespace with an account of a person's own."""
    make_extra_class(cluster)
    name = cluster.namespace()
    cluster.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "mine"}})
    return name


def stored(cluster: ApiServer, namespace: str, spec: dict[str, Any], name: str = "one") -> KubeJob:
    """Make the job, and return it as the operator understands what the API server made of it."""
    raw = raw_job(name, spec)
    raw["metadata"] = {"name": name, "namespace": namespace}
    answer = cluster.request("POST", f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs", raw)
    job = parse_job(answer, READY)
    assert isinstance(job, KubeJob), job
    return job


def try_out(cluster: ApiServer, manifest: dict[str, Any], *, keep: bool = False) -> Any:
    """Send an object to be made, only to see whether it would be unless `keep`; unknown fields are refused."""
    path = resource_of(manifest).path(manifest["metadata"]["namespace"])
    dry = {} if keep else {"dryRun": "All"}
    return cluster.request("POST", path, manifest, fieldValidation="Strict", **dry)


def pods_of(job: KubeJob) -> list[dict[str, Any]]:
    """Pods of both roles, on any type of node, on one and on those without."""
    return [
        worker_pod(job, STATUS, role, index, attempt, READY, gpu_type)
        for role, index, attempt in (
            (WorkerRole.BASE, 0, 0),
            (WorkerRole.BASE, 9999, 7),
            (WorkerRole.EXTRA, 9999, 10**6),
        )
        for gpu_type in (None, "", "NVIDIA-A100-SXM4-80GB")
    ]


def adds_only(built: Any, answer: Any, place: str = "") -> None:
    """Demand that all that was built is in the answer; a list may be longer, a quantity is text."""
    if isinstance(built, dict):
        for key, value in built.items():
            assert key in answer, f"{place}.{key} was dropped"
            adds_only(value, answer[key], f"{place}.{key}")
    elif isinstance(built, list):
        assert len(built) <= len(answer), place
        for number, item in enumerate(built):
            adds_only(item, answer[number], f"{place}[{number}]")
    else:
        assert str(built) == str(answer), place


@pytest.mark.parametrize("case", SPECS)
def test_every_object_of_a_job_is_taken_as_it_is(cluster, namespace, case):
    job = stored(cluster, namespace, SPECS[case])
    for manifest in (*owned_objects(job, isolated=True), worker_secret(job, bytes(32))):
        adds_only(manifest, try_out(cluster, manifest, keep=True))
    for pod in pods_of(job):
        adds_only(pod, try_out(cluster, pod))


def test_the_longest_name_is_taken_with_all_that_is_made_of_it(cluster, namespace):
    job = stored(cluster, namespace, TOGETHER, "a" * MAX_NAME_LENGTH)
    for manifest in (*owned_objects(job, isolated=True), worker_secret(job, bytes(32))):
        try_out(cluster, manifest, keep=True)
    for pod in pods_of(job):
        try_out(cluster, pod)


def test_the_largest_job_that_is_not_refused_is_taken(cluster, namespace):
    options = {"text": "x" * 248_500}
    job = stored(cluster, namespace, {"training": {"model": {"name": "digits", "options": options}}})
    for manifest in owned_objects(job):
        try_out(cluster, manifest, keep=True)
    for pod in pods_of(job):
        try_out(cluster, pod)


@pytest.mark.parametrize("case", ["no template", "no image"])
def test_the_ready_trainer_is_taken_under_restricted_pod_security(cluster, namespace, case):
    """Another image is for its owner to secure."""
    cluster.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    job = stored(cluster, namespace, SPECS[case])
    for manifest in owned_objects(job):
        try_out(cluster, manifest, keep=True)
    for pod in pods_of(job):
        try_out(cluster, pod)
    other = stored(cluster, namespace, SPECS["own image"], "other")
    for manifest in owned_objects(other):
        try_out(cluster, manifest, keep=True)
    with pytest.raises(ServerError, match="violates PodSecurity"):
        try_out(cluster, pods_of(other)[0])


@pytest.mark.parametrize("options", [["create"], ["apply", "--server-side"]], ids=" ".join)
def test_a_null_of_the_template_leaves_the_choice_to_the_platform(
    cluster: ApiServer, namespace: str, options: list[str]
) -> None:
    """But for client-side `kubectl apply`, which sends no nulls: there the operator's setting helps."""
    given = {"runAsUser": None, "fsGroup": None}
    raw = raw_job("one", {"template": {"spec": {"securityContext": given, "containers": [LIMITED]}}})
    raw["metadata"] = {"name": "one", "namespace": namespace}
    cluster.kubectl(*options, "--filename=-", stdin=json.dumps(raw))
    job = parse_job(cluster.request("GET", f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs/one"), READY)
    assert isinstance(job, KubeJob), job
    security = worker_pod(job, STATUS, WorkerRole.BASE, 0, 0, READY)["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
