"""The examples that do not use the library, as a person runs them on a laptop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUGGING_FACE = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs, labels):
        return {"loss": nn.functional.cross_entropy(self.linear(inputs), labels)}

rows = [{"inputs": torch.randn(4), "labels": index % 3} for index in range(30)]
arguments = TrainingArguments("out", max_steps=20, logging_steps=5, use_cpu=True, save_strategy="no", disable_tqdm=True)
Trainer(Net(), arguments, train_dataset=rows).train()
"""
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


def test_a_script_with_the_trainer_of_hugging_face_reports_by_itself(espalier: Start, tmp_path: Path) -> None:
    """It knows nothing of Espalier, and the job names no pattern."""
    (tmp_path / "train.py").write_text(HUGGING_FACE)
    container = {"command": ["python", str(tmp_path / "train.py")], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"timeBudgetSeconds": 120, "program": {}, "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": "hf"},
        "spec": spec,
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    code, stdout, stderr = espalier(
        "run", tmp_path / "job.yaml", "--gpus", "1", "--output", tmp_path / "out", "--json"
    ).finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert (result["reason"], result["done"]) == ("Completed", 1.0)
    figures = {entry["name"]: entry["value"] for entry in result["metrics"]}
    assert 0 < figures["train_loss"] < 3
    assert figures["remaining_seconds"] == 0
