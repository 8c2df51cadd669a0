"""Two nodes with the same computation on the same inputs: compute it once."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.operators import OPERATORS
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    for other in graph.users[node.inputs[0]]:
        twin = graph.nodes[other]
        earlier = (twin.order, other) < (node.order, anchor)
        if earlier and twin.content == node.content and not twin.effect:
            yield anchor, other
            return


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, twin = location
    edit = GraphEdit(graph, anchor)
    edit.replace(anchor, twin)
    return edit.done()


RULE = RewriteRule(
    name="CommonSubexpression",
    source="Cocke 1970, Global common subexpression elimination",
    anchors=OPERATORS,
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
