"""Operations that undo, or repeat, one another: transpose(transpose(x)), relu(relu(x)), x · 1, x + 0."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule

_NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0}


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    name = node.inputs[0]
    inner = graph.nodes[name]
    if node.operator == "relu":
        if inner.operator == "relu":
            yield anchor, name
    elif node.operator == "transpose":
        dims = len(node.shape)
        swaps = [
            {each.get("dim0") % dims, each.get("dim1") % dims}
            for each in (node, inner)
            if each.operator == node.operator
        ]
        if len(swaps) > 1 and swaps[0] == swaps[1]:
            yield anchor, inner.inputs[0]
    elif node.get("scalar") == _NEUTRAL[node.operator] and inner.meta == node.meta:
        yield anchor, name


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    edit = GraphEdit(graph, location[0])
    edit.replace(location[0], location[1])
    return edit.done()


RULE = RewriteRule(
    name="Cancelling",
    source="algebraic identities; TensorFlow's Grappler (Larsen & Shpeisman 2019) has the same",
    anchors=frozenset({"relu", "transpose", *_NEUTRAL}),
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
