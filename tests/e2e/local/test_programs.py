"""The examples that do not use the library, as a person runs them on a laptop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"
Start = Callable[..., Any]


def test_a_pytorch_script_that_knows_nothing_of_espalier(
    espalier: Start, tmp_path: Path, alive: Callable[[Path], list[int]]
) -> None:
    out = tmp_path / "out"
    run = espalier("run", EXAMPLES / "program-pytorch.yaml", "--output", out, "--json", "--simulate")
    code, stdout, stderr = run.finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert (result["phase"], result["reason"], result["steps"], result["done"]) == ("Complete", "Completed", 800, 1.0)
    figures = {entry["name"]: entry["value"] for entry in result["metrics"]}
    assert figures["accuracy"] > 0.9
    assert " % done, loss " in stderr
    assert alive(out) == []


def test_a_shell_script_is_interrupted_and_resumes(
    espalier: Start,
    tmp_path: Path,
    eventually: Callable[..., Any],
    events_of: Callable[..., list[dict[str, Any]]],
    alive: Callable[[Path], list[int]],
) -> None:
    out = tmp_path / "out"
    command = ("run", EXAMPLES / "program-shell.yaml", "--output", out, "--json")
    run = espalier(*command)
    eventually(lambda: events_of(out, "ProgressRead"), what="progress")
    run.process.send_signal(signal.SIGINT)
    assert run.finish()[0] == 130
    reached = events_of(out, "ProgressRead")[-1]["step"]
    assert alive(out) == []
    code, stdout, stderr = espalier(*command).finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert (result["reason"], result["steps"], result["done"]) == ("Completed", 20, 1.0)
    log = (out / "trainer.log").read_text().splitlines()
    begun = [int(line.removeprefix("starting after step ")) for line in log if line.startswith("starting")]
    assert begun[0] == 0
    assert begun[1] >= reached > 0
