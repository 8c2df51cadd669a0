"""x Wᵀ and + b written out: a linear layer."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, at_anchor, only_for

_MATRIX = 2


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    if node.operator == "matmul":
        turned = graph.nodes[node.inputs[1]]
        if (
            turned.operator == "transpose"
            and len(turned.shape) == _MATRIX
            and len(graph.nodes[node.inputs[0]].shape) > 1
        ):
            yield anchor, node.inputs[0], turned.inputs[0]
        return
    for name, bias in (node.inputs, node.inputs[::-1]) if len(set(node.inputs)) > 1 else ():
        layer = graph.nodes[name]
        without = layer.operator == "linear" and len(layer.inputs) == len(("tensor", "weight"))
        alike = graph.nodes[bias].shape == layer.shape[-1:] and graph.nodes[bias].value.dtype == layer.value.dtype
        if without and alike and only_for(graph, name, anchor):
            yield (anchor, *layer.inputs, bias)


RULE = RewriteRule(
    name="LinearByHand",
    source="the definition of torch.nn.functional.linear",
    anchors=frozenset({"matmul", "add"}),
    reach=2,
    find=_find,
    rewrite=lambda graph, location: at_anchor(graph, location[0], "linear", location[1:]),
)
