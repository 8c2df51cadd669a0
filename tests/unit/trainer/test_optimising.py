"""Steps computed in another way: the same training, found and measured once, carried over, and left where it fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier_core.registry import Registry
from espalier_core.types.advice import Action
from espalier_core.types.events import AdaptationFinished
from espalier_core.types.job import AdaptiveTrainingJob, Insertion
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_lab.rewriting.engine import OperatorCosts, OpGraph, RewritePlan, capture, device_kind, search
from espalier_lab.rewriting.engine import SearchResult as Searched
from espalier_lab.rewriting.job import Rewrites
from espalier_lab.virtual_time import VirtualScheduler
from espalier_trainer.builtin_loop.steps import optimize
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import ExecutionState
from espalier_trainer.models.zoo import build_model
from espalier_trainer.run.attempts import CHANNELS_LAST, REWRITE, AttemptOutcome, cost_of, is_tried
from espalier_trainer.run.optimising import Probation
from espalier_trainer.run.services import Services
from espalier_trainer.signals.metrics import MeteredReporter
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.training.execution import Execution
from espalier_trainer.training.network import Network, new_network

TWICE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(16 * 64, 10)
        self.second = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, inputs):
        hidden = torch.relu(self.first(inputs))
        return self.last((torch.relu(self.second(hidden)) + torch.tanh(self.second(hidden))).flatten(1))

def net():
    return Net()
"""
"""A net that computes a convolution twice, so that half of its time is saved, however busy the machine is."""


@pytest.fixture(autouse=True)
def _twice(users_module):
    users_module("twice_net", TWICE)


def spec_of(*, optimise: str = "Rewrites", share: float = 0.5, **training: Any) -> dict[str, Any]:
    return {
        "timeBudgetSeconds": 9,
        "adaptation": {"optimise": optimise, "optimiseShare": share},
        "training": {"model": {"entrypoint": "twice_net:net"}, **training},
    }


@pytest.fixture
def trained(run):
    """Return what runs a job for 90 steps; if it `stops`, only up to the first attempt.

    Steps are timed in CPU time: they are compared, and the machine may be busy.
    """

    def runner(job: AdaptiveTrainingJob, store: Path | None = None, *, stops: bool = False) -> Any:
        told: list[MemoryReporter] = []

        def stop() -> bool:
            return stops and any(isinstance(event, AdaptationFinished) for event in told[0].events)

        scheduler = VirtualScheduler(job.spec.time_budget_seconds, lambda _: 0.1)
        options = {"stop": stop, "clock": time.process_time, "wrap": lambda reporter: told.append(reporter) or reporter}
        return run(job, scheduler=scheduler, store=store, **options)

    return runner


def weights(network: Network) -> list[Tensor]:
    return [parameter.detach() for parameter in network.module.parameters()]


def test_a_rewritten_run_trains_as_the_model_does_and_resumes_without_a_search(make_job, trained, tmp_path):
    plain = trained(make_job(**spec_of(optimise="Off")))
    store = tmp_path / "store"
    first = trained(make_job(**spec_of()), store, stops=True)
    (found,) = first.result.adaptations
    assert (found.result, found.source) == (AdaptationResult.REWRITTEN, AdaptationSource.MEASUREMENT), found.message
    assert found.action == f"Rewrite({len(first.trainer.network.execution.plan['rules'])})"
    assert found.step_seconds_after < found.step_seconds_before
    assert found.largest_error <= 1e-9
    assert found.evaluations > 0
    metrics = MeteredReporter(MemoryReporter(), lambda: 9.0)
    for event in first.reporter.events:
        metrics.record(event)
    gain = (
        f'espalier_trainer_step_gain_ratio{{action="Rewrite"}} {found.step_seconds_before / found.step_seconds_after}'
    )
    assert gain in metrics.metrics.text().decode()
    second = trained(make_job(**spec_of()), store)
    kept = second.result.adaptations
    assert [one.decision_id for one in kept] == [found.decision_id]
    assert second.trainer.network.execution.plan == first.trainer.network.execution.plan
    assert second.result.steps == plain.result.steps
    for mine, theirs in zip(weights(second.trainer.network), weights(plain.trainer.network), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [spec_of(share=1e-6), spec_of(syncBatchNorm=True), spec_of(precision="BFloat16"), spec_of(optimise="Off")],
    ids=["too dear", "refused", "autocast rounds otherwise", "off"],
)
def test_nothing_is_tried_that_is_not_wanted_or_costs_too_much(make_job, trained, spec):
    done = trained(make_job(**spec))
    assert done.trainer.network.execution is None
    assert done.result.adaptations == ()
    warned = [event.message for event in done.reporter.events if getattr(event, "reason", "") == "RewritesNotPossible"]
    assert len(warned) == len({"syncBatchNorm", "precision"} & spec["training"].keys())


