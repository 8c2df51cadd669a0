"""linear(linear(x)) without anything between them: one layer by W₂ W₁. It gains where the middle is wide."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import BIAS, Location, RewriteRule, only_for, weights_alone


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    outer = graph.nodes[anchor]
    inner = graph.nodes[outer.inputs[0]]
    if inner.operator != "linear" or not only_for(graph, outer.inputs[0], anchor):
        return
    if all(weights_alone(graph, weight) for weight in (*outer.inputs[1:], *inner.inputs[1:])):
        yield anchor, outer.inputs[0]


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    outer, inner = (graph.nodes[name] for name in location)
    edit = GraphEdit(graph, location[0])
    inputs = [inner.inputs[0], edit.add("matmul", [outer.inputs[1], inner.inputs[1]])]
    if len(inner.inputs) > BIAS:
        inputs.append(edit.add("linear", [inner.inputs[BIAS], *outer.inputs[1:]]))
    else:
        inputs.extend(outer.inputs[BIAS:])
    edit.replace(location[0], edit.add("linear", inputs))
    return edit.done()


RULE = RewriteRule(
    name="ChainedLinears",
    source="associativity of matrix products; in the forward, so that both weights keep their exact gradients",
    anchors=frozenset({"linear"}),
    reach=5,
    find=_find,
    rewrite=_rewrite,
)
