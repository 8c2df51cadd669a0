"""Tables with widenings, really collected from the digits net with budgets of a fraction of a second."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from collecting import WIDENING_COST, job_with, setting
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.expected import ExpectedConfig, learn
from espalier_agent.tables.tree import decision_tree, read_playable
from espalier_cli.main import cli
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import deepened
from espalier_core.growth.widen import widened
from espalier_core.types.advice import Action
from espalier_lab.growth.collect.cost import parse_cost
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose
from espalier_lab.growth.collect.training import CollectError, train
from espalier_trainer.models.zoo import digits
from espalier_trainer.net2net.description import describe

GROUPS = ("block0.0", "block1.0", "block2.0")


def described() -> Architecture:
    return describe(digits(), torch.randn(2, 1, 8, 8), operations=["Widen"])


def test_the_command_writes_a_table_that_policies_learn_from(tmp_path: Path) -> None:
    job, output = tmp_path / "job.json", tmp_path / "digits.json"
    job.write_text(json.dumps(job_with("Deepen", "Widen", budget=0.15).to_json()))
    given = ["--start-at", "20%", "--decisions", "1", "--step-cost", WIDENING_COST, "--output", str(output)]
    done = CliRunner().invoke(cli, ["agent", "collect", str(job), *given])
    assert done.exit_code == 0, done.output
    table = read_playable(output)
    assert table.actions[3:] == (*(f"widen {group}" for group in GROUPS), "do nothing")
    assert [outcome.actions for outcome in table.sequences] == list(itertools.product(range(7), repeat=1))
    assert len({outcome.accuracy for outcome in table.sequences}) > 1
    assert [control.name for control in table.controls or ()][2:] == [f"scratch block{place}" for place in range(3)]
    assert decision_tree(table).actions[3] == Action.widen("block0.0")
    policy = learn([table], config=ExpectedConfig(updates=60))
    assert policy.network.config.widening
    assert evaluate(policy, [table]).tables[0].regret <= 0.05
    # A job that only deepens has the table that it had.
    assert [str(action) for action in setting(job_with("Deepen"), decisions=1, step_cost="2,1,1,1").actions] == [
        *(f"Deepen(block{place})" for place in range(3)),
        "Nothing",
    ]


def test_a_step_costs_more_for_each_channel() -> None:
    groups = described().channel_groups
    cost = parse_cost(WIDENING_COST, ("block0", "block1", "block2"), groups)
    assert cost.doubled == (("block0.0", 6, 0.0003), ("block1.0", 8, 0.0002), ("block2.0", 8, 0.0001))
    assert cost(described()) == pytest.approx(0.002)
    assert cost(widened(described(), "block0.0", 12)) == pytest.approx(0.0023)
    assert cost(widened(described(), "block0.0", 24)) == pytest.approx(0.0029)
    assert cost(deepened(widened(described(), "block1.0", 12), "block0")) == pytest.approx(0.0027)
    assert str(cost).endswith("for channels doubled block0.0 0.300 ms, block1.0 0.200 ms, block2.0 0.100 ms")
    with pytest.raises(
        Exception, match="4 numbers; write 7 numbers of ms: .* then what twice the channels add in block0"
    ):
        parse_cost("2,1,1,1", ("block0", "block1", "block2"), groups)


def test_what_doubling_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espalier_lab.growth.collect.cost.ROUNDS", 1)
    monkeypatch.setattr("espalier_lab.growth.collect.cost.STEPS", 3)
    collection = setting(job_with("Deepen", "Widen"), decisions=1, step_cost=None)
    assert [(group, width) for group, width, _ in collection.cost.doubled] == [
        ("block0.0", 6), ("block1.0", 8), ("block2.0", 8)
    ]  # fmt: skip
    assert all(seconds >= 0 for *_, seconds in collection.cost.doubled)


def test_a_job_that_only_widens_is_refused() -> None:
    with pytest.raises(
        CollectError, match=r"adaptation\.actions: every table has the growth points .*allow Deepen too"
    ):
        setting(job_with("Widen"), step_cost=WIDENING_COST)


def test_checkpoints_hold_the_history() -> None:
    collection = setting(job_with("Deepen", "Widen"), step_cost=WIDENING_COST)
    _, trunk = train(collection, CollectionRun(RunPurpose.TRUNK, 1), None)
    _, edge = train(collection, CollectionRun(RunPurpose.EDGE, 1, (4,)), trunk)
    assert [growth.to_json() for growth in edge.state.growth] == [
        {"kind": "Widened", "group": "block1.0", "width": 16, "seed": 1 << 16}
    ]
