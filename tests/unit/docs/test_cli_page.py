"""The reference of commands is what their help says, and each of them is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from espalier_cli.main import cli
from espalier_generate.pages import BEGIN, END, renewed

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
RENEW = "make docs"
GENERATORS = os.environ | {"PYTHONPATH": "hack"}


def test_the_reference_is_the_commands_own_help() -> None:
    # In a process of its own: click remembers in a command how it was first asked for help.
    command = [sys.executable, "-m", "espalier_generate.pages", "commands"]
    done = subprocess.run(command, env=GENERATORS, capture_output=True, text=True, check=True, timeout=250)
    made = done.stdout.removesuffix("\n")
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, made), f"docs/reference/cli.md is stale; renew it: {RENEW}"


def test_every_command_is_in_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in {
        *cli.commands,
        "run",
        "agent serve",
        "agent collect",
        "list",
        "explain",
        "top",
        "watch",
        "snapshot",
        "plan",
    }:
        assert f"### `espalier {name}`" in page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        renewed(f"# A page\n{BEGIN}\n", "")
    assert renewed(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"


def test_its_python_block_plans_a_snapshot(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "cluster.json").write_text('{"version": 1, "kind": "Snapshot", "taken_at": 0}')
    ended = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    empty = "Plan(actions=(), refusals={}, placements={}, policy_memory={}, ignored=(), wake_at=None)"
    assert ended.stdout == f"{empty}\n", ended.stderr