def test_a_layout_that_is_too_dear_does_not_keep_from_rewrites(make_job, trained, monkeypatch):
    monkeypatch.setattr("espalier_trainer.run.optimising._COMPARING_STEPS", 1_000_000)
    done = trained(make_job(**spec_of(memoryFormat="Auto")), stops=True)
    assert [one.action.partition("(")[0] for one in done.result.adaptations] == [REWRITE]


def test_another_plan_is_checked_where_the_best_one_fails(make_job, trained, monkeypatch):
    def searched(graph: OpGraph, costs: OperatorCosts) -> Searched:
        found = search(graph, costs)
        (cost, plan), *others = found.best
        wrong = plan.model_copy(update={"fingerprint": "wrong"})
        return replace(found, best=((cost, wrong), (cost, plan), *others))

    executed = Rewrites.executed

    def built(self: Rewrites, module: nn.Module, plan: Mapping[str, Any], example: Any) -> Execution:
        wrong = plan["fingerprint"] == "wrong"
        return Execution(Broken(module, ValueError("no")), plan) if wrong else executed(self, module, plan, example)

    monkeypatch.setattr("espalier_lab.rewriting.job.search", searched)
    monkeypatch.setattr(Rewrites, "executed", built)
    done = trained(make_job(**spec_of()), stops=True)
    (found,) = done.result.adaptations
    assert found.largest_error <= 1e-9, found.message


class Broken(nn.Module):
    """An execution that does not do."""

    def __init__(self, module: nn.Module, error: BaseException | None) -> None:
        super().__init__()
        self.module, self.error = module, error

    def forward(self, inputs: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return self.module(inputs) * torch.inf


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("no room")], ids=["infinite loss", "out of memory"])
def test_an_execution_that_fails_gives_way_to_the_module(make_job, digits, error):
    job = make_job(**spec_of(share=1e-6))
    torch.manual_seed(0)
    model = build_model(job.spec.training.model, digits.classes, digits.example_input(), digits.task)
    trainer = Trainer(job, model, digits, Services(VirtualScheduler(0.095, lambda _: 0.01), MemoryReporter()))
    execution = Execution(Broken(trainer.network.module, error), {"rules": []})
    trainer._state.adopt(replace(trainer.network, execution=execution))
    result = trainer.run()
    (reverted,) = result.adaptations
    assert reverted.result is AdaptationResult.REVERTED
    assert ("loss is" in reverted.message) == (error is None)
    assert result.steps == 10
    assert trainer.network.execution is None
    assert trainer.network.is_finite()


def started(digits: Any, job: AdaptiveTrainingJob) -> Network:
    torch.manual_seed(0)
    model = build_model(job.spec.training.model, digits.classes, digits.example_input(), digits.task)
    return new_network(model, job.spec.training.optimizer, digits.example_input(), Insertion.EXACT)[0]


