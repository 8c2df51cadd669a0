"""Convolutions of one size that read the same tensor: one convolution with the weights of all."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.rules.merging import merged
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, mergeable

_CHANNELS = 3
"""Place of the channels, counted from the last dimension, with or without a batch."""


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    def alike(one: OpNode, other: OpNode) -> bool:
        sizes = {graph.nodes[node.inputs[1]].shape[1:] for node in (one, other)}
        return one.attributes == other.attributes and len(one.inputs) == len(other.inputs) and len(sizes) == 1

    if graph.nodes[anchor].get("groups") == 1 and (location := mergeable(graph, anchor, alike, _dim(graph, anchor))):
        yield location


def _dim(graph: OpGraph, name: str) -> int:
    return len(graph.nodes[name].shape) - _CHANNELS


RULE = RewriteRule(
    name="MergedConvolutions",
    source="Jia et al. 2019, TASO (SOSP), figure 2",
    anchors=frozenset({"conv2d"}),
    reach=4,
    find=_find,
    rewrite=lambda graph, location: merged(graph, location, dim=_dim(graph, location[0])),
)
