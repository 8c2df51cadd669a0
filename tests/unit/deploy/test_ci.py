"""The workflow for pull requests: it runs what .ci/run runs, with least rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
LOADED: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())
JOB: dict[str, Any] = LOADED["jobs"]["ci"]


def parts(text: str) -> set[str]:
    """Return the targets of make and the scripts of hack/ that a text runs; comments do not count."""
    text = re.sub(r"(\S+/)\{([\w,-]+)\}", lambda m: " ".join(m[1] + name for name in m[2].split(",")), text)
    return set(re.findall(r"make [a-z0-9-]+|hack/(?!cluster)[a-z-]+", re.sub(r"(^|\s)#.*", "", text, flags=re.M)))


def test_it_runs_what_the_gate_runs() -> None:
    commands = [part["commands"] for part in JOB["strategy"]["matrix"]["include"]]
    commands += [step.get("run", "") for step in JOB["steps"]]
    assert parts("\n".join(commands)) == parts((ROOT / ".ci" / "run").read_text())


def test_it_hashes_as_the_gate_does_and_has_as_many_nodes() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    for name, value in LOADED["env"].items():
        assert re.search(rf"\b{name}={value}\b", gate), name


def test_it_may_only_read_and_gives_way_to_newer_commits() -> None:
    assert LOADED["permissions"] == {"contents": "read"}
    assert "permissions" not in JOB
    assert LOADED["concurrency"]["cancel-in-progress"]
    for step in JOB["steps"]:
        assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
        assert "secrets." not in step.get("run", "")
