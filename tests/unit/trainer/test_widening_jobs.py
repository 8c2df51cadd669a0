"""Jobs that may widen: what is offered, what is carried out, what survives a stop, a kill, and a join."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from espalier_core.types.advice import Action, AdviceRequest
from espalier_core.types.events import Warned
from espalier_core.types.job import Fallback
from espalier_core.types.report import AdaptationResult, AdaptationSource, TrainerPhase
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.growth.advisor import AdvisorDecision, FallbackPolicy, NoAgent, WithFallback
from espalier_trainer.net2net import Deepened, Widened
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter

pytestmark = pytest.mark.slow

BOTH = {"actions": ["Deepen", "Widen"]}
WIDEN = Action.widen("block0.0")
GROUPS = ["block0.0", "block1.0", "block2.0"]


def test_a_job_that_deepens_asks_as_before(run, make_job):
    advisor = Scripted((Action.deepen("block0"),))
    run(make_job(adaptation={"maxAdaptations": 1}), advisor=advisor, up_at=0.1)
    (asked,) = advisor.asked
    assert asked.allowed_actions is None
    assert asked.architecture.channels is None


def test_widening_is_offered_carried_out_and_told(run, make_job):
    advisor = Scripted((WIDEN,))
    done = run(make_job(adaptation=BOTH | {"maxAdaptations": 1}), advisor=advisor, up_at=0.1)
    (asked,) = advisor.asked
    assert [str(action) for action in asked.actions()] == [
        *(f"Deepen(block{i})" for i in range(3)),
        *(f"Widen({group})" for group in GROUPS),
        "Nothing",
    ]
    (grown,) = done.result.adaptations
    assert (grown.action, grown.result) == ("Widen(block0.0)", AdaptationResult.GROWN)
    assert (grown.width_before, grown.width_after) == (6, 12)
    assert grown.depth_before == grown.depth_after == 4
    found = sum(parameter.numel() for parameter in done.trainer.network.module.parameters())
    assert grown.parameters_after == found == done.reporter.report.parameters > grown.parameters_before
    assert done.trainer.network.architecture.parameters == found
    assert done.trainer.network.history == (Widened(group="block0.0", width=12, seed=0),)


# Before the first decision, between the decisions, and in the middle of a later epoch.
def test_a_job_may_begin_to_widen_after_its_checkpoint(run, make_job, tmp_path, stop_after):
    script = Scripted((Action.deepen("block0"), WIDEN))
    first = run(
        make_job(adaptation={"maxAdaptations": 1}), advisor=script, up_at=0.1, store=tmp_path, stop=stop_after(45)
    )
    assert first.result.phase is TrainerPhase.STOPPED
    # A checkpoint from before the history was kept.
    store = CheckpointStore(tmp_path)
    saved = store.load_latest()
    store.save(Checkpoint(saved.state.model_copy(update={"growth": ()}), saved.model, saved.training))
    done = run(make_job(adaptation=BOTH | {"maxAdaptations": 2}), advisor=script, up_at=0.1, store=tmp_path)
    assert [one.result for one in done.result.adaptations] == [AdaptationResult.GROWN] * 2
    assert done.trainer.network.history == (
        Deepened(point="block0", pointwise=False),
        Widened(group="block0.0", width=12, seed=1),
    )
    again = run(make_job(adaptation=BOTH), store=tmp_path)
    again.assert_same_weights(done)


class Greedy(Scripted):
    """Takes the last growth that is offered."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return it, or nothing."""
        self.asked.append(request)
        action = [*request.actions()[-2:-1], Action.nothing()][0]
        return AdvisorDecision(f"greedy-{len(self.asked)}", action, AdaptationSource.AGENT, "greedy")


@pytest.mark.parametrize(("bound", "most"), [({"maxParameters": 700}, 700), ({}, 16 * 306)])
def test_growth_is_bounded(run, make_job, bound, most):
    greedy = Greedy(())
    job = make_job(timeBudgetSeconds=0.5, adaptation=BOTH | {"maxAdaptations": 9} | bound)
    done = run(job, advisor=greedy, up_at=0.0)
    assert most / 2 < done.result.parameters_after <= most
    for asked in greedy.asked:
        grown = [action for action in asked.actions() if action.grows]
        assert all(action.carried_out(asked.architecture).parameters <= most for action in grown)
    # What is left out is beyond the bound, no more.
    asked = greedy.asked[-1]
    offered = AdviceRequest(**dict(asked) | {"allowed_actions": None}).actions()
    left_out = [action for action in offered if action not in asked.actions()]
    assert left_out
    assert all(action.carried_out(asked.architecture).parameters > most for action in left_out)


def test_heuristic_widens_where_only_that_is_allowed(run, make_job):
    advisor = WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC, 0))
    done = run(make_job(adaptation={"actions": ["Widen"], "maxAdaptations": 1}), advisor=advisor, up_at=0.1)
    assert [one.action for one in done.result.adaptations] == ["Widen(block0.0)"]


class _Picky(nn.Module):
    """Takes no values but those of its data."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.one = nn.Linear(64, 8)
        self.act = nn.ReLU()
        self.two = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits; raises ValueError for pixels that no image has."""
        if images.device.type != "meta" and images.min().item() < -1:
            raise ValueError("these are no images")
        return self.two(self.act(self.one(self.flatten(images))))


def test_a_model_that_cannot_be_tried_is_deepened_only(digits, make_job):
    reporter, advisor = MemoryReporter(), Scripted((Action.deepen("one"),))
    job = make_job(timeBudgetSeconds=0.1, adaptation=BOTH | {"maxAdaptations": 1})
    scheduler = VirtualScheduler(0.1, lambda _: 0.002, (ReplicaChange(0.0, 2),))
    done = Trainer(job, _Picky(), digits, Services(scheduler, reporter, advisor)).run()
    assert [one.result for one in done.adaptations] == [AdaptationResult.GROWN]
    (warned,) = [event for event in reporter.events if isinstance(event, Warned)]
    assert warned.message.startswith("the model will be deepened, not widened: _Picky fails on random values")
    assert [str(action) for action in advisor.asked[0].actions()] == ["Deepen(one)", "Nothing"]
