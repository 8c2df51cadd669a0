"""A mean over places of a layer that treats each place alike (1×1 convolution, linear): the layer after the mean."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, only_for


def is_pointwise(graph: OpGraph, node: OpNode) -> bool:
    """Return whether a node is a convolution that reads one pixel, once."""
    return (
        node.operator == "conv2d"
        and node.is_images
        and graph.nodes[node.inputs[1]].shape[2:] == (1, 1)
        and node.get("stride") == (1, 1)
        and node.get("padding") == (0, 0)
    )


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    name = node.inputs[0]
    layer = graph.nodes[name]
    if not only_for(graph, name, anchor) or not layer.shape:
        return
    if node.operator == "adaptive_avg_pool2d":
        holds = is_pointwise(graph, layer)
    else:
        dims = {one % len(layer.shape) for one in node.get("dim")}
        places = {2, 3} if is_pointwise(graph, layer) else set(range(len(layer.shape) - 1))
        whole = is_pointwise(graph, layer) and node.get("keepdim")
        holds = dims <= places and (whole or layer.operator == "linear")
    if holds and graph.nodes[layer.inputs[0]].shape:
        yield anchor, name


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    node, layer = (graph.nodes[name] for name in location)
    edit = GraphEdit(graph, location[0])
    mean = edit.add(node.operator, [layer.inputs[0]], **dict(node.attributes))
    edit.replace(location[0], edit.add(layer.operator, [mean, *layer.inputs[1:]], **dict(layer.attributes)))
    return edit.done()


RULE = RewriteRule(
    name="MeanFirst",
    source="linearity: a mean of places and a map of channels commute",
    anchors=frozenset({"adaptive_avg_pool2d", "mean"}),
    reach=3,
    find=_find,
    rewrite=_rewrite,
)
