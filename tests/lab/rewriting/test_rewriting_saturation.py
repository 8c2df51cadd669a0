"""Equality saturation in the benchmark: which graph is extracted, and that it computes what the model does."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from bench.rewritten.extraction import by_greedy_graph, by_tree, exact
from espalier_lab.rewriting.engine import OperatorCosts, capture, verify
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.learned.nets import Handwritten, Reparametrised

MERGED = {
    "root": [(0.0, ("a", "b"))],
    "a": [(2e-6, ("x",)), (0.0, ("both",))],
    "b": [(2e-6, ("x",)), (0.0, ("both",))],
    "both": [(3e-6, ("x",))],
    "x": [(0.0, ())],
}
"""Two layers that read the same, or one that costs less than both, but more than each."""


def test_only_the_integer_program_shares_what_no_reader_would_take_alone() -> None:
    apart, together = {"root": 0, "a": 0, "b": 0, "x": 0}, {"root": 0, "a": 1, "b": 1, "both": 0, "x": 0}
    assert by_tree(MERGED, ["root"]) == apart
    assert by_greedy_graph(MERGED, ["root"]) == apart
    assert exact(MERGED, ["root"], seconds=60) == together


def test_nothing_is_computed_of_itself() -> None:
    """Two transposes that undo one another make each class a member of the other: both for nothing, in a circle."""
    classes = {
        "root": [(0.0, ("x", "t"))],
        "x": [(5e-6, ()), (0.0, ("t",)), (0.0, ("x",))],
        "t": [(0.0, ("x",)), (9e-6, ())],
    }
    wanted = {"root": 0, "x": 0, "t": 0}
    assert [extract(classes, ["root"]) for extract in (by_tree, by_greedy_graph)] == [wanted, wanted]
    assert exact(classes, ["root"], seconds=60) == wanted


class Heads(nn.Module):
    """Layers that read the same, and dropouts, which must draw in the order of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 4, bias=each > 0) for each in range(4))
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(x.transpose(0, 1).transpose(0, 1), 0.5, self.training)
        parts = [nn.functional.dropout(head(x), 0.5, self.training) for head in self.heads[1:]]
        result: Tensor = self.last(torch.cat(parts, -1)) + self.heads[0](x).sum()
        return result


@pytest.mark.parametrize(
    ("model", "inputs", "gone"),
    [
        (Handwritten(16, 2, 1), torch.randn(2, 8, 16), "erf"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), Reparametrised(4)), torch.randn(2, 3, 8, 8), ""),
        (Heads(), torch.randn(2, 8), "transpose"),
    ],
    ids=["handwritten", "repvgg", "heads"],
)
def test_extracted_graphs_compute_what_the_model_does(model: nn.Module, inputs: Tensor, gone: str) -> None:
    if not os.environ.get("CI"):
        pytest.importorskip("egglog", reason="needs egglog: make saturation")
    from bench.rewritten.saturating import EXTRACTIONS, saturated

    graph = capture(model, inputs)
    ticks = iter(range(10**9))
    found = saturated(graph, OperatorCosts(model, clock=lambda: float(next(ticks))))  # each operator costs the same
    assert found.whole
    for kind in EXTRACTIONS:
        other = found.extracted(kind)
        errors = verify(model, emitted(other, model), inputs, lambda outputs: outputs.square().sum())
        assert errors.right, (kind, errors)
        assert gone not in {node.operator for node in other.nodes.values()}
        assert len(other.nodes) < len(graph.nodes) or not gone
