"""Where a model can grow, and why a run did not."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_cli.run_command import why_not_grown
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Arm
from espalier_core.types.result import AllocationRecord, RunResult
from espalier_core.validation.reading import parse_jobs
from operator_world.kube_objects import adaptation

NETS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    def forward(self, x):
        return x + self.mlp(self.norm(x))

class Post(Block):
    def forward(self, x):
        return self.norm(x + self.mlp(x))

def net(kind="Block"):
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(globals()[kind]() for _ in range(2))), nn.Linear(8, 3))

def carried():
    model = net()
    model.example_input = batch()
    return model

def batch():
    return torch.ones(2, 4)
"""


@pytest.fixture(autouse=True)
def _nets(tmp_path, monkeypatch):
    (tmp_path / "points_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("points_nets", None)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["points", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_points_groups_and_refusals_as_json():
    code, out, _ = run("--model", "points_nets:net", "--example", "points_nets:batch", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["model"], found["depth"]) == ("points_nets:net", 6)
    block, *layers = found["points"]
    assert (block["operation"], block["id"], block["kind"]) == ("AddBlock", "1.0", "Block")
    assert (block["depth"], block["parameters"], block["layer"]) == (2, 228, "1.1.add")
    assert block["insertions"] == ["Exact", "Scaled", "Unfold"]
    assert block["exact"] == ["Exact", "Unfold"]
    assert isinstance(block["stepSeconds"], float)
    assert [(one["operation"], one["id"], one["parameters"]) for one in layers] == [
        ("Deepen", "1.0.mlp.0", 156),
        ("Deepen", "1.1.mlp.0", 156),
    ]
    groups = {group["id"]: (group["width"], group["parameters"]) for group in found["groups"]}
    assert groups["1.0.mlp.0"] == (12, 12 * 9 + 12 * 8)
    for one in found["refused"]:
        assert one["reason"]
        assert one["remedy"]
        assert Path(one["file"]).is_file()
        assert one["line"] > 0


def test_a_refused_block_names_file_line_and_remedy():
    code, out, _ = run(
        "--model", "points_nets:net", "--options", '{"kind": "Post"}', "--example", "points_nets:batch", "--pairs", "0"
    )
    assert code == 0
    line = next(text for text in out.splitlines() if text.startswith("AddBlock refused: 1.0: "))
    number = NETS.splitlines().index("        return self.norm(x + self.mlp(x))")
    assert "post-norm" in line
    assert line.endswith(f"points_nets.py:{number})")
    assert "insertion: Scaled" in out


def test_the_example_may_be_the_models_own():
    code, out, _ = run("--model", "points_nets:carried", "--pairs", "0", "--json")
    assert code == 0
    assert json.loads(out)["stepSeconds"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "points_nets:net"], "no example input: name a function that returns one with --example"),
        (["--model", ":"], "--model: ':' is not PACKAGE.MODULE:FUNCTION"),
        (["--model", "points_nets"], "--model: 'points_nets' is not PACKAGE.MODULE:FUNCTION"),
        (["--model", ".nets:net"], "--model: '.nets:net' is not PACKAGE.MODULE:FUNCTION"),
        (["--model", "points_nets:nett"], "points_nets has no function 'nett'; it has"),
        (["--model", "nowhere:net"], "cannot import 'nowhere'"),
        (["--model", "points_nets:net", "--options", "[1]"], "is not a JSON object"),
        (["--model", "points_nets:net", "--options", "{"], "is not JSON"),
        (["--model", "points_nets:batch", "--example", "points_nets:batch"], "returned Tensor, not a torch.nn.Module"),
        (["--model", "points_nets:net", "--example", "points_nets:net"], "a batch"),
    ],
)
def test_what_cannot_be_used_is_reported(arguments, said):
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(mode: str = "Auto", replicas: int = 2) -> Any:
    text = (
        "apiVersion: espalier.dev/v1alpha1\nkind: AdaptiveTrainingJob\nmetadata: {name: one}\n"
        f'spec: {{timeBudgetSeconds: 9, maxReplicas: {replicas}, adaptation: {{mode: "{mode}"}}}}\n'
    )
    return parse_jobs(text, "job.yaml")[0]


def result(*adaptations: Adaptation, replicas: int = 2, **values: Any) -> RunResult:
    lent = AllocationRecord(time=NOW, used_seconds=1, allocation=Allocation(generation=2, replicas=replicas, gpus=1))
    told = {"job": "default/one", "seed": 0, "phase": "Complete", "reason": "BudgetExhausted", "time_budget_seconds": 9}
    told |= {"used_seconds": 9, "depth_before": 4, "depth_after": 4, "allocations": (lent,)}
    return RunResult(**(told | values), adaptations=adaptations)


def declined(**values: Any) -> Adaptation:
    """What the agent advised against, but for these values."""
    advised = {"action": "Nothing", "policy": "default@1", "result": AdaptationResult.DECLINED, "probabilities": {}}
    return adaptation(**advised | values)


TRIED = declined(message="validation loss when tried: ...", arms=(Arm(action="Nothing", loss=1.0),))
FAILED = adaptation(result=AdaptationResult.FAILED, message="no room")
NO_AGENT = declined(source=AdaptationSource.FALLBACK, policy="None")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (result(declined(), declined()), "default@1 advised 2 times against it; adaptation.trials: Race tries it"),
        (result(TRIED), "tried once, no growth was better (validation loss when tried: ...)"),
        (result(FAILED), "Deepen(a) failed: no room"),
        (result(NO_AGENT), "no agent answered, and the fallback None advised Nothing"),
        (result(replicas=1), "no extra GPU was lent to it (minReplicas 1, maxReplicas 2)"),
        (result(), "it ended before the agent answered"),
        (result(cannot_grow="its layers are tied"), "its layers are tied"),
        (result(not_tried="its trial was given up"), "its trial was given up"),
    ],
)
def test_a_run_that_did_not_grow_says_why(found: RunResult, says: str) -> None:
    assert why_not_grown(found, job()).startswith(f"it did not grow: {says}")


def test_a_run_that_can_be_lent_nothing_is_not_told_to_wait_for_gpus() -> None:
    assert "(maxReplicas 1); raise maxReplicas" in why_not_grown(result(replicas=1), job(replicas=1))


def test_a_run_that_grew_or_did_not_ask_for_it_says_nothing() -> None:
    assert why_not_grown(result(adaptation(), declined()), job()) == ""
    assert why_not_grown(result(declined()), job("Off")) == ""
    assert why_not_grown(result(phase="Failed"), job()) == ""
    assert "adaptation.mode is DryRun" in why_not_grown(result(declined()), job("DryRun"))
