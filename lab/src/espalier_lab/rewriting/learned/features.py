"""A learner's view of a graph: a row of features per node, and its edges."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.operators import OPERATORS
from espalier_lab.rewriting.engine.search import SearchState

KINDS: Final = (*sorted(OPERATORS), "module", "call", "method", "input", "constant", "output")
_KIND: Final = {kind: place for place, kind in enumerate(KINDS)}
_DIMENSIONS: Final = 4

FEATURES: Final = len(KINDS) + 2 * _DIMENSIONS + 3
"""Number of features of a node: its operator (one-hot), log₂ of the sizes of its output and of its first weight (the
last four dimensions, 0 where there is none, divided by 10), its layout, whether it has a gradient, and its share of the
graph's cost at the start."""

Row = NDArray[np.float32]


def is_shown(node: OpNode) -> bool:
    """Return whether a node is in the observation: parameters are features of their readers."""
    return node.operator != "parameter"


def row(state: SearchState, name: str, whole: float) -> Row:
    """Return the features of a node; `whole` is the initial cost of the graph."""
    graph, node = state.graph, state.graph.nodes[name]
    features = np.zeros(FEATURES, np.float32)
    features[_KIND[node.operator]] = 1
    at = len(KINDS)
    features[at : at + _DIMENSIONS] = _sizes(node.shape)
    weight = next((graph.nodes[one] for one in node.inputs if graph.nodes[one].operator == "parameter"), None)
    if weight is not None:
        features[at + _DIMENSIONS : at + 2 * _DIMENSIONS] = _sizes(weight.shape)
    value = node.value if node.shape else None
    features[-3:] = (
        float(value is not None and value.channels_last),
        float(value is not None and value.grad),
        state.sums.node(name) / whole,
    )
    return features


def edges(graph: OpGraph, places: dict[str, int]) -> list[tuple[int, int]]:
    """Return pairs of a node and its reader, by their places in the observation."""
    nodes = graph.nodes
    return [(places[one], place) for name, place in places.items() for one in nodes[name].inputs if one in places]


def _sizes(shape: tuple[int, ...]) -> list[float]:
    sizes = [math.log2(size + 1) / 10 for size in shape[-_DIMENSIONS:]]
    return [0.0] * (_DIMENSIONS - len(sizes)) + sizes
