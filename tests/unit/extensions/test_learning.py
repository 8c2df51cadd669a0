"""A learner and an encoder of a user's package: learnt with by the command, saved, and served again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from espalier_agent.policies.files import load_policy


def learn(*arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "espalier_agent", "learn", "--outcomes", "digits", "--output", str(output)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "encoder"),
    [
        (["--learner", "random-search"], "graph"),
        (["--learner", "random-search", "--encoder", "edgeless"], "edgeless"),
        (["--learner", "expected", "--encoder", "edgeless", "--set", "updates=5"], "edgeless"),
    ],
)
def test_a_policy_is_learnt_and_read_again(arguments: list[str], encoder: str, tmp_path: Path) -> None:
    done = learn(*arguments, output=tmp_path / "policy")
    assert done.returncode == 0, done.stderr
    policy = load_policy(tmp_path / "policy")
    assert policy.network.config.encoder == encoder


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    done = learn("--learner", "gradient-free", output=tmp_path / "policy")
    assert done.returncode == 2
    assert "gradient-free" in done.stderr
    assert "random-search" in done.stderr
