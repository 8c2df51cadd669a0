"""Two nodes that compute the same of the same inputs: compute it once."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import Edit
from espalier_lab.rewriting.engine.graph import Graph
from espalier_lab.rewriting.engine.operators import OPERATORS
from espalier_lab.rewriting.engine.rules.rule import Location, Rule


def _find(graph: Graph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    for other in graph.users[node.inputs[0]]:
        twin = graph.nodes[other]
        earlier = (twin.order, other) < (node.order, anchor)
        if earlier and twin.content == node.content and not twin.effect:
            yield anchor, other
            return


def _rewrite(graph: Graph, location: Location) -> Graph:
    anchor, twin = location
    edit = Edit(graph, anchor)
    edit.replace(anchor, twin)
    return edit.done()


RULE = Rule(
    name="CommonSubexpression",
    source="Cocke 1970, Global common subexpression elimination",
    anchors=OPERATORS,
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
