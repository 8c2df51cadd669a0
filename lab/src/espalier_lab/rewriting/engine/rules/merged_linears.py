"""Linear layers that read the same tensor (query, key and value; several heads): one layer with the weights of all."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.rules.merging import merged
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, mergeable


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    def alike(one: OpNode, other: OpNode) -> bool:
        return len(one.inputs) == len(other.inputs)

    if location := mergeable(graph, anchor, alike, _dim(graph, anchor)):
        yield location


def _dim(graph: OpGraph, name: str) -> int:
    return len(graph.nodes[name].shape) - 1


RULE = RewriteRule(
    name="MergedLinears",
    source="Jia et al. 2019, TASO (SOSP), figure 9 (matrix multiplications that share an operand)",
    anchors=frozenset({"linear"}),
    reach=4,
    find=_find,
    rewrite=lambda graph, location: merged(graph, location, dim=_dim(graph, location[0])),
)
