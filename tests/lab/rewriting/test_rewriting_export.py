"""Forwards that torch.fx cannot trace, and torch.export can: what is captured, and what is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier_lab.rewriting.engine import RewritesRefusedError, capture, verify
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.matching import Matches
from espalier_lab.rewriting.job import may_export


def squared(outputs: Any) -> Tensor:
    result: Tensor = outputs.square().sum()
    return result


def names(graph: OpGraph) -> set[str]:
    return {match.rule.name for match in Matches(graph).all()}


class AsksForSizes(nn.Module):
    """As models of others do: branches by a size, masks of numbers, casts to what is there, norms that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 8), nn.BatchNorm1d(8)
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, input: Tensor, scale: float | None = None) -> dict[str, Tensor]:
        if input.shape[1] > 9:
            raise ValueError("too long")
        x = self.embed(input + 0).to(self.shift.dtype) + torch.tensor(0.5)
        x = nn.functional.dropout(nn.functional.relu(self.norm(x.mT), inplace=True).mT, 0.5, self.training)
        y = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return {"out": (self.query(x) + self.key(x)).mean(1) + y.sum((1, 2), keepdim=True)[:, 0] + self.shift}


def test_a_forward_that_asks_for_sizes_is_captured_and_rewritten() -> None:
    model, words = AsksForSizes(), torch.randint(0, 9, (3, 5))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graph = capture(model, {"input": words})
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert names(graph) >= {"ActivationByHand", "MergedLinears"}
    assert "Cancelling" not in names(graph), "whole numbers are left alone: input + 0"
    rewritten = graph
    for _ in range(3):
        matches = [match for match in Matches(rewritten).all() if match.rule.name != "CommonSubexpression"]
        rewritten = matches[0].applied(rewritten) if matches else rewritten
    for each in (graph, rewritten):
        execution = emitted(each, model)
        errors = verify(model, execution, {"input": words}, lambda outputs: squared(outputs["out"]))
        assert errors.right, errors
        assert {id(one) for one in execution.parameters()} == {id(one) for one in model.parameters()}
        before = int(model.norm.num_batches_tracked)
        assert execution(input=torch.cat([words, words]))["out"].shape == (6, 8), "the batch size stays free"
        assert int(model.norm.num_batches_tracked) == before + 1, "the buffers are the model's own"
        with pytest.raises(RewritesRefusedError, match="train mode"):
            execution.eval()(input=words)
    assert graph.fingerprint() == capture(model, {"input": words}).fingerprint()


def test_layers_of_torch_that_torch_fx_cannot_trace_are_captured() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
    rows = torch.randn(2, 4, 8)
    assert verify(model, emitted(capture(model, rows), model), rows, squared).right


class By(nn.Module):
    """Has a forward that torch.fx cannot trace, and then calls a function."""

    def __init__(self, then: Callable[[By, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.layer(x) if x.shape[1] > 0 else x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 5


@dataclass
class Output:
    """What libraries return."""

    logits: Tensor


torch.utils._pytree.register_dataclass(Output, serialized_type_name="test_rewriting_export.Output")


def _without(model: By, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.layer(x)  # type: ignore[no-any-return]


def _remembers(model: Any, x: Tensor) -> Tensor:
    model.steps = 1
    return x


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (lambda model, x: x if x.shape[0] % 2 else -x, "some sizes of a batch alone"),
        (lambda model, x: x if x.sum() > 0 else -x, "test_rewriting_export.py:.*must not decide by the values"),
        (_without, "within torch.no_grad"),
        (lambda model, x: Scaled.apply(x), "autograd.Function"),
        (lambda model, x: Output(x), "returns Output; return its tensor"),
        (_remembers, "changes 'steps', an attribute"),
    ],
    ids=["batch size", "values", "no gradients", "own gradient", "output", "attribute"],
)
def test_what_torch_export_would_hold_is_refused_with_the_reason(then: Callable[[By, Tensor], Any], why: str) -> None:
    with pytest.raises(RewritesRefusedError, match=why):
        capture(By(then), torch.randn(2, 4))


def test_torch_export_is_left_out_where_it_would_be_too_slow() -> None:
    model = By(lambda model, x: x)
    with pytest.raises(RewritesRefusedError, match="torch.export is not tried"):
        capture(model, torch.randn(2, 4), exports=False)
    assert [may_export(model, 0.1, allowed) for allowed in (1.0, 20.0)] == [False, True]


class Defaults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor | dict[str, Tensor], mask: Tensor | None = None, scaled: bool = True) -> Tensor:
        rows = x["rows"] if isinstance(x, dict) else x
        result: Tensor = self.layer(rows * 2 if scaled else rows)
        return result if mask is None else result * mask


class OfDictionary(Defaults):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        result: Tensor = self.layer(batch["rows"]) * batch["mask"]
        return result


class DropsPaths(Defaults):
    """Leaves its layer out for some rows, as timm does, which draws into new memory."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        kept = x.new_empty((x.shape[0], 1)).bernoulli_(0.5)
        result: Tensor = x + self.layer(x) * kept.div_(0.5)
        return result


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (DropsPaths(), torch.randn(8, 4)),
        (Defaults(), torch.randn(2, 4)),
        (Defaults(), {"x": torch.randn(2, 4), "mask": torch.ones(2, 4)}),
        (OfDictionary(), ({"rows": torch.randn(2, 4), "mask": torch.ones(2, 4)},)),
    ],
    ids=["new memory", "defaults", "by name", "dictionary"],
)
def test_defaults_dictionaries_and_new_memory_are_captured(model: nn.Module, inputs: Any) -> None:
    assert verify(model, emitted(capture(model, inputs), model), inputs, squared).right
