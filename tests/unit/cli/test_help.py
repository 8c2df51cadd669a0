"""What the commands say of themselves: help, ranges of options, examples by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from espalier_cli.main import _ELSEWHERE, _SECTIONS, cli
from espalier_cli.starting import EXAMPLES
from espalier_core.console import LazyGroup, RealRange
from espalier_core.registry import RegistryError
from espalier_generate.pages import commands


@pytest.mark.parametrize("words", [(), ("agent",), ("policies",)])
def test_no_summary_is_cut(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80)
    assert shown.exit_code == 0
    assert "..." not in shown.output.partition("COMMAND [ARGS]...")[2]


def test_every_command_has_its_section() -> None:
    named = [name for names in _SECTIONS.values() for name in names]
    assert sorted(named) == sorted({*named})
    assert {*named} >= {*_ELSEWHERE, *cli.commands}


def test_a_command_that_is_misspelled_is_answered_with_the_nearest() -> None:
    done = CliRunner().invoke(cli, ["explian", "job"])
    assert done.exit_code == 2
    assert "No such command 'explian'; did you mean explain?" in done.stderr


def test_a_command_of_another_package_that_cannot_be_loaded_leaves_the_help_of_the_others() -> None:
    group = LazyGroup("g", elsewhere={"broken": "espalier_cli.errors:Missing", "init": "espalier_cli.starting:init"})
    shown = CliRunner().invoke(group, ["--help"]).output
    assert "Write a job file" in shown
    assert "broken" in shown
    with pytest.raises(RegistryError):
        CliRunner().invoke(group, ["broken"], catch_exceptions=False)


REALS = [
    pytest.param(option.type, id=f"{context.command_path} {option.opts[0]}")
    for context in commands()
    for option in context.command.params
    if isinstance(option.type, click.FloatRange)
]


def test_there_are_options_with_a_range_of_numbers() -> None:
    assert len(REALS) >= 10


@pytest.mark.parametrize("accepted", REALS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN", "1e999"])
def test_no_option_accepts_what_is_not_a_finite_number(accepted: click.FloatRange, value: str) -> None:
    with pytest.raises(click.BadParameter):
        accepted.convert(value, None, None)


def test_the_message_names_the_value() -> None:
    with pytest.raises(click.BadParameter, match="inf is not a finite number"):
        RealRange(min=0).convert("inf", None, None)


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
