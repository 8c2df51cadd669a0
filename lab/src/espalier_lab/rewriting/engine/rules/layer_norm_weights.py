"""layer_norm(x) · w and layer_norm(x) + b written out: the weight and bias of torch's layer norm."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, at_anchor, only_for

_WEIGHTS = {"mul": 1, "add": 2}
"""Number of inputs of a norm that can still absorb a product, or a sum."""


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    for name, weight in (node.inputs, node.inputs[::-1]) if len(set(node.inputs)) > 1 else ():
        norm = graph.nodes[name]
        if (
            norm.operator == "layer_norm"
            and len(norm.inputs) == _WEIGHTS[node.operator]
            and graph.nodes[weight].shape == norm.get("normalized_shape")
            and graph.nodes[weight].value.dtype == norm.value.dtype
            and only_for(graph, name, anchor)
        ):
            yield anchor, name, weight


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, name, weight = location
    norm = graph.nodes[name]
    return at_anchor(graph, anchor, "layer_norm", (*norm.inputs, weight), **dict(norm.attributes))


RULE = RewriteRule(
    name="LayerNormWeights",
    source="Ba et al. 2016, Layer Normalization (arXiv 1607.06450), equation 4",
    anchors=frozenset(_WEIGHTS),
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
