"""The release workflow: every image is built, gets a bill of materials, and is signed by digest with least rights."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(WORKFLOW.read_text())
    return loaded


def commands(workflow: dict[str, Any], job: str = "image") -> list[list[str]]:
    """Return the commands of all steps in their order, as a shell splits them."""
    found = []
    for step in workflow["jobs"][job]["steps"]:
        text = _EXPRESSION.sub("EXPRESSION", step.get("run", "")).replace("\\\n", " ")
        found += [shlex.split(line) for line in text.splitlines() if line.strip()]
    return found


def test_each_image_of_the_dockerfile_is_released(workflow: dict[str, Any]) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.M)
    targets = workflow["jobs"]["image"]["strategy"]["matrix"]["target"]
    assert targets == ["operator", "trainer", "agent"]
    assert set(targets) <= set(stages)


def test_what_is_pushed_is_described_and_signed_by_its_digest_in_this_order(workflow: dict[str, Any]) -> None:
    wanted = (["docker", "buildx", "build"], ["syft", "scan"], ["cosign", "sign"], ["cosign", "attest"])
    found = [line for line in commands(workflow) if any(line[: len(start)] == start for start in wanted)]
    assert [line[: len(start)] for line, start in zip(found, wanted, strict=True)] == list(wanted)
    build, describe, sign, attest = found
    assert "--push" in build
    assert describe[2] == "registry:$IMAGE@$DIGEST"
    assert sign[-1] == attest[-1] == "$IMAGE@$DIGEST"
    file = describe[describe.index("--output") + 1].removeprefix("spdx-json=")
    assert attest[attest.index("--predicate") + 1] == file
    assert attest[attest.index("--type") + 1] == "spdxjson"


def test_tools_have_versions_and_rights_are_few(workflow: dict[str, Any]) -> None:
    for name in ("SYFT_VERSION", "COSIGN_VERSION"):
        assert re.fullmatch(r"v\d+\.\d+\.\d+", workflow["env"][name])
    for line in (*commands(workflow), *commands(workflow, "chart")):
        if line[:2] == ["go", "install"]:
            assert re.fullmatch(r"github\.com/\S+@\$(SYFT|COSIGN)_VERSION", line[2])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["image"]["permissions"] == {"contents": "read", "packages": "write", "id-token": "write"}
    assert workflow["jobs"]["chart"]["permissions"] == workflow["jobs"]["image"]["permissions"]
    assert workflow["jobs"]["wheels"]["permissions"] == {"contents": "read", "id-token": "write"}
    for step in chain.from_iterable(job["steps"] for job in workflow["jobs"].values()):
        assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
        assert "secrets." not in step.get("run", ""), "a secret in a command is in the log of the shell"


def test_wheels_have_run_before_anything_is_pushed_and_the_chart_names_the_images(workflow: dict[str, Any]) -> None:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "charts/espalier/values.yaml").read_text())
    registry = values["image"]["registry"]
    assert values["image"]["tag"] == "", "that of the chart"
    assert workflow["env"]["REGISTRY"] == registry.replace("espalier-dev/espalier", "${{ github.repository }}")
    assert ["make", "test-release"] in commands(workflow, "check")
    assert {name: job.get("needs") for name, job in workflow["jobs"].items()} == {
        **{"check": None, "image": "check", "chart": "image", "wheels": "image"}
    }
    for file in ROOT.glob("*/pyproject.toml"):
        urls = tomllib.loads(file.read_text())["project"]["urls"]
        assert urls["Repository"] == f"https://{registry.replace('ghcr.io', 'github.com')}"


def test_the_released_trainer_has_cuda(workflow: dict[str, Any]) -> None:
    job = workflow["jobs"]["image"]
    assert job["env"]["FLAVOUR"] == "${{ matrix.target == 'trainer' && 'cuda' || 'cpu' }}"
    (build,) = (line for line in commands(workflow) if line[:3] == ["docker", "buildx", "build"])
    assert "FLAVOUR=$FLAVOUR" in build


def test_the_chart_is_pushed_and_signed_by_its_digest(workflow: dict[str, Any]) -> None:
    pushed, sign = (next(line for line in commands(workflow, "chart") if word in line) for word in ("push", "sign"))
    assert pushed[3] == "oci://$REGISTRY/charts"
    assert sign[-1] == "$REGISTRY/charts/espalier@$DIGEST"


def test_the_recipe_to_verify_is_that_of_what_is_signed(workflow: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert "cosign verify " in page
    assert "cosign verify-attestation --type spdxjson" in page
    assert page.count(f"{WORKFLOW.relative_to(ROOT)}@refs/tags/") >= 1
    assert workflow["on"]["push"]["tags"] == ["v*"]
