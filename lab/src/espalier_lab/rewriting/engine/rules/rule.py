"""The structure of a rule: the places where it applies, and its replacement."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

import torch

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph, OpNode

BIAS: Final = 2
"""Index of the bias among the inputs of a convolution or a linear layer, if it has one."""

Location = tuple[str, ...]
"""The nodes that a rule replaces together, its anchor first."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """An equivalent computation; it never changes a parameter."""

    name: str
    source: str
    """Reference for the rewrite."""
    anchors: frozenset[str]
    """Operators of the node at which a match is searched."""
    reach: int
    """Maximum distance, in nodes, from an anchor to a node that a match depends on."""
    find: Callable[[OpGraph, str], Iterable[Location]]
    """Yields the locations at an anchor, always in the same order."""
    rewrite: Callable[[OpGraph, Location], OpGraph]
    """Returns the graph rewritten at a location that `find` yields for it."""


def weights_alone(graph: OpGraph, name: str, depth: int = 6) -> bool:
    """Return whether a node is computed only from parameters and constants."""
    node = graph.nodes[name]
    if node.operator in ("parameter", "constant"):
        return True
    if node.operator == "input" or not node.inputs or depth == 0 or node.effect:
        return False
    return all(weights_alone(graph, one, depth - 1) for one in node.inputs)


def only_for(graph: OpGraph, name: str, user: str) -> bool:
    """Return whether only `user` reads `name`, so that it disappears with it."""
    return graph.users[name] == (user,)


def at_anchor(graph: OpGraph, anchor: str, operator: str, inputs: tuple[str, ...], **settings: Hashable) -> OpGraph:
    """Return the graph with `operator` in the place of `anchor`."""
    edit = GraphEdit(graph, anchor)
    edit.replace(anchor, edit.add(operator, inputs, **settings))
    return edit.done()


def mergeable(graph: OpGraph, anchor: str, alike: Callable[[OpNode, OpNode], bool], dim: int) -> Location | None:
    """Return the `alike` nodes with the first input of `anchor`, if there are others and `anchor` comes first.

    Their other inputs are only weights, so the nodes are independent, and their users can read a part along `dim` of
    one tensor.
    """
    first = graph.nodes[anchor]
    found = []
    for name in graph.users[first.inputs[0]]:
        node = graph.nodes[name]
        if node.operator != first.operator or node.inputs[0] != first.inputs[0] or not alike(first, node):
            continue
        if not all(weights_alone(graph, weight) for weight in node.inputs[1:]):
            continue
        if not all(_takes_a_part(graph.nodes[user], node.shape, dim) for user in graph.users[name]):
            continue
        if (node.order, name) < (first.order, anchor):
            return None  # another node is the anchor
        found.append((node.order, name))
    names = tuple(name for _, name in sorted(found))
    return names if len(names) > 1 and anchor in names else None


def _takes_a_part(user: OpNode, shape: tuple[int, ...], dim: int) -> bool:
    """Return whether a node can read a tensor of this shape that is a part, along `dim`, of a larger one.

    A view may not span the gaps between its rows, and a change of one part in place spoils the others' gradients.
    """
    if user.get("in_place"):
        return False
    if user.get("target") not in _VIEWS:
        return True
    whole = torch.empty((*shape[:dim], 2 * shape[dim], *shape[dim + 1 :]), device="meta")
    try:
        whole.narrow(dim, 0, shape[dim]).view(user.shape)
    except RuntimeError:
        return False
    return True


_VIEWS: Final = ("view", "view_as", torch.ops.aten.view.default)
"""Methods and operators that fail if memory does not allow a view."""


def scalar_of(graph: OpGraph, name: str, operator: str) -> tuple[str, float] | None:
    """Return the tensor and the number of a node that computes `operator` of both; None for any other node."""
    node = graph.nodes[name]
    scalar = node.get("scalar")
    return (node.inputs[0], scalar) if node.operator == operator and scalar is not None else None
