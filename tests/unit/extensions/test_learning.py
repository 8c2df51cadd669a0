"""A learner and an encoder of a user's package: learnt with by the command, saved, and served again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espalier_agent.policies.policy import load_policy

LEARNT = {
    "learner": ["--learner", "random-search"],
    "both": ["--learner", "random-search", "--encoder", "edgeless"],
    "encoder": ["--learner", "expected", "--encoder", "edgeless", "--set", "updates=5"],
    "neither": ["--learner", "gradient-free"],
}
SCRIPT = """
import json, sys
from click.testing import CliRunner
from espalier_agent.commands.agent import agent
for name, words in json.loads(sys.argv[1]).items():
    ended = CliRunner().invoke(agent, ["learn", "--outcomes", "digits", "--output", name, *words])
    print(json.dumps([name, ended.exit_code, ended.output]))
"""
"""In one process, which has imported the commands with the package on its path: they offer what is installed then."""


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str, Path]]:
    """Return what came of a command of `LEARNT`: its exit code, its output, and the folder of the policy."""
    folder, site = tmp_path_factory.mktemp("policies"), Path(__file__).parent / "site"
    command = [sys.executable, "-c", SCRIPT, json.dumps(LEARNT)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    return lambda name: (*found[name], folder / name)


@pytest.mark.parametrize(("name", "encoder"), [("learner", "graph"), ("both", "edgeless"), ("encoder", "edgeless")])
def test_a_policy_is_learnt_and_read_again(learnt: Any, name: str, encoder: str) -> None:
    code, output, folder = learnt(name)
    assert code == 0, output
    assert load_policy(folder).network.config.encoder == encoder


def test_unknown_names_are_answered_with_the_known_ones(learnt: Any) -> None:
    code, output, _ = learnt("neither")
    assert code == 2
    assert "gradient-free" in output
    assert "random-search" in output
