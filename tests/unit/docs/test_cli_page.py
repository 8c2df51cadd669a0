"""The reference of commands is what their help says, and each of them is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier_cli.main import cli
from espalier_cli.reference import BEGIN, END, renewed

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_reference_is_the_commands_own_help() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), (
        "docs/cli.md is stale; renew it: .venv/bin/python -m espalier_cli.reference docs/cli.md"
    )


def test_every_command_is_in_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in cli.commands | {"run": None, "agent serve": None, "list": None, "watch": None, "plan": None}:
        assert f"### `espalier {name}`" in page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        renewed(f"# A page\n{BEGIN}\n")
    assert renewed(f"a\n{BEGIN}\nold\n{END}\nb").startswith(f"a\n{BEGIN}\n\n### `espalier ")
