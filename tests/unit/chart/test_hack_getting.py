"""The scripts in hack/ that find tools or get them: their arguments, and what they say where there is nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from charts import ROOT

SCRIPTS = ("envtest", "helm", "kwok", "monitoring-crds", "prometheus")
BARE_PATH = "/usr/bin:/bin"
FOUND_BY = {"HELM", "KWOK", "KUBEBUILDER_ASSETS", "MONITORING_CRDS"}


def run(name: str, home: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script where nothing was got yet, and the PATH has only what every system has."""
    kept = {key: value for key, value in os.environ.items() if key not in FOUND_BY and not key.startswith("XDG_")}
    environment = {**kept, "HOME": str(home), "PATH": BARE_PATH, **environment}
    command = [str(ROOT / "hack" / name), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_says_what_it_does(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path, "-h")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{name} " in result.stdout.splitlines()[0]
    assert "Looks, in this order" in result.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_argument_that_it_does_not_know(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path, "--their")
    assert (result.returncode, result.stdout) == (2, "")
    assert "error: unknown argument --their" in result.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_where_nothing_is_there_it_says_so_at_once(tmp_path: Path, name: str) -> None:
    if shutil.which(name, path=BARE_PATH):
        pytest.skip(f"this system has {name} installed")
    result = run(name, tmp_path, "--there")
    assert (result.returncode, result.stdout) == (1, "")
    assert "error: no " in result.stderr
    assert "hint: " in result.stderr
    assert not list(tmp_path.iterdir()), "nothing was got"


def test_definitions_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    names = [f"monitoring.coreos.com_{kind}.yaml" for kind in ("servicemonitors", "podmonitors", "prometheusrules")]
    for name in names[:2]:
        (own / name).write_text("kind: CustomResourceDefinition\n")
    result = run("monitoring-crds", tmp_path, "--there", MONITORING_CRDS=str(own))
    assert result.returncode == 1
    assert f"MONITORING_CRDS={own} lacks" in result.stderr
    (own / names[2]).write_text("kind: CustomResourceDefinition\n")
    result = run("monitoring-crds", tmp_path, "--there", MONITORING_CRDS=str(own))
    assert (result.returncode, result.stdout) == (0, f"{own}\n")
