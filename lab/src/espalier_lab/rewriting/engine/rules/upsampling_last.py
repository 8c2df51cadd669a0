"""A 1×1 convolution of an enlarged image: enlarge its output instead."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.mean_first import is_pointwise
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, only_for


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    layer = graph.nodes[anchor]
    larger = graph.nodes[layer.inputs[0]]
    if larger.operator == "interpolate" and is_pointwise(graph, layer) and only_for(graph, layer.inputs[0], anchor):
        yield anchor, layer.inputs[0]


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    layer, larger = (graph.nodes[name] for name in location)
    edit = GraphEdit(graph, location[0])
    small = edit.add("conv2d", [larger.inputs[0], *layer.inputs[1:]], **dict(layer.attributes))
    edit.replace(location[0], edit.add("interpolate", [small], **dict(larger.attributes)))
    return edit.done()


RULE = RewriteRule(
    name="UpsamplingLast",
    source="linearity: the weights of an interpolation sum to 1, so it and a map of channels commute",
    anchors=frozenset({"conv2d"}),
    reach=3,
    find=_find,
    rewrite=_rewrite,
)
