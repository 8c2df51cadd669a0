"""The command line as it is installed without the extra `train`: what a cluster needs, and a sentence for the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLUSTER = ("explain", "list", "top", "watch", "snapshot", "plan", "compare")


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs of an environment with what the lock file has for espalier-cli alone."""
    folder = tmp_path_factory.mktemp("environment")
    uv = shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
    sync = [uv, "sync", "--quiet", "--locked", "--package", "espalier-cli", "--no-default-groups"]
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": str(folder), "UV_PYTHON": sys.executable}
    done = subprocess.run(sync, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_the_commands_for_a_cluster_need_no_torch(bin_folder: Path) -> None:
    for module in ("torch", "espalier_trainer", "espalier_agent", "espalier_lab"):
        found = subprocess.run([bin_folder / "python", "-c", f"import {module}"], capture_output=True)
        assert found.returncode == 1, f"{module} is installed"
    for arguments in (["--help"], ["validate", "examples/digits.yaml"], *([each, "--help"] for each in CLUSTER)):
        subprocess.run([bin_folder / "espalier", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "examples/digits.yaml"),
        ("validate", "--deep", "examples/digits.yaml"),
        ("points", "--model", "torchvision.models:resnet18"),
        ("export", "runs"),
        ("agent", "learn"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_trains_names_what_installs_it(bin_folder: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([bin_folder / "espalier", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "which is not installed\nhint: pip install 'espalier-cli[train]'" in done.stderr
    assert "Traceback" not in done.stderr