def test_growth_keeps_the_layout_and_drops_the_graph(make_job, digits):
    job = make_job(training={"model": {"name": "digits"}})
    network, example = started(digits, job), digits.example_input()
    inputs, labels = digits.train.batch(torch.arange(32), None)
    network.module.train()
    plan = RewritePlan(fingerprint=capture(network.module, example).fingerprint(), device=device_kind(network.module))
    network = network.computed_as(ExecutionState(channels_last=True, plan=plan.model_dump(mode="json")), example)
    assert network.execution is not None
    optimize(network, inputs, labels)
    grown = network.grown(Action.deepen("block0"), example, Insertion.EXACT, 0)
    assert grown.channels_last
    assert grown.execution is None
    kernels = [parameter for parameter in grown.module.parameters() if parameter.dim() == 4]
    assert kernels
    for kernel in kernels:
        assert kernel.is_contiguous(memory_format=torch.channels_last)
    for parameter, state in grown.optimizer.state.items():
        assert state["exp_avg"].stride() == parameter.stride()


def test_another_device_and_another_model_compute_by_the_module(make_job, digits):
    network, example = started(digits, make_job(**spec_of())), digits.example_input()
    for plan in (
        RewritePlan(fingerprint="other", device=device_kind(network.module)),
        RewritePlan(fingerprint="", device="gpu"),
    ):
        assert network.computed_as(ExecutionState(plan=plan.model_dump(mode="json")), example).execution is None


@given(st.floats(0.001, 10), st.floats(0.001, 10))
def test_a_probation_compares_each_way_with_itself_in_turn(before, after):
    network, other = (Network(nn.Linear(1, 1), None, None) for _ in range(2))
    probation = Probation(network, other, AttemptOutcome(REWRITE), 0.0)
    order = []
    while not probation.over:
        order.append(probation.next is other)
        probation.stepped(after if order[-1] else before)
    assert set(probation.comparison.pairs) == {(before, after)}
    assert order[:4] == [False, True, True, False]
    assert len(order) == 2 * (2 + (15 if before / after >= 0.9 else 5))


RESULTS = st.sampled_from([AdaptationResult.REWRITTEN, AdaptationResult.REVERTED])


def record(action: str, result: AdaptationResult, source: AdaptationSource, seconds: float = 1.0) -> Adaptation:
    return Adaptation(
        decision_id="", time=datetime.now(UTC), used_seconds=0, trigger="", generation=0, action=action, source=source,
        result=result, depth_before=1, depth_after=1, parameters_before=1, parameters_after=1, seconds=seconds,
    )  # fmt: skip


ATTEMPTS = st.builds(
    record,
    st.sampled_from([CHANNELS_LAST, f"{REWRITE}(0)", f"{REWRITE}(3)"]),
    RESULTS,
    st.just(AdaptationSource.MEASUREMENT),
    st.floats(0, 10),
)
GROWTHS = st.builds(
    record,
    st.just("Deepen(a)"),
    st.sampled_from([AdaptationResult.GROWN, AdaptationResult.DECLINED, AdaptationResult.SHRUNK]),
    st.just(AdaptationSource.AGENT),
    st.floats(0, 10),
)


@given(st.lists(ATTEMPTS | GROWTHS))
def test_each_model_is_searched_once_and_each_run_tries_one_layout(made):
    kinds = [(one.action.partition("(")[0], one.result) for one in made]
    changes = [n for n, (_, result) in enumerate(kinds) if result in ("Grown", "Shrunk")]
    since = kinds[changes[-1] + 1 :] if changes else kinds
    assert is_tried(REWRITE, made) == any(kind == REWRITE for kind, _ in since)
    assert is_tried(CHANNELS_LAST, made) == any(kind == CHANNELS_LAST for kind, _ in kinds)
    own = [one.seconds for one in made if one.source is AdaptationSource.MEASUREMENT]
    assert cost_of(made) == pytest.approx(sum(own))


def test_without_a_package_that_rewrites_the_job_says_so_and_trains(make_job, trained, monkeypatch):
    monkeypatch.setattr("espalier_trainer.training.execution.REWRITERS", Registry("execution", "espalier.none", {}))
    done = trained(make_job(**spec_of()), stops=True)
    assert done.result.adaptations == ()
    assert any("install espalier-lab" in str(event) for event in done.reporter.events), done.reporter.events
