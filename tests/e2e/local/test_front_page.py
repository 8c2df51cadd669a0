"""What README and docs/train.md promise of the language model is what their command does."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pages import commands

ROOT = Path(__file__).parents[3]


@pytest.mark.quiet
def test_the_language_model_grows_and_ends_better_than_without(
    espalier: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at the same time, so that the load of the machine is the same for both.

    Beside other tests both make a third of their steps, which are too few for more blocks to pay.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    typed = {
        line
        for name in ("README.md", "docs/train.md")
        for line in commands((ROOT / name).read_text())
        if "gpt.yaml" in line
    }
    (command,) = typed  # the same on both pages
    arguments = shlex.split(command)[1:]
    grown = espalier(*arguments, "--output", tmp_path / "grown", "--json")
    control = espalier(*arguments, "--adaptation", "Off", "--output", tmp_path / "control", "--json")
    ended = [run.finish(420) for run in (grown, control)]
    assert [code for code, _, _ in ended] == [0, 0], ended
    grew, stayed = (json.loads(stdout) for _, stdout, _ in ended)
    assert grew["depthAfter"] > grew["depthBefore"], ended[0][2]
    assert stayed["depthAfter"] == stayed["depthBefore"] == grew["depthBefore"]
    assert grew["testScore"]["measure"] == "bits_per_character"
    assert grew["testScore"]["value"] < stayed["testScore"]["value"]
