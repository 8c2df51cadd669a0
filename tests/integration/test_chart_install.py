"""The chart on a real API server: it installs, upgrades, goes back and goes; its pods are restricted."""

from __future__ import annotations

import re

import pytest
from apiserver import JOBS
from charts import CASES, CHART, IMAGES, ROOT, VERSION, HelmError, parse
from releases import DEFINITION, Release, key, make_job, try_pods

from espalier_generate.crd import definitions

pytestmark = pytest.mark.slow

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_a_release_s_whole_life_and_the_jobs_that_live_through_it(release: Release) -> None:
    server, jobs = release.server, release.server.namespace()
    path = f"{JOBS}/namespaces/{jobs}/adaptivetrainingjobs/digits"
    deployment = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/espalier-agent"

    said = release.run("install")
    _, _, notes = said.partition("NOTES:")
    assert f"Espalier {VERSION} is in namespace {release.namespace}; it manages jobs in all namespaces." in notes
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
    assert spec["template"]["spec"]["containers"][0]["image"] == f"{IMAGES}/espalier-agent:next"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    release.helm("rollback", "espalier", "1", f"--namespace={release.namespace}")
    assert release.there(second) == {key(each) for each in first}
    spec = server.request("GET", deployment)["spec"]
    assert spec["replicas"] == 1
    assert spec["template"]["spec"]["containers"][0]["image"] == f"{IMAGES}/espalier-agent:{VERSION}"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    said = release.uninstall()
    assert release.there(first) == {f"CustomResourceDefinition/{name}" for name in definitions()}
    assert "CustomResourceDefinition" in said, "helm says what it kept"
    assert server.request("GET", path)["metadata"]["uid"] == uid

    release.run("install")
    assert release.there(first) == {key(each) for each in first}, "the same release takes the definition over"
    assert server.request("GET", path)["metadata"]["uid"] == uid


def test_a_definition_that_is_not_to_be_kept_goes_with_the_release(release: Release) -> None:
    release.run("install", crds__keep=False)
    release.uninstall()
    release.server.wait_uninstalled(*definitions())
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


NAMESPACES = ("team-a", "team-b", "123", "true", "1e3", "99", "monitoring", "vision", "speech")
"""Those that some file of values names."""


@pytest.mark.sweep("values of the chart")
@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_the_api_server_takes_everything_and_pods_are_restricted(release: Release, files: tuple[str, ...]) -> None:
    server = release.server
    for name in NAMESPACES:
        if server.api.get(f"/api/v1/namespaces/{name}").status_code == 404:
            server.namespace(name)
    if server.api.get(f"{CLASSES}/false").status_code == 404:
        server.request("POST", CLASSES, {"metadata": {"name": "false"}, "value": 7})
    release.run("install", *files)
    installed = release.objects()
    tests = list(parse(release.helm("get", "hooks", "espalier", f"--namespace={release.namespace}")))
    assert release.there(installed) == {key(each) for each in installed}
    tried = try_pods(release, [*installed, *tests])
    start = {"full": "gpus", "shared": "training"}.get("".join(files[:1]), "espalier")
    parts = ("operator", "test") if files == ("minimal",) else ("operator", "agent", "test")
    assert set(tried) == {f"{start}-{part}" for part in parts}


def test_two_releases_in_a_namespace_need_a_controller_name_each(release: Release) -> None:
    release.run("install")
    second = ("install", "second", str(CHART), f"--namespace={release.namespace}")
    values = ("crds.install=false", "priorityClass.create=false", "agent.enabled=false", "admission.enabled=false")
    options = [f"--set={value}" for value in values]
    with pytest.raises(HelmError, match="operator.controllerName is .* as that of the Deployment espalier-op"):
        release.helm(*second, *options)
    options.append("--set=operator.controllerName=espalier.dev/two")
    release.helm(*second, *options)
    try:
        release.run("upgrade")
    finally:
        release.helm("uninstall", "second", f"--namespace={release.namespace}")
