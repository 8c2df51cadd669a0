"""Examples that the package carries, and the job that `espalier init` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_cli.starting import EXAMPLES

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_examples_go_by_name() -> None:
    assert {"digits", "gpt"} <= set(NAMES)
    done = CliRunner().invoke(cli, ["validate", *(f"example:{name}" for name in NAMES)])
    assert (done.exit_code, done.stdout) == (0, "")


@pytest.mark.parametrize("command", ["validate", "run"])
def test_an_unknown_example_names_those_that_there_are(command: str) -> None:
    done = CliRunner().invoke(cli, [command, "example:digit"])
    assert done.exit_code == 2
    assert f"example:digit: no such example; there are example:{NAMES[0]}, " in done.stderr


def test_a_file_of_that_name_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example:digits").write_text("a: 1\n")
    assert "example:digits:1: kind" in CliRunner().invoke(cli, ["validate", "example:digits"]).stdout


def test_init_writes_a_job_that_is_valid_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(cli, ["init", "my job"])
    assert (made.exit_code, made.stdout) == (0, "my job/job.yaml\nmy job/model.py\n")
    assert "cd 'my job' && espalier run job.yaml " in made.stderr
    assert CliRunner().invoke(cli, ["validate", "my job/job.yaml"]).exit_code == 0

    Path("my job/model.py").write_text("mine")
    Path("my job/job.yaml").unlink()
    again = CliRunner().invoke(cli, ["init", "my job"])
    assert again.exit_code == 2
    assert "error: my job/model.py: File exists\nhint: name another folder" in again.stderr
    assert Path("my job/model.py").read_text() == "mine"
    assert CliRunner().invoke(cli, ["init", "my job/model.py"]).exit_code == 2


def test_python_runs_the_package() -> None:
    done = subprocess.run([sys.executable, "-m", "espalier_cli", "--help"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Usage: espalier [OPTIONS] COMMAND")
