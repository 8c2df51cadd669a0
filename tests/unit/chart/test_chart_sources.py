"""The chart's own files agree: values, schema, README and the copy of the definition are of one mind."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from charts import CHART, ROOT, parse
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from espalier_operator.kube.settings import KubeSettings

SCRIPT = ROOT / "hack" / "chart"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Give hack/chart as a module."""
    loader = importlib.machinery.SourceFileLoader("espalier_chart", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    return module


def levels(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all schemas in one, by path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from levels(inner, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from levels(schema["items"], f"{path}[]")


ALL = [
    *levels(SCHEMA, "$"),
    *(each for name, inner in SCHEMA["definitions"].items() for each in levels(inner, f"$.definitions.{name}")),
]


def test_nothing_is_stale() -> None:
    """Else: .venv/bin/python hack/chart."""
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def copy_of_the_project(folder: Path) -> Path:
    """Copy what hack/chart reads and writes; return the script's copy."""
    for part in ("hack/chart", "crds/adaptivetrainingjobs.espalier.dev.yaml"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text((ROOT / part).read_text())
    for name in ("values.yaml", "values.schema.json", "README.md"):
        (folder / "charts" / "espalier").mkdir(parents=True, exist_ok=True)
        (folder / "charts" / "espalier" / name).write_text((CHART / name).read_text())
    return folder / "hack" / "chart"


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("charts/espalier/values.yaml", "# CPU.", "# CPUs.", ["values.schema.json", "README.md"]),
        ("charts/espalier/values.yaml", "replicas: 1", "replicas: 2", ["README.md"]),
        ("crds/adaptivetrainingjobs.espalier.dev.yaml", "- atj", "- job", ["files/adaptivetrainingjobs"]),
    ],
)
def test_it_is_seen_when_something_is_stale_and_made_good(
    tmp_path: Path, file: str, old: str, new: str, stale: list[str]
) -> None:
    script = copy_of_the_project(tmp_path)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=60)

    assert run().returncode == 0
    assert run("--check").returncode == 0
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new, 1))
    found = run("--check")
    assert found.returncode == 1
    assert [line for line in found.stderr.splitlines() if not line.startswith("hint:")] != []
    for name in stale:
        assert name in found.stderr
    assert run().returncode == 0
    assert run("--check").returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# More.\nmore: 1\n", "values.schema.json lacks more"),
        ("\nimage:\n  # Where.\n  registry: x\n", "values.yaml has no comment above image"),
    ],
)
def test_a_value_without_schema_or_comment_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    script = copy_of_the_project(tmp_path)
    values = tmp_path / "charts" / "espalier" / "values.yaml"
    values.write_text(text)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert message in result.stderr


OF_PARENTS = ("$.global", "$.enabled", "$.tags")
"""What a chart that includes this one sets; nothing of it is a value here."""
OPEN = (*OF_PARENTS, "$.definitions.kubernetes", "$.definitions.named")


def test_maps_are_closed_at_every_level() -> None:
    """Unless their keys are the user's own (labels), or Kubernetes' (affinities)."""
    for path, schema in ALL:
        if schema.get("type") == "object" and path not in OPEN and "Affinity" not in path:
            inner = schema.get("additionalProperties")
            assert inner is False or (isinstance(inner, dict) and ("anyOf" in inner or inner["type"] == "string")), path


def test_everything_is_described_and_typed() -> None:
    for path, schema in ALL:
        if path != "$" and not path.endswith("[]"):
            assert schema.get("description"), path
        assert {"type", "enum", "$ref"} & schema.keys(), path


def test_every_entry_of_the_schema_is_a_value_with_its_default(script: ModuleType) -> None:
    text = (CHART / "values.yaml").read_text()
    values = {value.name for value in script.read_values(text, SCHEMA)}
    described = {
        path.removeprefix("$.")
        for path, _ in levels(SCHEMA, "$")
        if path not in ("$", *OF_PARENTS) and "[]" not in path and "definitions" not in path
    }
    # A limit of processor time and amounts of ephemeral storage are possible, and there are none by default.
    without = ("limits.cpu", "limits.ephemeral-storage", "requests.ephemeral-storage")
    parts = ("operator", "agent", "policy.server")
    assert described - values == {f"{part}.resources.{name}" for part in parts for name in without}
    assert values <= described


def test_the_default_values_are_ones_that_the_schema_takes() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    (values,) = parse((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_every_setting_of_the_operator_is_a_value() -> None:
    """A setting that is added there is to be added here."""
    (values,) = parse((CHART / "values.yaml").read_text())
    seconds = {field.name for field in fields(KubeSettings) if field.name.endswith("_seconds")}
    assert len(values["operator"]["seconds"]) == len(seconds)
    for name, value in values["operator"]["seconds"].items():
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        assert getattr(KubeSettings(), f"{snake}_seconds") == value
    others = {field.name for field in fields(KubeSettings)} - seconds
    assert others == {
        *("gpu_resource", "other_gpu_resources", "gpu_type_label", "rack_label", "tolerated_taints", "trainer_image"),
        *("kueue", "kueue_extra_workers", "kueue_priority_boost", "image_pull_policy", "image_pull_secrets"),
        *("trainer_user", "departing_nodes", "eviction_requests", "node_groups", "traces_endpoint", "watch_namespaces"),
        *("worker_network_policies", "controller_name", "policy", "agent_url", "progress_url", "extra_priority_class"),
    }, "test_the_operator_gets_every_setting sets these"


def test_the_chart_says_what_it_is() -> None:
    (chart,) = parse((CHART / "Chart.yaml").read_text())
    assert chart.keys() >= {"apiVersion", "name", "version", "appVersion", "kubeVersion", "description", "type"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", chart["version"])
    files = sorted(ROOT.glob("*/pyproject.toml"))
    parts = [tomllib.loads(file.read_text())["project"] for file in files]
    members = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]["members"]
    assert len(parts) == len(members)
    versions = {part["version"] for part in parts} | {chart["version"], chart["appVersion"]}
    (cited,) = parse((ROOT / "CITATION.cff").read_text())
    versions |= {cited["version"], tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]}
    releases = re.findall(r"^## (?!Unreleased)(\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions == {releases[0]}, "one version for all that is released, and the CHANGELOG says what is in it"
    for file, part in zip(files, parts, strict=True):
        assert (file.parent / part["readme"]).read_text().startswith("# ")
        assert (file.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        siblings = [each for wanted in requirements(part) if (each := Requirement(wanted)).name.startswith("espalier-")]
        assert all(each.specifier == SpecifierSet(f"=={chart['version']}") for each in siblings), part["name"]


def requirements(part: dict[str, Any]) -> list[str]:
    return [
        *part["dependencies"],
        *(each for extra in part.get("optional-dependencies", {}).values() for each in extra),
    ]


def test_a_script_changes_the_version_everywhere(tmp_path: Path) -> None:
    (chart,) = parse((CHART / "Chart.yaml").read_text())
    projects = [ROOT / "pyproject.toml", *sorted(ROOT.glob("*/pyproject.toml"))]
    files = [ROOT / "CITATION.cff", CHART / "Chart.yaml", *projects]
    for file in (*files, ROOT / "hack" / "version"):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    subprocess.run([tmp_path / "hack" / "version", "7.8.9"], check=True, timeout=60)
    for file in files:
        text = (tmp_path / file.relative_to(ROOT)).read_text()
        old = re.escape(chart["version"])
        assert text == re.sub(
            rf"((?:^|appV|v)ersion(?: =|:) \"?|espalier-[^\"]*==){old}", r"\g<1>7.8.9", file.read_text()
        )
        assert "7.8.9" in text
