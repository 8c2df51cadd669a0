"""The chart's rights on a real API server: they are enough, and none too many."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest
from apiserver import ApiServer
from audits import Audit, Right
from charts import bound_rights, rights
from fake_kubelet import FakeKubelet
from operators import Jobs, World
from releases import PATIENCE, Operators, Release, until_it_lives
from trainers import Trainers

from espalier_operator.kube.objects import manifests as objects
from espalier_operator.kube.objects.worker_pod import STATUS_ROUTE
from operator_world.kube_devices import RESOURCE
from operator_world.kube_objects import kube_job

pytestmark = pytest.mark.slow

REVIEW: Right = ("authentication.k8s.io", "tokenreviews", "create")
"""The one right of the agent."""


def may_grant(server: ApiServer, without: Right, granted: Iterable[Right]) -> bool:
    """Return whether one who has these rights but one may make a job's Role."""
    namespace = server.namespace()
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in {*granted, ("rbac.authorization.k8s.io", "roles", "create")} - {without}
    ]
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    server.request("POST", f"{base}/roles", {"metadata": {"name": "less"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "less"}
    binding = {"metadata": {"name": "less"}, "roleRef": role, "subjects": [subject]}
    server.request("POST", f"{base}/rolebindings", binding)
    body = objects.role(kube_job())
    body["metadata"] = {"name": "trainer"}
    with server.client(server.token(namespace, "default")) as client:
        answer = client.post(f"{base}/roles", json=body, params={"dryRun": "All"})
    assert answer.status_code in (201, 403), answer.text
    return answer.is_success


def pod_of_another(world: World, namespace: str) -> None:
    """Let a worker of a job that another Espalier looks after, in a namespace of its own, run and vanish."""
    theirs = Jobs(world.server, namespace).make("theirs")
    names = {"app.kubernetes.io/managed-by": "espalier", "espalier.dev/job": "theirs", "espalier.dev/role": "base"}
    owner = objects.owner_reference(kube_job()) | {"name": "theirs", "uid": theirs["metadata"]["uid"]}
    metadata = {"name": "theirs-base-0-0", "labels": names, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "trainer", "image": "any"}]}
    server, pods = world.server, f"/api/v1/namespaces/{namespace}/pods"
    server.request("POST", pods, {"metadata": metadata, "spec": spec})
    path = f"{pods}/{metadata['name']}"
    world.until("it runs", lambda: server.request("GET", path)["status"]["phase"] == "Running", PATIENCE)
    server.request("DELETE", path, gracePeriodSeconds="0")


def whole_life(world: World, operators: Operators, meanwhile: Callable[[], None]) -> None:
    """Let a job wait, run, be lent a GPU, lose its operator, stop, continue, end and be deleted."""
    world.kubelet.add_node("node", 2)

    def until(kind: str, reason: str) -> None:
        world.until_condition("job", kind, "True", reason, PATIENCE)

    with operators.process() as operator:
        until_it_lives(world, operator)
        training = {"elasticBatch": "keepGlobal"}
        world.jobs.make(
            "job", maxReplicas=2, ttlSecondsAfterFinished=1, preemption={"cooldownSeconds": 0}, training=training
        )
        world.until("both workers run", lambda: len(world.running("job")) == 2, PATIENCE)
        until("Running", "Running")
        operator.end(signal.SIGKILL)
    operators.end_lease()
    with operators.process() as operator:
        until_it_lives(world, operator)
        world.jobs.change("job", suspend=True)
        until("Suspended", "Suspended")
        meanwhile()
        job = world.server.request("GET", f"{world.jobs.path}/job")
        job["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 6006}]
        world.jobs.change("job", template=job["spec"]["template"])  # its policy admits another port
        world.jobs.change("job", suspend=False)
        until("Running", "Running")
        world.trainers.ends_when = lambda job, pods: 0
        world.jobs.server.request("PATCH", f"{world.jobs.path}/job", {"metadata": {"labels": {"look": "now"}}})
        world.until("it was deleted", lambda: world.server.request("GET", world.jobs.path)["items"] == [], PATIENCE)
        world.until("its pods are gone", lambda: not world.pods("job"), PATIENCE)
        assert operator.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
def test_the_operators_rights_are_enough_for_a_jobs_whole_life_and_each_is_needed(
    release: Release, tmp_path: Path, mode: str
) -> None:
    """Each is used, so that what uses it would be refused without it; or else it is granted on."""
    server = release.server
    with FakeKubelet(server) as kubelet, Trainers(server) as trainers:
        release.run("install", operator__gpu__otherResources=[RESOURCE], rbac__podLogs=True)
        world = World(server, kubelet, trainers)
        if mode == "namespaced":
            release.run("upgrade", watchNamespaces=[world.namespace], rbac__podLogs=True)
        operators = Operators(release, tmp_path)
        audit = Audit(server, release.namespace, operators.account)
        other = server.namespace()

        def logs() -> None:
            """What a program writes is read, and a worker that vanishes is looked for."""
            world.jobs.make("program", program={"progress": {"log": {"pattern": "(?P<step>[0-9]+)"}}})
            asked = (world.namespace, ("", "pods/log", "get"))
            world.until("its log is asked for", lambda: asked in audit.used(), PATIENCE)
            path = STATUS_ROUTE.format(namespace=world.namespace, name="program")
            answer = httpx.post(operators.posts + path, headers={"Authorization": "Bearer other"}, trust_env=False)
            assert answer.status_code == 403, answer.text
            path = f"/api/v1/namespaces/{world.namespace}/pods/program-base-0-0"
            server.request("DELETE", path, gracePeriodSeconds="0")
            looked = (world.namespace, ("", "pods", "get"))
            world.until("it is looked at", lambda: looked in audit.used(), PATIENCE)
            world.jobs.delete("program")
            world.kubelet.hindrance = lambda pod: ("FailedMount", "no") if "mount" in pod["metadata"]["name"] else None
            world.jobs.make("mount")
            listed = (world.namespace, ("", "events", "list"))
            world.until("Events about it are read", lambda: listed in audit.used(), PATIENCE)
            world.jobs.delete("mount")

        def elsewhere() -> None:
            logs()
            pod_of_another(world, other)
            world.until("it is looked at", lambda: (other, ("", "pods", "get")) in audit.used(), PATIENCE)

        queues = "/apis/espalier.dev/v1alpha1/queues"
        queue = {"apiVersion": "espalier.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}}
        server.request("POST", queues, queue)
        with world:
            whole_life(world, operators, elsewhere if mode == "namespaced" else logs)
        server.request("DELETE", f"{queues}/default")
    assert audit.forbidden() == []
    used = audit.used()
    granted = set(rights(objects.role(kube_job())["rules"]))
    bound = bound_rights(release.objects())
    bound[None].remove(REVIEW)  # the agent's; the operator has it, too
    assert bound.keys() == {None, release.namespace, *([world.namespace] if mode == "namespaced" else ())}
    for namespace, found in bound.items():
        assert len(found) == len(set(found)), "none twice"
        for right in found:
            where = {place for place, each in used if each == right}
            if not where:
                assert right in granted, f"{right} in {namespace} is never used"
                assert not may_grant(server, right, granted), f"{right} in {namespace} can be done without"
            elif mode == "namespaced" and namespace is None:
                assert where & {None, other}, f"{right} is used in one namespace only"
            elif mode == "namespaced" and namespace is not None:
                assert where == {namespace}
    assert may_grant(server, ("", "secrets", "get"), granted), "with all of them a job's Role can be made"
