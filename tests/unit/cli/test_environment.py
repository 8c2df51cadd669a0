"""`espalier doctor` and `espalier completion`; JSON of the commands that have no other data."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_core.console import output_file
from espalier_generate.pages import commands


def test_doctor_names_versions_and_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)
    assert found["espalier-cli"] == importlib.metadata.version("espalier-cli")
    assert found["kubeconfig"].startswith("none: no kubeconfig")
    assert "espalier-core  " in CliRunner().invoke(cli, ["doctor"]).stdout


def test_doctor_finds_distributions_of_several_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9" if name == "espalier-lab" else known(name))
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 1
    assert "have several versions" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_of_this_command(shell: str) -> None:
    said = CliRunner().invoke(cli, ["completion", shell]).stdout
    assert f"_ESPALIER_COMPLETE={shell}_complete" in said
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=said, text=True, check=True, timeout=20)


def test_kubectl_completes_commands_options_and_policies() -> None:
    def completed(*words: str) -> list[str]:
        command = Path(sys.executable).with_name("kubectl_complete-espalier")
        return subprocess.check_output([command, *words], text=True, timeout=60).splitlines()

    *found, directive = completed("su")
    assert [line.partition("\t")[0] for line in found] == ["submit", "suspend"]
    assert directive == ":4"
    assert completed("plan", "--policy", "goo") == ["goodput\t", ":4"]
    assert completed("validate", "")[-1] == ":0"  # files


def test_validate_prints_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Nothing\n")
    done = CliRunner().invoke(cli, ["validate", "example:digits", str(tmp_path / "a.yaml"), "--json"])
    assert done.exit_code == 2
    (first, *_) = json.loads(done.stdout)
    assert first.keys() == {"file", "line", "field", "message"}
    assert json.loads(CliRunner().invoke(cli, ["validate", "example:digits", "--json"]).stdout) == []


def test_compare_prints_json(finished_run: Callable[..., Path]) -> None:
    done = CliRunner().invoke(cli, ["compare", str(finished_run("a")), str(finished_run("b", 0.9)), "--json"])
    found = json.loads(done.stdout)
    assert [run["run"] for run in found["runs"]] == ["a", "b"]
    assert found["verdict"].startswith("b has 0.0900 more accuracy than a")


def test_the_letter_o_has_one_meaning_and_every_table_is_json_too() -> None:
    for context in commands():
        options = [each for each in context.command.params if isinstance(each, click.Option)]
        lettered = [each for each in options if "-o" in each.opts and not each.hidden]
        assert all(isinstance(each.type, click.Choice) for each in lettered), context.command_path
        assert not lettered or any("--json" in each.opts for each in options), context.command_path


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_a_file_by_the_old_letter_is_taken_with_a_warning(option: str, tmp_path: Path) -> None:
    @click.command()
    @output_file("A file.", click.Path(path_type=Path))
    def written(output: Path) -> None:
        click.echo(output)

    done = CliRunner().invoke(written, [option, "f"])
    assert (done.exit_code, done.stdout) == (0, "f\n")
    assert ("use --output" in done.stderr) == (option == "-o")
    assert "Missing option '--output'" in CliRunner().invoke(written, []).stderr
