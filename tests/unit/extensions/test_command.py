"""Commands of a user's package are commands of `espalier`; none replaces a command that is there."""

from __future__ import annotations

import subprocess
import sys

import pytest


def espalier(*arguments: str) -> str:
    command = [sys.executable, "-c", "from espalier_cli.main import main; main()", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("arguments", [("greet",), ("agent", "greet")])
def test_a_command_of_another_package_is_run(arguments: tuple[str, ...]) -> None:
    assert espalier(*arguments) == "hello\n"


def test_help_lists_it_and_a_command_that_is_there_stays() -> None:
    assert "greet" in espalier("--help")
    assert "Train the jobs of FILES" in espalier("run", "--help")
    assert "Print every problem in FILES" in espalier("validate", "--help")
