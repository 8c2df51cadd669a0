"""The help of `espalier`: whole summaries in sections, and one meaning for exit codes and letters."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from espalier_cli.main import _ELSEWHERE, _SECTIONS, cli
from espalier_core.console import LazyGroup
from espalier_core.registry import RegistryError


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
