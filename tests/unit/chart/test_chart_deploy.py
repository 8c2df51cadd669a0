"""`deploy/` is the chart without Helm: it is as hack/deploy writes it, and nothing that matters is lost on the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from charts import ROOT, Helm, Raw, find_helm, of, one, parse

LEFT_OUT = {
    ("CustomResourceDefinition", "adaptivetrainingjobs.espalier.dev"),
    ("CustomResourceDefinition", "queues.espalier.dev"),
    ("NetworkPolicy", "espalier-agent"),
    ("NetworkPolicy", "espalier-operator"),
    ("Pod", "espalier-test"),
}
OF_HELM = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run hack/deploy of the project in `root`."""
    command = [sys.executable, str(root / "hack" / "deploy"), *options]
    environment = {**os.environ, "HELM": str(find_helm())}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture
def copy(helm: Helm, tmp_path: Path) -> Path:
    """Give a copy of what it reads and writes."""
    for folder in ("charts", "deploy"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "hack").mkdir()
    for name in ("deploy", "getting.bash", "gotool", "helm"):
        shutil.copy(ROOT / "hack" / name, tmp_path / "hack" / name)
    return tmp_path


def test_written_again_it_is_the_same(helm: Helm) -> None:
    """Else: hack/deploy."""
    result = run(ROOT, "--check")
    assert (result.returncode, result.stderr) == (0, "")


def test_what_is_stale_is_seen_and_made_good(copy: Path) -> None:
    assert run(copy, "--check").returncode == 0
    template = copy / "charts" / "espalier" / "templates" / "agent.yaml"
    template.write_text(template.read_text().replace("PeriodSeconds: 10", "PeriodSeconds: 11"))
    (copy / "deploy" / "50-more.yaml").write_text("kind: Pod\n")
    found = run(copy, "--check")
    assert found.returncode == 1
    assert found.stderr.splitlines() == [
        "deploy/30-agent.yaml",
        "deploy/50-more.yaml",
        "hint: hack/deploy updates them",
    ]
    assert run(copy).returncode == 0
    assert run(copy, "--check").returncode == 0
    assert "terminationGracePeriodSeconds: 11" in (copy / "deploy" / "30-agent.yaml").read_text()
    assert not (copy / "deploy" / "50-more.yaml").exists()


def test_a_template_that_is_in_no_file_is_an_error(copy: Path) -> None:
    (copy / "charts" / "espalier" / "templates" / "new.yaml").write_text("kind: Pod\nmetadata: {name: new}\n")
    result = run(copy)
    assert result.returncode == 2
    assert "error: new.yaml is in no file of deploy/: add it to FILES in hack/deploy" in result.stderr


def test_what_helm_says_of_the_chart_is_reported(copy: Path) -> None:
    (copy / "charts" / "espalier" / "templates" / "new.yaml").write_text("{{ broken")
    result = run(copy)
    assert result.returncode == 2
    assert "parse error" in result.stderr


def without_helm(found: object) -> object:
    """Return an object without the labels that only releases have."""
    if isinstance(found, dict):
        return {key: without_helm(value) for key, value in found.items() if key not in OF_HELM}
    return [without_helm(each) for each in found] if isinstance(found, list) else found


def test_it_is_the_default_but_for_what_is_left_out(helm: Helm) -> None:
    files = [list(parse(file.read_text())) for file in sorted((ROOT / "deploy").glob("*.yaml"))]
    deployed: list[Raw] = [each for file in files for each in file]
    (namespace,) = of(deployed, "Namespace")
    assert deployed.pop(0) is namespace, "it comes first"
    rendered = helm.render()
    keys = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    assert {(each["kind"], each["metadata"]["name"]) for each in deployed} == keys - LEFT_OUT
    assert keys > LEFT_OUT
    for each in deployed:
        assert each == without_helm(one(rendered, each["kind"], each["metadata"]["name"]))
