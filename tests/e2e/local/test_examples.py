"""What the first lines of an example promise of its job comes true when the command below them is typed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
ELSEWHERE = {
    "cifar8.yaml": "its images are not there; test_benchmarks.py trains on as many of its own",
    "digits.yaml": "test_docs_blocks.py",
    "gpt.yaml": "test_front_page.py",
    "own_script/growing.yaml": "test_own_trials.py",
    "program-pytorch.yaml": "test_programs.py",
    "program-shell.yaml": "test_programs.py",
}
SECONDS = "8"
"""A budget that is long enough to grow twice, in place of that of the example."""


def trained_together(result: dict[str, Any]) -> bool:
    joined = [each for each in result["allocations"] if each["acknowledgedAfterSeconds"] is not None]
    return bool(joined[-1]["allocation"]["replicas"] == 2)


PROMISES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "trains with the first one": trained_together,
    "one more while it is spare": trained_together,
    "grows into it": lambda result: result["depthAfter"] > result["depthBefore"],
    "deepen the first growth point": lambda result: result["adaptations"][0]["action"] == "Deepen(0)",
}


def typed(example: Path) -> list[str]:
    return re.findall(r"^# .*?\bespalier (run .*)", example.read_text(), re.M)


RUN = sorted({str(each.relative_to(EXAMPLES)) for each in EXAMPLES.rglob("*.yaml") if typed(each)} - ELSEWHERE.keys())


@pytest.mark.parametrize("name", RUN)
def test_the_promise(name: str, espalier: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES / name).read_text()
    (command,) = typed(EXAMPLES / name)
    copy = tmp_path / "examples"  # scripts may write where they are run
    shutil.copytree(EXAMPLES, copy)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    monkeypatch.chdir(tmp_path if "examples/" in command else (copy / name).parent)
    code, stdout, stderr = espalier(
        *shlex.split(command), "--time-budget", SECONDS, "--output", tmp_path / "out", "--json"
    ).finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["phase"] == "Complete"
    promised = {said: comes_true for said, comes_true in PROMISES.items() if said in text}
    assert promised, f"{name} promises nothing that is known here"
    for said, comes_true in promised.items():
        assert comes_true(result), f"{said}: {stderr}"
