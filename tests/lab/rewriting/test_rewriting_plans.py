"""What is refused and why, plans that outlive a process, searches, costs, and pairs of steps."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_models import image_model, row_model
from torch import Tensor, nn

from espalier_lab.rewriting.engine import (
    SEARCHES,
    OperatorCosts,
    RewritePlan,
    RewritesRefusedError,
    RewriteStep,
    apply,
    capture,
    compare,
    search,
    verify,
)
from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.matching import Match
from espalier_lab.rewriting.engine.metas import value_of
from espalier_lab.rewriting.engine.search import SearchState
from espalier_trainer.models.gpt import gpt
from espalier_trainer.models.zoo import cifar8
from espalier_trainer.net2net import deepen, growth_points


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class WritesIntoAView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[0].add_(1)
        return y


class DropsInPlace(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.layer, self.drop, self.again = nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), again

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        z = self.drop(y.flatten(1))
        return z + y if self.again else z


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * 2


class Skips(nn.Module):
    """Leaves its layer out now and then, by a number that is drawn without an input."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x) if self.draw() > 0.3 else x


class Remembers(nn.Module):
    """Changes an attribute, a list or a buffer, by which a later forward may go."""

    def __init__(self, remember: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.remember, self.steps, self.seen = nn.Linear(4, 4), remember, 0, [1.0]
        self.count, self.queue = torch.zeros(()), deque([1.0], maxlen=4)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.remember(self, x)
        result: Tensor = self.layer(x) * self.scale
        return result


class Penalised(nn.Module):
    """Divides by the size of its weights, which change with each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) / sum(each.detach().norm() for each in self.parameters())
        return result


class DropsByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x), 0.5, self.training) * 1


class Within(nn.Module):
    """Computes its first layer in a context, of which torch.fx records nothing."""

    def __init__(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self.context, self.first, self.second = context, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with self.context():
            x = self.first(x)
        result: Tensor = self.second(x)
        return result


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_hooked(), "'0' has hooks"),
        (Decides(), "must not decide by the values"),
        (WritesIntoAView(), "in place"),
        (DropsInPlace(again=True), "reads layer, which drop has changed"),
        (Counts(), "changes a buffer"),
        (nn.LazyLinear(3), "lazy"),
        (Skips(lambda: torch.rand(1).item()), "draws random numbers without an input"),
        (Skips(random.random), "draws random numbers without an input"),
        (Skips(lambda: float(np.random.rand())), "draws random numbers without an input"),
        (Remembers(lambda model, _: setattr(model, "steps", model.steps + 1)), "changes 'steps', an attribute"),
        (Remembers(lambda model, _: model.seen.append(2.0)), "changes 'seen', an attribute"),
        (Remembers(lambda model, _: model.count.add_(1)), "changes 'count', an attribute"),
        (Remembers(lambda model, _: model.queue.append(2.0)), "changes 'queue', an attribute"),
        (Remembers(lambda model, _: setattr(model, "scale", model.scale * 0.9)), "changes 'scale', an attribute"),
        (Remembers(lambda model, x: setattr(model, "last", x)), "changes 'last', an attribute"),
        (Penalised(), "of a parameter that torch.fx does not follow"),
        (Within(torch.no_grad), "within torch.no_grad, torch.autocast or an autograd"),
        (Within(lambda: torch.autocast("cpu", torch.bfloat16)), "within torch.no_grad, torch.autocast or an autograd"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_what_cannot_be_rewritten_is_refused_with_the_reason(model: nn.Module, why: str) -> None:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    rows = torch.randn(2, 4)
    draws = torch.get_rng_state(), random.getstate()
    with pytest.raises(RewritesRefusedError, match=why):
        capture(model, rows)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers() if name in before)
    assert (torch.equal(draws[0], torch.get_rng_state()), draws[1]) == (True, random.getstate())


def test_grown_models_are_captured_and_stay_as_they_are() -> None:
    model, images = cifar8(), torch.randn(4, 3, 8, 8)
    for _ in range(2):
        model = deepen(model, growth_points(model, images)[0].id, images)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    draws = torch.get_rng_state()
    graph = capture(model, images)
    assert torch.equal(draws, torch.get_rng_state())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    execution = apply(model, RewritePlan(fingerprint=graph.fingerprint(), device="any"), images)
    assert dict(execution.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert verify(model, execution, images, lambda outputs: outputs.square().sum()).right
    # The batch size stays free, and the buffers are the model's own.
    execution(torch.randn(7, 3, 8, 8))
    assert model.state_dict()["block0.1.num_batches_tracked"] == state["block0.1.num_batches_tracked"] + 1


def test_a_forward_that_depends_on_the_mode_is_executed_in_train_mode_alone() -> None:
    model, rows = DropsByHand(), torch.randn(3, 4)
    graph = capture(model, rows)
    assert not graph.both_modes
    step = RewriteStep(rule="Cancelling", location=("mul", "dropout"))
    execution = apply(model, RewritePlan(fingerprint=graph.fingerprint(), device="any", rules=(step,)), rows)
    assert verify(model, execution, rows, Tensor.sum).right
    with pytest.raises(RewritesRefusedError, match="train mode"):
        execution.eval()(rows)


def test_a_change_in_place_that_nobody_else_sees_is_captured() -> None:
    model, rows = DropsInPlace(again=False), torch.randn(3, 4)
    execution = apply(model, RewritePlan(fingerprint=capture(model, rows).fingerprint(), device="any"), rows)
    assert verify(model, execution, rows, Tensor.sum).right


@pytest.mark.parametrize(
    "change",
    [
        lambda y: nn.functional.leaky_relu_(y),
        lambda y: nn.functional.elu_(y),
        lambda y: torch.sigmoid_(y),
        lambda y: nn.functional.leaky_relu(y, 0.1, True),
    ],
)
def test_a_function_that_changes_its_argument_is_captured_though_nobody_reads_its_result(
    change: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model, rows = Changes(change), torch.randn(3, 4)
    execution = apply(model, RewritePlan(fingerprint=capture(model, rows).fingerprint(), device="any"), rows)
    assert verify(model, execution, rows, Tensor.sum).right


def test_verify_finds_an_execution_that_computes_something_else() -> None:
    model, rows = nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4)
    wrong = nn.Sequential(model[0], nn.Tanh())
    errors = verify(model, wrong, rows, Tensor.sum)
    assert not errors.right
    assert min(errors.outputs, errors.gradient) > 1e-3


def _stand_in(graph: OpGraph, name: str) -> float:
    """Return a cost that does not depend on the machine: the elements of the output, and 10 a node."""
    node: OpNode = graph.nodes[name]
    if node.operator in ("input", "parameter", "constant", "output"):
        return 0.0
    return 10.0 + torch.Size(node.shape).numel()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> type[OperatorCosts]:
    monkeypatch.setattr(OperatorCosts, "of", lambda _, graph, name: _stand_in(graph, name))
    return OperatorCosts


@pytest.mark.parametrize("method", SEARCHES)
def test_a_plan_is_found_saved_and_carried_out_again(method: str, costs: type[OperatorCosts]) -> None:
    torch.manual_seed(0)
    model, rows = row_model(["norm by hand", "attention by hand", "gelu by hand", "chain"])
    graph = capture(model, rows)
    found = search(graph, costs(model), method=method, evaluations=200)
    assert found.best[0][0] < 0.7 * found.start
    assert found.evaluations <= 200
    again = RewritePlan.model_validate_json(found.plan.model_dump_json())
    execution = apply(model, again, torch.randn(9, 4, 4))  # the plan does not know the batch size
    assert verify(model, execution, rows, Tensor.sum).right


@pytest.mark.parametrize("method", SEARCHES)
def test_a_rule_that_raises_does_not_end_a_search(
    method: str, costs: type[OperatorCosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = Match.applied

    def raises(self: Match, graph: OpGraph) -> OpGraph:
        if self.rule.name == "ActivationByHand":
            raise RuntimeError("sizes do not fit")
        return applied(self, graph)

    monkeypatch.setattr(Match, "applied", raises)
    model, rows = row_model(["norm by hand", "gelu by hand", "chain"])
    found = search(capture(model, rows), costs(model), method=method, evaluations=60)
    assert found.best[0][0] < found.start


def test_sums_after_a_rewrite_are_those_of_the_graph(costs: type[OperatorCosts]) -> None:
    torch.manual_seed(0)
    model, images = image_model(["branches", "reparametrised", "batch norm", "twice", "enlarged"])
    graph = capture(model, images)
    state = SearchState.start(graph, costs(model))
    while matches := state.matches.all():
        state = state.after(matches[len(matches) // 2])
        assert state.cost == sum(_stand_in(state.graph, name) for name in state.graph.nodes)


def test_plans_for_other_models_and_places_are_refused() -> None:
    model, rows = row_model(["swish"])
    graph = capture(model, rows)
    with pytest.raises(RewritesRefusedError, match="is for the computation"):
        apply(model, RewritePlan(fingerprint="another", device="any"), rows)
    anchors = [name for name in graph.nodes if name != "mul"]
    for step in (
        RewriteStep(rule="Unknown", location=("mul",)),
        RewriteStep(rule="MeanFirst", location=("mean", "nowhere")),
        *(RewriteStep(rule="Cancelling", location=(name, "nowhere")) for name in anchors),
    ):
        with pytest.raises(RewritesRefusedError, match="unknown here|does not hold"):
            apply(model, RewritePlan(fingerprint=graph.fingerprint(), device="any", rules=(step,)), rows)
    with pytest.raises(ValueError, match="best-first"):
        search(graph, OperatorCosts(model), method="worst")


def test_the_table_of_costs_is_measured_once_and_kept(tmp_path: Path) -> None:
    model, tokens = gpt(8, 4, width=8, heads=2), torch.randint(0, 8, (2, 4))
    graph = capture(model, tokens)
    ticks = itertools.count(step=2)
    first = OperatorCosts(model, tmp_path, clock=lambda: float(next(ticks)))
    total = SearchState.start(graph, first).cost
    first.save()
    again = OperatorCosts(model, tmp_path)
    assert SearchState.start(graph, again).cost == total > 0
    assert (first.measured > 0, again.measured) == (True, 0)


def test_of_a_grown_model_only_what_is_new_is_measured() -> None:
    small, large = (nn.Sequential(nn.Linear(4, 8), *[nn.ReLU(), nn.Linear(8, 8)] * times) for times in (1, 2))
    large.append(nn.Tanh())
    first = OperatorCosts(small)
    SearchState.start(capture(small, torch.rand(2, 4)), first)
    second = OperatorCosts(large, table=first.table)
    SearchState.start(capture(large, torch.rand(2, 4)), second)
    assert (first.measured, second.measured) == (3, 1)


class Changes(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(4, 4), change

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        self.change(result)
        return result


class Viewed(nn.Module):
    """Needs its image as it lies in memory; `odd` rows are refused by a layer that no rule looks into."""

    def __init__(self, *, odd: bool = False) -> None:
        super().__init__()
        self.layer, self.last, self.odd = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, 2), odd

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x).relu().view(x.size(0), -1)
        result: Tensor = self.last(rows)
        return torch.linalg.cholesky(torch.cov(result) + torch.eye(2)) if self.odd else result


@pytest.mark.parametrize("odd", [False, True])
def test_a_graph_whose_nodes_do_not_run_is_never_chosen(odd: bool, tmp_path: Path) -> None:
    model, images = Viewed(odd=odd), torch.randn(2, 3, 4, 4)
    costs = OperatorCosts(model, tmp_path)
    start = SearchState.start(capture(model, images), costs)
    (match,) = [one for one in start.matches.all() if one.rule.name == "ChannelsLast"]
    assert 0 < start.cost < start.after(match).cost == float("inf")
    found = search(start.graph, costs)
    assert not any(step.rule == "ChannelsLast" for _, plan in found.best for step in plan.rules)
    costs.save()
    assert SearchState.start(start.graph, OperatorCosts(model, tmp_path)).cost == start.cost
    assert "inf" not in next(tmp_path.glob("*.json")).read_text().lower()


def test_memory_that_is_short_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    model, rows = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    graph, costs = capture(model, rows), OperatorCosts(model)
    monkeypatch.setattr("espalier_lab.rewriting.engine.costs._timed", full)
    with pytest.raises(torch.OutOfMemoryError):
        SearchState.start(graph, costs)
    assert costs.table == {}


def test_measuring_draws_no_random_numbers_of_the_run() -> None:
    model, rows = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(2, 4)
    graph, before = capture(model, rows), torch.get_rng_state()
    search(graph, OperatorCosts(model))
    assert torch.equal(before, torch.get_rng_state())


def test_pairs_of_steps_are_measured_in_turn() -> None:
    model, execution = nn.Linear(1, 1), nn.Linear(1, 1)
    now, order = [0.0], []

    def step(which: nn.Module) -> None:
        order.append(which is model)
        now[0] += 3.0 if which is model else 2.0

    comparison = compare(model, execution, step, pairs=4, warmup=1, clock=lambda: now[0])
    assert order == [True, False, False, True, True, False, False, True, True, False]
    assert comparison.pairs == ((3.0, 2.0),) * 4
    assert comparison.gain == 1.5
    assert comparison.faster(0.4)
    assert not comparison.faster(0.6)
    with pytest.raises(ValueError, match="pairs is 1"):
        compare(model, execution, step, pairs=1)


def test_a_part_of_the_channels_lies_as_the_whole() -> None:
    """A convolution computes it channels-last, and a dropout draws for it in that order."""
    images = torch.randn(2, 6, 4, 4)
    last = images.contiguous(memory_format=torch.channels_last)
    assert [value_of(one[:, 2:5]).channels_last for one in (images, last)] == [False, True]
    assert value_of(nn.Conv2d(3, 4, 1)(last[:, 2:5])).channels_last
