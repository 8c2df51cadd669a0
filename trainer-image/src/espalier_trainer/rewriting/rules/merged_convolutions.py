"""Convolutions that read the same tensor: one convolution with the weights of both, put together in the forward."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_trainer.rewriting.editing import Edit
from espalier_trainer.rewriting.graph import Graph, Node
from espalier_trainer.rewriting.rules.rule import Location, Rule, weights_alone

_WITH_BIAS = 3
"""Inputs of a convolution that has a bias."""


def _alike(graph: Graph, one: Node, other: Node) -> bool:
    return (
        other.operator == "conv2d"
        and other.inputs[0] == one.inputs[0]
        and other.attributes == one.attributes
        and len(other.inputs) == len(one.inputs)
        and graph.nodes[other.inputs[1]].shape[1:] == graph.nodes[one.inputs[1]].shape[1:]
        and all(weights_alone(graph, weight) for weight in other.inputs[1:])
    )


def _find(graph: Graph, anchor: str) -> Iterator[Location]:
    first = graph.nodes[anchor]
    if first.get("groups") != 1 or not all(weights_alone(graph, weight) for weight in first.inputs[1:]):
        return
    others = []
    for name in graph.users[first.inputs[0]]:
        node = graph.nodes[name]
        if name != anchor and _alike(graph, first, node):
            if (node.order, name) < (first.order, anchor):
                return  # that one is the anchor
            others.append(name)
    if others:
        yield (anchor, *sorted(others, key=lambda name: (graph.nodes[name].order, name)))


def _rewrite(graph: Graph, location: Location) -> Graph:
    convolutions = [graph.nodes[name] for name in location]
    edit = Edit(graph, location[0])
    weights = [edit.add("cat", [one.inputs[part] for one in convolutions], dim=0) for part in _parts(convolutions[0])]
    merged = edit.add("conv2d", [convolutions[0].inputs[0], *weights], **dict(convolutions[0].attributes))
    start = 0
    for name, one in zip(location, convolutions, strict=True):
        width = one.shape[1]
        edit.replace(name, edit.add("narrow", [merged], dim=1, start=start, length=width))
        start += width
    return edit.done()


def _parts(convolution: Node) -> range:
    return range(1, _WITH_BIAS if len(convolution.inputs) == _WITH_BIAS else _WITH_BIAS - 1)


RULE = Rule(
    name="MergedConvolutions",
    source="Jia et al. 2019, TASO (SOSP), figure 2",
    anchors=frozenset({"conv2d"}),
    reach=3,
    find=_find,
    rewrite=_rewrite,
)
