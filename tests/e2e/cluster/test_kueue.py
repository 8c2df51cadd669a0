"""A real Kueue admits jobs, lends between teams and takes back; it is installed for the tests of this file.

While it is there, no pod is made without its webhook: these tests disturb all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kube import (
    GPU,
    GPU_TYPE,
    Nodes,
    Space,
    digits,
    get,
    helm,
    host_folder,
    kubectl,
    pods_of,
    run,
    shared_folder,
    wait_for,
    waiting,
)

from tools import tool

pytestmark = [pytest.mark.without("agent"), pytest.mark.disturbs(operator=True)]
_NAMESPACE = "kueue-system"
_QUEUE = "kueue.x-k8s.io/queue-name"
Queue = Callable[..., str]


@pytest.fixture(scope="module")
def kueue(installed: None) -> Iterator[None]:
    """Install Kueue and let Espalier ask it; skip where it is not to be had, fail in CI."""
    tool("kueue", "no Kueue to install; hack/kueue builds it")
    before = json.loads(helm("history", "espalier", "--output=json"))[-1]["revision"]
    try:
        run("hack/cluster", "kueue", "--set", "kueue.extraWorkers=true")
        yield
    finally:
        helm("rollback", "espalier", str(before), "--wait", "--timeout=180s")
        # Kueue itself takes its finalizers off: it must be the last to go.
        kinds = "workloads,localqueues,clusterqueues,resourceflavors".replace(",", ".kueue.x-k8s.io,")
        kubectl("delete", f"{kinds}.kueue.x-k8s.io", "--all", "--all-namespaces", "--timeout=60s", timeout=90)
        run(run("hack/helm").strip(), "uninstall", "kueue", "--namespace", _NAMESPACE, "--wait", "--timeout=120s")


@pytest.fixture
def queue(kueue: None, space: Space, nodes: Nodes) -> Iterator[Queue]:
    """Give what makes a ClusterQueue with a quota of the GPUs that the test has, and its LocalQueue."""
    kinds: list[str] = []

    def make(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}
        kubectl("apply", "--filename=-", text=json.dumps(body))
        if not namespace:
            kinds.append(f"{kind}/{name}")

    def queue(name: str, quota: int, **spec: Any) -> str:
        resources = [{"name": GPU, "nominalQuota": quota}]
        groups = [{"coveredResources": [GPU], "flavors": [{"name": space.name, "resources": resources}]}]
        own = f"{space.name}-{name}"
        make("ClusterQueue", own, {"namespaceSelector": {}, "resourceGroups": groups, **spec})
        make("LocalQueue", name, {"clusterQueue": own}, space.name)
        return own

    # Where the pods of these queues go is said by their flavor alone.
    make("ResourceFlavor", space.name, {"nodeLabels": {GPU_TYPE: nodes.gpu_type}})
    space.gpu_type = ""
    yield queue
    for each in reversed(kinds):  # gone as soon as nothing is admitted by them
        kubectl("delete", each, "--wait=false")


def labelled(job: dict[str, Any], queue: str) -> dict[str, Any]:
    """Return the job with Kueue's label."""
    return {**job, "metadata": {**job["metadata"], "labels": {_QUEUE: queue}}}


def strange_job(queue: str) -> dict[str, Any]:
    """Return a batch Job of nobody we know that wants a GPU of a queue, and keeps it."""
    container = {
        "name": "stranger",
        "image": pods_of("operator")[0]["spec"]["containers"][0]["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "resources": {"limits": {GPU: "1"}},
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    metadata = {"name": "stranger", "labels": {_QUEUE: queue}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def stranger_runs(space: Space) -> bool:
    pods = get("pods", namespace=space.name, selector="job-name=stranger")["items"]
    return [pod["status"]["phase"] for pod in pods] == ["Running"]


def waits(space: Space, job: str) -> str:
    """Wait until a job waits for Kueue, and return why."""
    wait_for(f"{job} waits for Kueue", lambda: space.condition(job, "Admitted").get("reason") == "WaitingForKueue")
    return str(space.condition(job, "Admitted")["message"])


def test_a_cohort_lends_and_takes_back_and_a_default_queue_holds_pods(space: Space, nodes: Nodes, queue: Queue) -> None:
    """The job's own queue has no quota: it borrows, and the owner's batch Job preempts it."""
    nodes.set_gpus(1)
    shared_folder(space, nodes.names[0])
    queue("poor", 0, cohortName=space.name)
    queue("owner", 1, cohortName=space.name, preemption={"reclaimWithinCohort": "Any"})
    preemption = {"base": "Checkpoint", "noticeSeconds": 10, "cooldownSeconds": 1, "minRuntimeSeconds": 1}
    worker = {"name": "trainer", "resources": {"limits": {GPU: 1}}}
    mounted = {**worker, "volumeMounts": [{"name": "shared", "mountPath": "/checkpoints"}]}
    template = {"spec": {"containers": [mounted], "volumes": [host_folder(space)]}}
    job = digits("borrower", budget=120, maxReplicas=1, template=template, preemption=preemption)
    space.apply(labelled(job, "poor"))
    wait_for("it has a checkpoint", lambda: "lastCheckpointTime" in space.status("borrower"))
    step = space.report("borrower")["step"]
    space.apply(strange_job("owner"))
    wait_for("the owner has its GPU back", lambda: stranger_runs(space))
    waits(space, "borrower")
    used = space.status("borrower")["timeBudget"]["usedSeconds"]
    kubectl("delete", "job", "stranger", "--namespace", space.name)
    space.wait_condition("borrower", "Running")
    wait_for("it trains", lambda: space.report("borrower").get("phase") == "Training")
    assert space.report("borrower")["step"] >= step, "it did not continue from its checkpoint"
    assert space.status("borrower")["timeBudget"]["usedSeconds"] >= used
    assert space.status("borrower")["scheduling"]["failures"] == 0

    # Kueue lets one of two workers of a job without the label through: no budget runs, and the job names the gate.
    kubectl("delete", "atj", "borrower", "--namespace", space.name)
    nodes.set_gpus(2)
    cluster_queue = queue("default", 1)
    space.apply(waiting("held", gpus=2))
    wait_for("it says so", lambda: space.condition("held", "Running").get("reason") == "SchedulingGated")
    assert "kueue.x-k8s.io/admission" in space.condition("held", "Running")["message"]
    wait_for("one is let through", lambda: sum(pod["status"]["phase"] == "Running" for pod in space.pods("held")) == 1)
    assert space.condition("held", "Running")["status"] == "False"
    assert not space.status("held").get("timeBudget", {}).get("usedSeconds")
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    patch = json.dumps([{"op": "replace", "path": path, "value": 2}])
    kubectl("patch", "clusterqueue", cluster_queue, "--type=json", "--patch", patch)
    space.wait_condition("held", "Running")
