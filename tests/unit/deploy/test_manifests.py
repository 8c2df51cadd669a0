"""The manifests of `deploy/`: restricted, least rights, and true to the parts they start."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from espalier_operator.kube.process.main import main
from espalier_operator.kube.settings import settings_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
REGISTRY = "ghcr.io/espalier-dev/espalier"
(VERSION,) = re.findall(r"^version: (.+)$", (ROOT / "charts/espalier/Chart.yaml").read_text(), re.M)
SYSTEM = "espalier-system"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@functools.cache
def manifests() -> list[dict[str, Any]]:
    """Return all objects; not to be changed."""
    yaml = YAML(typ="safe", pure=True)
    return [found for file in sorted(DEPLOY.glob("*.yaml")) for found in yaml.load_all(file)]


def of(kind: str, name: str | None = None) -> list[dict[str, Any]]:
    return [each for each in manifests() if each["kind"] == kind and name in (None, each["metadata"]["name"])]


def deployment(name: str) -> dict[str, Any]:
    (found,) = of("Deployment", name)
    return found


def pod_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = deployment(name)["spec"]["template"]["spec"]
    return spec


PARTS = ["operator", "agent"]


def test_the_namespace_comes_first_and_holds_everything_else() -> None:
    first, *others = manifests()
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", SYSTEM)
    for mode in ("enforce", "audit", "warn"):
        assert first["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] == "restricted"
    unbound = {"ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    unbound |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert {each["metadata"].get("namespace") for each in others if each["kind"] not in unbound} == {SYSTEM}


@pytest.mark.parametrize("part", PARTS)
def test_pods_run_our_images_under_their_own_account(part: str) -> None:
    spec = pod_spec(f"espalier-{part}")
    (container,) = spec["containers"]
    assert container["image"] == f"{REGISTRY}/espalier-{part}:{VERSION}"
    assert container["imagePullPolicy"] == "IfNotPresent", "the image is loaded into the nodes, no registry has it"
    assert spec["serviceAccountName"] == f"espalier-{part}"
    template = deployment(f"espalier-{part}")["spec"]
    selector = template["selector"]["matchLabels"]
    assert selector.items() <= template["template"]["metadata"]["labels"].items()
    assert re.search(rf"^FROM [\w-]+ AS {part}$", DOCKERFILE, re.M), "a target of the Dockerfile"


def test_the_operators_options_are_ones_it_takes_and_name_what_is_deployed() -> None:
    (container,) = pod_spec("espalier-operator")["containers"]
    context = main.make_context("espalier-operator", list(container["args"]))
    settings = settings_of(context.params)
    assert settings.trainer_image == f"{REGISTRY}/espalier-trainer:{VERSION}"
    (service,) = of("Service", "espalier-agent")
    (port,) = service["spec"]["ports"]
    assert settings.agent_url == f"http://{service['metadata']['name']}.{SYSTEM}.svc:{port['port']}"
    (priority,) = of("PriorityClass")
    assert settings.extra_priority_class == priority["metadata"]["name"]
    assert (priority["value"], priority["preemptionPolicy"]) == (0, "Never")
    environment = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
    assert environment == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    assert context.params["http"].port == container["ports"][0]["containerPort"]


def test_one_operator_at_a_time() -> None:
    spec = deployment("espalier-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_image_is_built_by_the_uv_of_the_makefile() -> None:
    (image,) = re.findall(r"^ARG UV_VERSION=(\S+)$", DOCKERFILE, re.M)
    (make,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert image == make


def test_images_run_without_root_and_without_a_shell_between() -> None:
    users = re.findall(r"^USER (.*)$", DOCKERFILE, re.M)
    assert users == ["65532:65532"] * 3
    entries = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)
    assert entries == [f'["python", "-m", "espalier_{part}"]' for part in ("operator", "trainer", "agent")]
    assert "HEALTHCHECK" not in DOCKERFILE, "probes do that"


def test_the_build_context_holds_what_the_dockerfile_copies() -> None:
    copied = re.findall(r"^COPY (\w[\w-]*) /src$", DOCKERFILE, re.M)
    assert len(copied) >= 5
    context = (ROOT / ".dockerignore").read_text().splitlines()
    for folder in copied:
        assert (ROOT / folder / "src").is_dir()
        assert f"!{folder}/src" in context, f".dockerignore keeps {folder} out of the images"
