"""softmax(Q Kᵀ · scale, masked) V written out, without dropout: torch's scaled_dot_product_attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph, OpNode
from espalier_lab.rewriting.engine.metas import has_grad
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule, only_for

_DIMENSIONS = (3, 4)
_OPERANDS = 2


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    soft = graph.nodes[node.inputs[0]]
    if soft.operator != "softmax" or not only_for(graph, node.inputs[0], anchor):
        return
    if soft.get("dim") not in (-1, len(soft.shape) - 1):
        return
    names = [node.inputs[0], soft.inputs[0]]
    while (step := graph.nodes[names[-1]]).operator in ("mul", "div", "add", "masked_fill"):
        if not only_for(graph, names[-1], names[-2]) or not _is_taken(graph, step):
            return
        names.append(step.inputs[0])
    scores = graph.nodes[names[-1]]
    if scores.operator != "matmul" or not only_for(graph, names[-1], names[-2]):
        return
    key = graph.nodes[scores.inputs[1]]
    if key.operator != "transpose" or not _swaps_last(key):
        return
    query, value = graph.nodes[scores.inputs[0]], graph.nodes[node.inputs[1]]
    keys = graph.nodes[key.inputs[0]]
    alike = query.shape[:-2] == keys.shape[:-2] == value.shape[:-2] and query.shape[-1] == keys.shape[-1]
    kept = all(graph.nodes[name].shape == scores.shape for name in names[1:-1])  # no mask repeats them
    if alike and kept and len(query.shape) in _DIMENSIONS and _fits(graph, names[1:-1], query):
        yield (anchor, *names)


def _fits(graph: OpGraph, steps: list[str], query: OpNode) -> bool:
    """Return whether attention computes `steps`, from the softmax back to the scores, in its own order.

    It scales first, and then applies at most one mask, of the query's type.
    """
    operators = [graph.nodes[name].operator for name in steps]
    masks = [place for place, one in enumerate(operators) if one in ("add", "masked_fill")]
    scales = [place for place, one in enumerate(operators) if one in ("mul", "div")]
    if len(masks) > 1 or (masks and scales and min(scales) < masks[0]):
        return False
    added = [graph.nodes[graph.nodes[steps[place]].inputs[1]] for place in masks if operators[place] == "add"]
    return all(mask.value.dtype == query.value.dtype for mask in added)


def _is_taken(graph: OpGraph, node: OpNode) -> bool:
    """Return whether attention supports a step between the scores and their softmax."""
    if node.operator in ("mul", "div"):
        return node.get("scalar") is not None
    if node.operator == "masked_fill":
        return bool(node.get("value") == -math.inf)
    return len(node.inputs) == _OPERANDS and not has_grad(graph.nodes[node.inputs[1]].meta)


def _swaps_last(node: OpNode) -> bool:
    dims = len(node.shape)
    return {node.get("dim0") % dims, node.get("dim1") % dims} == {dims - 1, dims - 2}


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    anchor, _, *names, scores = location
    edit = GraphEdit(graph, anchor)
    scale, masks = 1.0, []
    for name in names:
        node = graph.nodes[name]
        if node.operator == "mul":
            scale *= node.get("scalar")
        elif node.operator == "div":
            scale /= node.get("scalar")
        elif node.operator == "masked_fill":
            masks.append(edit.add("logical_not", [node.inputs[1]]))
        else:
            masks.append(node.inputs[1])
    query, key = graph.nodes[scores].inputs
    inputs = [query, graph.nodes[key].inputs[0], graph.nodes[anchor].inputs[1], *masks]
    edit.replace(anchor, edit.add("attention", inputs, is_causal=False, scale=scale))
    return edit.done()


RULE = RewriteRule(
    name="AttentionByHand",
    source="Vaswani et al. 2017 (arXiv 1706.03762), equation 1; Dao et al. 2022, FlashAttention (arXiv 2205.14135)",
    anchors=frozenset({"matmul"}),
    reach=7,
    find=_find,
    rewrite=_rewrite,
)
