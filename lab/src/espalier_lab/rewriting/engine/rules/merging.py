"""Layers that read the same tensor, merged into one layer whose weights are concatenated in the forward."""

from __future__ import annotations

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location


def merged(graph: OpGraph, location: Location, dim: int) -> OpGraph:
    """Return the graph with the layers of `location` merged; each user reads a part of the output along `dim`.

    Weights and biases are concatenated along their first dimension.
    """
    layers = [graph.nodes[name] for name in location]
    first = layers[0]
    edit = GraphEdit(graph, location[0])
    weights = [edit.add("cat", [one.inputs[part] for one in layers], dim=0) for part in range(1, len(first.inputs))]
    one_layer = edit.add(first.operator, [first.inputs[0], *weights], **dict(first.attributes))
    start = 0
    for name, layer in zip(location, layers, strict=True):
        width = layer.shape[dim]
        edit.replace(name, edit.add("narrow", [one_layer], dim=dim, start=start, length=width))
        start += width
    return edit.done()
