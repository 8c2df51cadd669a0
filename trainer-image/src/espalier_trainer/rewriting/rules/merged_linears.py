"""Linear layers that read the same tensor (query, key and value; several heads): one layer with the weights of all."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_trainer.rewriting.graph import Graph
from espalier_trainer.rewriting.rules.merging import merged
from espalier_trainer.rewriting.rules.rule import Location, Rule, mergeable


def _find(graph: Graph, anchor: str) -> Iterator[Location]:
    if location := mergeable(graph, anchor, lambda one, other: len(one.inputs) == len(other.inputs)):
        yield location


RULE = Rule(
    name="MergedLinears",
    source="Jia et al. 2019, TASO (SOSP), figure 9 (matrix multiplications that share an operand)",
    anchors=frozenset({"linear"}),
    reach=4,
    find=_find,
    rewrite=lambda graph, location: merged(graph, location, dim=len(graph.nodes[location[0]].shape) - 1),
)
