"""(x − mean) / √(var + ε) written out: torch's layer norm."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, at_anchor, scalar_of

_SQUARE = 2
_OPERANDS = 2


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    if len(node.inputs) != _OPERANDS:
        return
    for centred, root in (node.inputs, node.inputs[::-1]) if node.operator == "mul" else (node.inputs,):
        tensor = _centred(graph, centred)
        inner = graph.nodes[root]
        if tensor is None or inner.operator != ("sqrt" if node.operator == "div" else "rsqrt"):
            continue
        with_eps = scalar_of(graph, inner.inputs[0], "add")
        if with_eps and _is_variance(graph, with_eps[0], tensor, centred):
            yield anchor, tensor, inner.inputs[0]
            return


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, tensor, with_eps = location
    width = graph.nodes[tensor].shape[-1]
    eps = graph.nodes[with_eps].get("scalar")
    return at_anchor(graph, anchor, "layer_norm", (tensor,), normalized_shape=(width,), eps=eps)


def _over_last(graph: OpGraph, name: str, operator: str) -> str | None:
    """Return the input of a mean or variance along the last dimension, which is kept; None for another node."""
    node = graph.nodes[name]
    if node.operator != operator or not node.get("keepdim"):
        return None
    dims = len(graph.nodes[node.inputs[0]].shape)
    return node.inputs[0] if [one % dims for one in node.get("dim")] == [dims - 1] else None


def _centred(graph: OpGraph, name: str) -> str | None:
    """Return x of x − mean(x)."""
    node = graph.nodes[name]
    if node.operator != "sub" or len(node.inputs) != _OPERANDS:
        return None
    return node.inputs[0] if _over_last(graph, node.inputs[1], "mean") == node.inputs[0] else None


def _is_variance(graph: OpGraph, name: str, tensor: str, centred: str) -> bool:
    if graph.nodes[name].operator == "var":
        return _over_last(graph, name, "var") == tensor and graph.nodes[name].get("correction") == 0
    squared = _over_last(graph, name, "mean")
    if squared is None:
        return False
    square = scalar_of(graph, squared, "pow")
    base = square[0] if square and square[1] == _SQUARE else _squared(graph, squared)
    return base is not None and (base == centred or _centred(graph, base) == tensor)


def _squared(graph: OpGraph, name: str) -> str | None:
    """Return a of a · a."""
    node = graph.nodes[name]
    twice = node.operator == "mul" and len(node.inputs) == _OPERANDS and node.inputs[0] == node.inputs[1]
    return node.inputs[0] if twice else None


RULE = RewriteRule(
    name="LayerNormByHand",
    source="Ba et al. 2016, Layer Normalization (arXiv 1607.06450), equation 3",
    anchors=frozenset({"div", "mul"}),
    reach=6,
    find=_find,
    rewrite=_rewrite,
)
