"""The chart on a real API server: it installs, upgrades, goes back and goes; its rights are enough, and none too many.

No controllers run, so no pods start: those that the Deployments would make are sent as dry runs to a namespace with
restricted pod security.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import JOBS, ApiServer
from fake_kubelet import FakeKubelet
from operator_process import OperatorProcess
from operators import World
from trainers import Trainers

from espalier_operator.kube import objects
from espalier_operator.testing.kube_objects import kube_job

# What asks helm lies beside the tests that need no API server.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "chart"))

from charts import CHART, VALUES, Helm, Raw, Right, bound_rights, helm_or_skip, of, parse, pod_templates, rights

ROOT = Path(__file__).parents[2]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/adaptivetrainingjobs.espalier.dev"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NO_MONITORS = {f"{name}.enabled": "false" for name in ("serviceMonitor", "podMonitor", "prometheusRule")}
"""Their definitions are not in a bare API server."""
_PATIENCE = 90.0
"""Seconds for what takes a few on a machine that does nothing else."""
_AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
"""


@pytest.fixture(scope="module")
def server(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give an API server of its own, without our kinds, that writes down what ServiceAccounts ask for."""
    folder = tmp_path_factory.mktemp("chart")
    (folder / "audit.yaml").write_text(_AUDIT)
    flags = (f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}")
    with ApiServer(kubernetes_binaries, folder, flags) as server:
        yield server


@pytest.fixture(scope="module")
def helm(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give helm for that server."""
    return helm_or_skip(tmp_path_factory.mktemp("helm"), server.kubeconfig)


class Release:
    """The release `espalier` in a namespace that enforces restricted pod security."""

    def __init__(self, server: ApiServer, helm: Helm, namespace: str) -> None:
        """Make the namespace."""
        self.server, self.helm, self.namespace = server, helm, namespace
        server.namespace(namespace)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        server.request("PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})

    def run(self, command: str, *files: str, **values: Any) -> str:
        """Install or upgrade; pod security may not warn of anything. `a__b` is the value `a.b`."""
        options = [f"--values={VALUES / file}.yaml" for file in files]
        for name, value in values.items():
            options += ["--set-json", f"{name.replace('__', '.')}={json.dumps(value)}"]
        for name, text in NO_MONITORS.items():
            options += ["--set", f"{name}={text}"]
        said = self.helm(command, "espalier", str(CHART), f"--namespace={self.namespace}", *options)
        assert "Warning" not in self.helm.aside, self.helm.aside
        if self.server.api.get(DEFINITION).is_success:
            self.wait_until_served()
        return said

    def wait_until_served(self) -> None:
        """Wait until there can be jobs; for a moment after the definition was made, requests for them are put off."""
        deadline = time.monotonic() + 30
        while (answer := self.server.api.get(f"{JOBS}/adaptivetrainingjobs")).status_code != 200:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    def objects(self) -> list[Raw]:
        """Return what is installed, as it was rendered."""
        return list(parse(self.helm("get", "manifest", "espalier", f"--namespace={self.namespace}")))

    def there(self, objects: Iterable[Raw]) -> set[str]:
        """Return the names of those that the API server has."""
        found = set()
        for each in objects:
            metadata = each["metadata"]
            where = [] if "namespace" not in metadata else ["--namespace", metadata["namespace"]]
            kind, name = each["kind"], metadata["name"]
            out = self.server.kubectl("get", kind, name, *where, "--ignore-not-found", "--output=name")
            if out.strip():
                found.add(f"{kind}/{name}")
        return found

    def uninstall(self) -> str:
        """Uninstall, where it is installed."""
        return self.helm("uninstall", "espalier", f"--namespace={self.namespace}", "--ignore-not-found")


_NUMBERS = itertools.count(1)


@pytest.fixture
def release(server: ApiServer, helm: Helm) -> Iterator[Release]:
    """Give a release to install; uninstalled afterwards, the definition and with it all jobs deleted."""
    release = Release(server, helm, f"system-{next(_NUMBERS)}")
    yield release
    release.uninstall()
    server.kubectl("delete", "crd", "--all", "--timeout=30s")
    server.kubectl("delete", "nodes", "--all", "--timeout=30s")
    server.kubectl("delete", "pods", "--all", "--all-namespaces", "--force", "--grace-period=0")


def key(each: Raw) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def make_job(server: ApiServer, namespace: str, name: str = "digits") -> Raw:
    """Make a job, as somebody does who has it already."""
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": name}}
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    made: Raw = server.request("POST", path, {**head, "spec": {"timeBudgetSeconds": 100}})
    return made


def try_pods(release: Release, objects: Iterable[Raw]) -> list[str]:
    """Send the pods that `objects` would make as dry runs; return their names."""
    tried = []
    for name, template in pod_templates(objects):
        body = {"metadata": {**template["metadata"], "name": f"{name}-try"}, "spec": template["spec"]}
        body["metadata"].pop("namespace", None)
        release.server.request("POST", f"/api/v1/namespaces/{release.namespace}/pods", body, dryRun="All")
        tried.append(name)
    return tried


def test_a_release_s_whole_life_and_the_jobs_that_live_through_it(release: Release) -> None:
    server, jobs = release.server, release.server.namespace()
    path = f"{JOBS}/namespaces/{jobs}/adaptivetrainingjobs/digits"
    deployment = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/espalier-agent"

    said = release.run("install")
    _, _, notes = said.partition("NOTES:")
    assert f"Espalier 0.1.0 is in namespace {release.namespace}; jobs are looked after in all namespaces." in notes
    assert f"helm test espalier --namespace {release.namespace}" in notes
    (applied,) = re.findall(r"kubectl apply.* -f (\S+)", notes)
    assert (ROOT / applied).exists()
    first = release.objects()
    assert release.there(first) == {key(each) for each in first}
    uid = make_job(server, jobs)["metadata"]["uid"]

    release.run("upgrade", agent__replicas=2, image__tag="next", operator__log__level="debug")
    second = release.objects()
    assert release.there(second) == {key(each) for each in second}
    assert {key(each) for each in second} - {key(each) for each in first} == {"PodDisruptionBudget/espalier-agent"}
    spec = server.request("GET", deployment)["spec"]
    assert spec["replicas"] == 2
    assert spec["template"]["spec"]["containers"][0]["image"] == "localhost/espalier-agent:next"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    release.helm("rollback", "espalier", "1", f"--namespace={release.namespace}")
    assert release.there(second) == {key(each) for each in first}
    spec = server.request("GET", deployment)["spec"]
    assert spec["replicas"] == 1
    assert spec["template"]["spec"]["containers"][0]["image"] == "localhost/espalier-agent:dev"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    said = release.uninstall()
    kept = "CustomResourceDefinition/adaptivetrainingjobs.espalier.dev"
    assert release.there(first) == {kept}
    assert "CustomResourceDefinition" in said, "helm says what it kept"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    release.run("install")
    assert release.there(first) == {key(each) for each in first}, "the same release takes the definition over"
    assert server.request("GET", path)["metadata"]["uid"] == uid


def test_a_definition_that_is_not_to_be_kept_goes_with_the_release(release: Release) -> None:
    release.run("install", crds__keep=False)
    release.uninstall()
    release.server.kubectl("wait", "--for=delete", "crd/adaptivetrainingjobs.espalier.dev", "--timeout=30s")
    assert release.server.api.get(DEFINITION).status_code == 404


def test_a_definition_that_came_otherwise_is_left_alone_or_taken_over(release: Release) -> None:
    release.server.install(ROOT / "crds")
    said = release.helm("install", "espalier", str(CHART), f"--namespace={release.namespace}", check=False)
    assert "cannot be imported into the current release" in said
    release.uninstall()
    release.run("install", crds__install=False)
    assert "labels" not in release.server.request("GET", DEFINITION)["metadata"]
    release.uninstall()
    release.helm("install", "espalier", str(CHART), f"--namespace={release.namespace}", "--take-ownership")
    assert release.server.request("GET", DEFINITION)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


VARIANTS = ["", "minimal", "full", "namespaced", "hostile"]


@pytest.mark.parametrize("file", VARIANTS)
def test_the_api_server_takes_everything_and_pods_are_restricted(release: Release, file: str) -> None:
    server = release.server
    for name in ("team-a", "team-b", "123", "true", "1e3", "99", "monitoring"):
        if server.api.get(f"/api/v1/namespaces/{name}").status_code == 404:
            server.namespace(name)
    if server.api.get(f"{CLASSES}/false").status_code == 404:
        server.request("POST", CLASSES, {"metadata": {"name": "false"}, "value": 7})
    release.run("install", *filter(None, [file]))
    installed = release.objects()
    tests = list(parse(release.helm("get", "hooks", "espalier", f"--namespace={release.namespace}")))
    assert release.there(installed) == {key(each) for each in installed}
    tried = try_pods(release, [*installed, *tests])
    start = "gpus" if file == "full" else "espalier"
    parts = ("operator", "test") if file == "minimal" else ("operator", "agent", "test")
    assert set(tried) == {f"{start}-{part}" for part in parts}


def test_a_pod_that_is_not_restricted_is_refused_there(release: Release) -> None:
    release.run("install")
    (_, template), *_ = pod_templates(release.objects())
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(Exception, match="violates PodSecurity"):
        try_pods(release, [{"kind": "Pod", **template, "metadata": {**template["metadata"], "name": "loose"}}])


# ---- rights


class Audit:
    """What an account has asked the API server for, as that wrote it down."""

    def __init__(self, server: ApiServer, namespace: str, account: str) -> None:
        """From the start of the log."""
        self._log = server.directory / "audit.log"
        self._user = f"system:serviceaccount:{namespace}:{account}"

    def entries(self) -> Iterator[Raw]:
        """Yield the requests for objects."""
        for line in self._log.read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == self._user and "objectRef" in entry:
                yield entry

    def used(self) -> set[tuple[str | None, Right]]:
        """Return by namespace (None: all at once) the rights that were used."""
        found = set()
        for entry in self.entries():
            if entry["annotations"]["authorization.k8s.io/decision"] == "allow":
                what = entry["objectRef"]
                resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
                found.add((what.get("namespace"), (what.get("apiGroup", ""), resource, entry["verb"])))
        return found

    def forbidden(self) -> list[str]:
        """Return what was refused."""
        return [
            f"{entry['verb']} {entry['requestURI']}"
            for entry in self.entries()
            if entry["annotations"]["authorization.k8s.io/decision"] != "allow"
        ]


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


class Operators:
    """Starts the installed operator's process under its own account, as its Deployment would."""

    def __init__(self, release: Release, folder: Path) -> None:
        """Take the arguments from the release."""
        self._release, self._folder = release, folder
        (operator,) = of(release.objects(), "Deployment", "espalier-operator")
        spec = operator["spec"]["template"]["spec"]
        self.account = spec["serviceAccountName"]
        self._args = spec["containers"][0]["args"]
        self._numbers = itertools.count(1)

    def process(self) -> OperatorProcess:
        """Return another one, not started."""
        server, number = self._release.server, next(self._numbers)
        config = self._folder / f"account-{number}"
        config.write_text(server.kubeconfig_text(server.token(self._release.namespace, self.account)))
        options = [*self._args, f"--kubeconfig={config}", "--lease-seconds=3", "--resync-seconds=5"]
        return OperatorProcess(server, self._folder, f"operator-{number}", *options, namespace=self._release.namespace)


def whole_life(world: World, start: Callable[[], OperatorProcess]) -> None:
    """Let a job wait, run, be lent a GPU, lose its operator, stop, go on, end and be deleted."""
    world.kubelet.add_node("node", 2)

    def begin(operator: OperatorProcess) -> None:
        # A process: it imports for seconds, and the lease of one that was killed must run out.
        world.until("it lives", lambda: (answer := operator.ask("/healthz")) and answer.status_code == 200, _PATIENCE)

    def until(kind: str, reason: str) -> None:
        world.until_condition("job", kind, "True", reason, _PATIENCE)

    with start() as operator:
        begin(operator)
        world.jobs.make("job", maxReplicas=2, ttlSecondsAfterFinished=1, preemption={"cooldownSeconds": 0})
        world.until("both workers run", lambda: len(world.running("job")) == 2, _PATIENCE)
        until("Running", "Running")
        operator.end(signal.SIGKILL)
    with start() as operator:
        begin(operator)
        world.jobs.change("job", suspend=True)
        until("Suspended", "Suspended")
        world.jobs.change("job", suspend=False)
        until("Running", "Running")
        world.trainers.ends_when = lambda job, pods: 0
        world.jobs.server.request("PATCH", f"{world.jobs.path}/job", {"metadata": {"labels": {"look": "now"}}})
        world.until("it was deleted", lambda: world.server.request("GET", world.jobs.path)["items"] == [], _PATIENCE)
        assert operator.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
def test_the_operators_rights_are_enough_for_a_jobs_whole_life_and_each_is_needed(
    release: Release, tmp_path: Path, mode: str
) -> None:
    """Each is used, so that what uses it would be refused without it; or else it is granted on."""
    server = release.server
    with FakeKubelet(server) as kubelet, Trainers(server) as trainers:
        release.run("install")
        world = World(server, kubelet, trainers)
        if mode == "namespaced":
            release.run("upgrade", watchNamespaces=[world.namespace])
        operators = Operators(release, tmp_path)
        with world:
            whole_life(world, operators.process)
    audit = Audit(server, release.namespace, operators.account)
    assert audit.forbidden() == []
    used = audit.used()
    granted = set(rights(objects.role(kube_job())["rules"]))
    bound = bound_rights(release.objects())
    assert bound.keys() == {None, release.namespace, *([world.namespace] if mode == "namespaced" else ())}
    for namespace, found in bound.items():
        assert len(found) == len(set(found)), "none twice"
        for right in found:
            where = {place for place, each in used if each == right}
            if not where:
                assert right in granted, f"{right} in {namespace} is never used"
                assert not may_grant(server, right, granted), f"{right} in {namespace} can be done without"
            elif mode == "namespaced" and namespace is None and right[2] in ("list", "watch"):
                assert where == {None}, f"{right} is not used for all namespaces at once"
            elif mode == "namespaced" and namespace is not None:
                assert where == {namespace}
    assert may_grant(server, ("", "secrets", "get"), granted), "with all of them a job's Role can be made"


def test_an_operator_of_some_namespaces_reads_the_rest_and_writes_nothing_there(release: Release) -> None:
    server = release.server
    mine, other = server.namespace(), server.namespace()
    release.run("install", watchNamespaces=[mine])
    pod = {"metadata": {"name": "worker"}, "spec": {"containers": [{"name": "trainer", "image": "any"}]}}
    note = {"metadata": {"name": "note"}}
    with server.client(server.token(release.namespace, "espalier-operator")) as client:

        def codes(namespace: str) -> list[int]:
            core, jobs = f"/api/v1/namespaces/{namespace}", f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
            return [
                client.post(f"{core}/pods", json=pod, params={"dryRun": "All"}).status_code,
                client.post(f"{core}/configmaps", json=note, params={"dryRun": "All"}).status_code,
                client.get(jobs).status_code,
                client.get(f"{core}/configmaps").status_code,
                client.get(f"{core}/pods").status_code,
            ]

        assert codes(mine) == [201, 201, 200, 200, 200]
        assert codes(other) == [403, 403, 403, 403, 200]
        for path in ("/api/v1/secrets", f"/api/v1/namespaces/{release.namespace}/secrets", "/api/v1/configmaps"):
            assert client.get(path).status_code == 403
        assert client.get("/api/v1/pods").status_code == client.get("/api/v1/nodes").status_code == 200


def test_the_agent_may_nothing(release: Release) -> None:
    release.run("install")
    with release.server.client(release.server.token(release.namespace, "espalier-agent")) as client:
        for path in ("/api/v1/namespaces", "/api/v1/pods", f"{JOBS}/adaptivetrainingjobs"):
            assert client.get(path).status_code == 403
