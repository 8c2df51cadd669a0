"""A dry run of a release: the wheels, in an empty environment, do what README promises of them without a clone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path

import pytest

from pages import commands

ROOT = Path(__file__).parents[3]
UV = shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
MEMBERS = ("agent", "cli", "core", "lab", "operator", "trainer")


def uv(*words: str | Path) -> str:
    done = subprocess.run([UV, *words, "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels, built as the release workflow builds them, and the locked versions of others."""
    folder = tmp_path_factory.mktemp("wheels")
    uv("build", "--all-packages", "--wheel", "--out-dir", folder)
    locked = ("--frozen", "--all-packages", "--all-extras", "--no-emit-workspace", "--no-hashes", "--no-annotate")
    uv("export", *locked, "--output-file", folder / "locked.txt")
    return folder


@pytest.fixture(scope="module")
def bin_folder(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment after `pip install espalier-cli[train]`."""
    environment = tmp_path_factory.mktemp("environment")
    uv("venv", "--python", sys.executable, environment)
    given = ("--find-links", wheels, "--constraint", wheels / "locked.txt", "--no-config")
    uv("pip", "install", "--python", environment, *given, "espalier-cli[train]")
    return environment / "bin"


def run(bin_folder: Path, folder: Path, *words: str) -> tuple[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment = kept | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_environments_are_found_with_nothing_but_the_wheels(wheels: Path, bin_folder: Path, tmp_path: Path) -> None:
    given = ("--find-links", wheels, "--constraint", wheels / "locked.txt", "--no-config")
    uv("pip", "install", "--python", bin_folder.parent, *given, "espalier-lab")
    page = (ROOT / "docs" / "reference" / "environments.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    for name in re.findall(r"^## (espalier/.*)$", page, re.M):
        assert ":espalier/Placement-v0" in program
        made = program.replace("espalier/Placement-v0", name) + "print(environment)"
        assert f"<{name}>" in run(bin_folder, tmp_path, "python", "-c", made)[0]


def test_a_wheel_says_what_it_is_and_holds_its_licence(wheels: Path) -> None:
    found = {path.name.split("-")[0].removeprefix("espalier_"): path for path in wheels.glob("*.whl")}
    assert sorted(found) == list(MEMBERS)
    for path in found.values():
        with zipfile.ZipFile(path) as wheel:
            (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            said = message_from_string(wheel.read(metadata).decode())
            licence = wheel.read(metadata.replace("METADATA", "licenses/LICENSE"))
        assert licence == (ROOT / "LICENSE").read_bytes()
        assert said["License-Expression"] == "Apache-2.0"
        assert said["Description-Content-Type"] == "text/markdown"
        assert said["Author"]
        assert {each.split(",")[0] for each in said.get_all("Project-URL", [])} >= {"Repository", "Documentation"}
        assert said.get_payload().lstrip().startswith("# ")
        for wanted in said.get_all("Requires-Dist", []):
            assert not wanted.startswith("espalier-") or f"=={said['Version']}" in wanted, wanted


def test_what_the_quickstart_types_without_a_clone_grows_two_models(bin_folder: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text().partition("\n## Without a clone\n")[2].partition("\n## ")[0]
    install, *typed = commands(page)
    assert install == 'pip install "espalier-cli[train]"'  # as the fixture does
    for command in typed:
        said = run(bin_folder, tmp_path, "bash", "-c", command)[1]
        if command.startswith("espalier init"):
            assert "espalier run job.yaml --simulate --gpus 1 --arrive 30%:1 --no-agent" in said
    for folder in ("runs/grown", "my-job/runs/mine"):
        result = json.loads((tmp_path / folder / "result.json").read_text())
        assert (result["phase"], result["depthAfter"] > result["depthBefore"]) == ("Complete", True)


@pytest.mark.parametrize("words", [("espalier",), ("kubectl-espalier",), ("python", "-m", "espalier_cli")])
def test_the_command_has_these_names(bin_folder: Path, tmp_path: Path, words: Sequence[str]) -> None:
    assert "explain" in run(bin_folder, tmp_path, *words, "--help")[0]
