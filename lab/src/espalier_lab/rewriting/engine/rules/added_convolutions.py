"""conv(x) + conv(x) of centred kernels: one convolution with the sum of the weights, the smaller one padded."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.rules.rule import BIAS, Location, RewriteRule, only_for, weights_alone

_OPERANDS = 2


def centred(graph: OpGraph, node: OpNode) -> tuple[int, ...] | None:
    """Return the size of the kernel of a convolution that keeps the size of its input, None for any other node."""
    if node.operator != "conv2d" or node.get("stride") != (1, 1) or node.get("dilation") != (1, 1):
        return None
    size = graph.nodes[node.inputs[1]].shape[2:]
    return size if all(2 * pad + 1 == side for pad, side in zip(node.get("padding"), size, strict=True)) else None


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    if len(node.inputs) != _OPERANDS or node.inputs[0] == node.inputs[1]:
        return
    first, second = (graph.nodes[name] for name in node.inputs)
    sizes = centred(graph, first), centred(graph, second)
    if None in sizes or first.inputs[0] != second.inputs[0] or first.get("groups") != second.get("groups"):
        return
    if first.shape != second.shape:
        return  # one has a single channel, which the sum repeats
    weights = (*first.inputs[1:], *second.inputs[1:])
    if not all(only_for(graph, name, anchor) for name in node.inputs) or not all(
        weights_alone(graph, one) for one in weights
    ):
        return
    large, small = sorted(zip(sizes, node.inputs, strict=True), key=lambda pair: pair[0] or (), reverse=True)
    if all(one >= other for one, other in zip(large[0] or (), small[0] or (), strict=True)):
        yield anchor, large[1], small[1]


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    large, small = (graph.nodes[name] for name in location[1:])
    edit = GraphEdit(graph, location[0])
    weight = small.inputs[1]
    size, less = (graph.nodes[node.inputs[1]].shape[2:] for node in (large, small))
    if size != less:
        high, wide = ((one - other) // 2 for one, other in zip(size, less, strict=True))
        weight = edit.add("pad", [weight], pad=(wide, wide, high, high))
    inputs = [large.inputs[0], edit.add("add", [large.inputs[1], weight])]
    biases = [node.inputs[BIAS] for node in (large, small) if len(node.inputs) > BIAS]
    if biases:
        inputs.append(biases[0] if len(biases) == 1 else edit.add("add", biases))
    edit.replace(location[0], edit.add("conv2d", inputs, **dict(large.attributes)))
    return edit.done()


RULE = RewriteRule(
    name="AddedConvolutions",
    source="Ding et al. 2021, RepVGG (CVPR), section 3.3; here in the forward, so that training stays the same",
    anchors=frozenset({"add"}),
    reach=5,
    find=_find,
    rewrite=_rewrite,
)
