"""Jobs that may add whole blocks: offered, carried out, kept over a stop; the agent and the fallback cope with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import default_policy
from espalier_core.types.advice import Action
from espalier_core.types.job import Fallback
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_lab.virtual_time import Scripted
from espalier_trainer.growth.advisor import FallbackPolicy, NoAgent, WithFallback

ADD = Action(kind="AddBlock", target="3")

MODEL = """
import sys
sys.path.insert(0, {cases!r})
from block_cases import BasicBlock
from torch import nn

def net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), BasicBlock(8), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 10),
    )

def stages():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), BasicBlock(8), nn.Conv2d(8, 12, 3, stride=2),
        nn.BatchNorm2d(12), nn.ReLU(), BasicBlock(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10),
    )
"""


@pytest.fixture
def blocks(tmp_path, monkeypatch, make_job):
    """Return what makes jobs of a small residual network."""
    cases = Path(__file__).parents[1] / "net2net"
    (tmp_path / "residual_net.py").write_text(MODEL.format(cases=str(cases)))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield lambda model="net", batch=64, **adaptation: make_job(
        timeBudgetSeconds=0.4,
        adaptation={"actions": ["Deepen", "AddBlock"]} | adaptation,
        training={"model": {"entrypoint": f"residual_net:{model}"}, "evaluateEveryEpochs": 10**6, "batchSize": batch},
    )
    sys.modules.pop("residual_net", None)


def test_the_heuristic_adds_a_block_where_it_may_only_do_that(run, blocks):
    advisor = WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC))
    done = run(blocks(actions=["AddBlock"], maxAdaptations=1), advisor=advisor, up_at=0.1)
    (grown,) = done.result.adaptations
    assert (grown.action, grown.result) == ("AddBlock(3)", AdaptationResult.GROWN)


def test_the_shipped_policy_answers_and_weighs_blocks_too(run, blocks):
    advisor = Scripted(())
    run(blocks(maxAdaptations=1), advisor=advisor, up_at=0.1)
    (asked,) = advisor.asked
    assert ADD in asked.actions()
    answer = decide(default_policy(), asked)
    assert answer.action in asked.actions()
    given = {one.action: one for one in answer.probabilities}
    assert 0 < given[ADD].probability < 1
    assert given[ADD].gain is not None
    assert asked.places
    assert asked.batch_size


def test_a_run_unfolds_over_a_stop_and_nothing_is_asked_before_it_has(run, blocks, tmp_path, stop_after):
    job = blocks(insertion="Unfold", actions=["AddBlock"], maxAdaptations=2)
    script = (ADD, ADD)
    whole = run(job, advisor=Scripted(script), up_at=0.1)
    first, second = whole.result.adaptations
    assert {first.result, second.result} == {AdaptationResult.GROWN}
    assert first.loss_before is None
    assert second.used_seconds - first.used_seconds >= 0.15 * 0.4
    network = whole.trainer.network
    assert not network.unfolds
    assert network.architecture.block_point("3").grown == 3
    for steps in (40, 55):  # within the first unfolding, within the second
        store = tmp_path / f"{steps}"
        stopped = run(job, advisor=Scripted(script), up_at=0.1, store=store, stop=stop_after(steps))
        assert stopped.result.phase is TrainerPhase.STOPPED
        assert stopped.trainer.network.unfolds
        run(job, advisor=Scripted(script), up_at=0.1, store=store).assert_same_weights(whole)


def test_the_stages_of_a_net_unfold_at_the_same_time_and_go_on_after_a_stop(run, blocks, tmp_path, stop_after):
    other = Action(kind="AddBlock", target="7")
    job = blocks("stages", batch=256, insertion="Unfold", actions=["Deepen", "AddBlock"], maxAdaptations=4)
    script = (ADD, other, ADD, other)
    advisor = Scripted(script)
    whole = run(job, advisor=advisor, up_at=0.1)
    grown = whole.result.adaptations
    assert [(one.action, one.result) for one in grown] == [(str(action), AdaptationResult.GROWN) for action in script]
    share, epoch = 0.15 * 0.4, grown[1].used_seconds - grown[0].used_seconds
    assert epoch < share / 2
    assert share <= grown[2].used_seconds - grown[0].used_seconds < share + 2 * epoch
    # While one run unfolds, only the other is offered.
    kinds = [{str(action.plain) for action in asked.actions()} for asked in advisor.asked]
    assert kinds[0] > {str(ADD), str(other), "Deepen(3.conv1)"}
    assert kinds[1] == {str(other), "Nothing"}
    network = whole.trainer.network
    assert not network.unfolds
    assert [point.grown for point in network.architecture.blocks] == [3, 3]
    stopped = run(job, advisor=Scripted(script), up_at=0.1, store=tmp_path / "run", stop=stop_after(33))
    assert stopped.result.phase is TrainerPhase.STOPPED
    assert len(stopped.trainer.network.history) == 2, "it stops while both unfold"
    run(job, advisor=Scripted(script), up_at=0.1, store=tmp_path / "run").assert_same_weights(whole)
