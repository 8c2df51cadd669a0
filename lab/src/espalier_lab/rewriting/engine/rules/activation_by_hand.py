"""GELU (by erf or tanh) and SiLU written out: replaced by torch's own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, at_anchor, scalar_of

_EXACT = 1e-12
"""Tolerance of a written constant; beyond it, the function is another one."""

_CUBE, _CUBIC = 3, 0.044715


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    scale, factors = _factors(graph, anchor, top=anchor)
    if len(factors) != len(("tensor", "gate")):
        return
    for tensor, gate in (factors, factors[::-1]):
        if scale == 1 and graph.nodes[gate].operator == "sigmoid" and graph.nodes[gate].inputs == (tensor,):
            yield anchor, tensor, gate
            return
        plus = scalar_of(graph, gate, "add")
        if not plus or plus[1] != 1 or not _near(scale, 0.5):
            continue
        inner = graph.nodes[plus[0]]
        if inner.operator == "erf" and _is_scaled(graph, inner.inputs[0], tensor, math.sqrt(0.5)):
            yield anchor, tensor, plus[0]
            return
        if inner.operator == "tanh" and _is_cubic(graph, inner.inputs[0], tensor):
            yield anchor, tensor, plus[0]
            return


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, tensor, gate = location
    kind = graph.nodes[gate].operator
    if kind == "sigmoid":
        return at_anchor(graph, anchor, "silu", (tensor,))
    return at_anchor(graph, anchor, "gelu", (tensor,), approximate="none" if kind == "erf" else "tanh")


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_EXACT)


def _factors(graph: OpGraph, name: str, top: str, depth: int = 3) -> tuple[float, tuple[str, ...]]:
    """Return a product as a number and tensors; a factor with other readers counts as one tensor."""
    node = graph.nodes[name]
    if depth == 0 or node.operator not in ("mul", "div"):
        return 1.0, (name,)
    if name != top and len(graph.users[name]) != 1:
        return 1.0, (name,)
    scalar = node.get("scalar")
    if node.operator == "div":
        if not scalar:
            return 1.0, (name,)
        scalar = 1 / scalar
    parts = [_factors(graph, one, top, depth - 1) for one in node.inputs]
    number = math.prod(one for one, _ in parts) * (1.0 if scalar is None else scalar)
    return number, tuple(one for _, tensors in parts for one in tensors)


def _is_scaled(graph: OpGraph, name: str, tensor: str, by: float) -> bool:
    scale, factors = _factors(graph, name, top=name)
    return factors == (tensor,) and _near(scale, by)


def _is_cubic(graph: OpGraph, name: str, tensor: str) -> bool:
    """Return whether a node is √(2/π) (x + .044715 x³)."""
    scale, factors = _factors(graph, name, top=name)
    if len(factors) != 1 or not _near(scale, math.sqrt(2 / math.pi)):
        return False
    total = graph.nodes[factors[0]]
    if total.operator != "add" or tensor not in total.inputs or len(set(total.inputs)) == 1:
        return False
    other = next(one for one in total.inputs if one != tensor)
    scale, factors = _factors(graph, other, top=other)
    if not _near(scale, _CUBIC):
        return False
    cube = scalar_of(graph, factors[0], "pow") if len(factors) == 1 else None
    return cube == (tensor, _CUBE) or factors == (tensor,) * _CUBE


RULE = RewriteRule(
    name="ActivationByHand",
    source="Hendrycks & Gimpel 2016, GELU (arXiv 1606.08415), equations 1 and 2",
    anchors=frozenset({"mul", "div"}),
    reach=8,
    find=_find,
    rewrite=_rewrite,
)
