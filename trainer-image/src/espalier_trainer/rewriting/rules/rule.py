"""What a rule is: where it holds, and what it puts there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from espalier_trainer.rewriting.graph import Graph, Node

Location = tuple[str, ...]
"""The nodes that a rule takes together, its anchor first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to compute the same otherwise; it never changes a parameter."""

    name: str
    source: str
    """Where the rewrite is described."""
    anchors: frozenset[str]
    """Operators of the node that a match is looked for at."""
    reach: int
    """Nodes on the longest way from an anchor to a node that a match depends on."""
    find: Callable[[Graph, str], Iterable[Location]]
    """Yields the locations at an anchor, always in the same order."""
    rewrite: Callable[[Graph, Location], Graph]
    """Returns the graph rewritten at a location that `find` yields for it."""


def weights_alone(graph: Graph, name: str, depth: int = 6) -> bool:
    """Return whether a node is computed from parameters and constants alone."""
    node = graph.nodes[name]
    if node.operator in ("parameter", "constant"):
        return True
    if node.operator == "input" or not node.inputs or depth == 0 or node.effect:
        return False
    return all(weights_alone(graph, one, depth - 1) for one in node.inputs)


def only_user(graph: Graph, name: str) -> Node | None:
    """Return the node that alone reads `name`, None where there is not exactly one."""
    users = graph.users[name]
    return graph.nodes[users[0]] if len(users) == 1 else None


def scalar_of(graph: Graph, name: str, operator: str) -> tuple[str, float] | None:
    """Return the tensor and the number of a node that computes `operator` of both, None for any other node."""
    node = graph.nodes[name]
    scalar = node.get("scalar")
    return (node.inputs[0], scalar) if node.operator == operator and scalar is not None else None
