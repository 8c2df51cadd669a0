"""conv(x) + x of a centred kernel: one convolution, with 1 added in the middle of its weight."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.added_convolutions import centred
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, only_for, weights_alone


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    for name, other in (node.inputs, node.inputs[::-1]) if len(set(node.inputs)) > 1 else ():
        layer = graph.nodes[name]
        if (
            centred(graph, layer) is not None
            and layer.inputs[0] == other
            and layer.get("groups") == 1
            and layer.shape == graph.nodes[other].shape
            and only_for(graph, name, anchor)
            and weights_alone(graph, layer.inputs[1])
        ):
            yield anchor, name


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, name = location
    layer = graph.nodes[name]
    edit = GraphEdit(graph, anchor)
    weight = edit.add("add", [layer.inputs[1], edit.add("identity_kernel", [layer.inputs[1]])])
    inputs = [layer.inputs[0], weight, *layer.inputs[2:]]
    edit.replace(anchor, edit.add("conv2d", inputs, **dict(layer.attributes)))
    return edit.done()


RULE = RewriteRule(
    name="ConvolutionWithShortcut",
    source="Ding et al. 2021, RepVGG (CVPR), section 3.3; here in the forward, so that training stays the same",
    anchors=frozenset({"add"}),
    reach=5,
    find=_find,
    rewrite=_rewrite,
)
