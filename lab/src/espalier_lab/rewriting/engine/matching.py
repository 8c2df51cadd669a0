"""Places where rules apply. After a rewrite, only the nodes around its changes are examined again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules import RULES, Location, RewriteRule


@dataclass(frozen=True, slots=True)
class Match:
    """A rule, and a place where it applies."""

    rule: RewriteRule
    location: Location

    def applied(self, graph: OpGraph) -> OpGraph:
        """Return the graph after the rule."""
        return self.rule.rewrite(graph, self.location)


class Matches:
    """All matches of a graph, by their anchors."""

    def __init__(self, graph: OpGraph, rules: Sequence[RewriteRule] = RULES) -> None:
        """Examine every node."""
        self._rules = _Rules(rules)
        self._graph = graph
        self._at: Mapping[str, tuple[Match, ...]] = self._found(graph, graph.nodes)

    def after(self, graph: OpGraph) -> Matches:
        """Return the matches of a graph that one rewrite made from this one's."""
        other = object.__new__(Matches)
        other._rules, other._graph = self._rules, graph
        near = _near(graph, self._rules.reach)
        kept = {name: matches for name, matches in self._at.items() if name in graph.nodes and name not in near}
        other._at = kept | self._found(graph, near)
        return other

    def all(self) -> list[Match]:
        """Return the matches in the order of the forward; at one node, in the order of the rules."""
        nodes = self._graph.nodes
        names = sorted(self._at, key=lambda name: (nodes[name].order, name))
        return [match for name in names for match in self._at[name]]

    def _found(self, graph: OpGraph, names: Iterable[str]) -> dict[str, tuple[Match, ...]]:
        found = {}
        nodes, by_anchor = graph.nodes, self._rules.by_anchor
        for name in names:
            rules = by_anchor.get(nodes[name].operator)
            if rules and (matches := tuple(Match(rule, at) for rule in rules for at in rule.find(graph, name))):
                found[name] = matches
        return found


class _Rules:
    """Rules by the operators of their anchors."""

    def __init__(self, rules: Sequence[RewriteRule]) -> None:
        self.by_anchor: Final[dict[str, list[RewriteRule]]] = {}
        for rule in rules:
            for operator in rule.anchors:
                self.by_anchor.setdefault(operator, []).append(rule)
        self.reach: Final = max((rule.reach for rule in rules), default=0)


def _near(graph: OpGraph, reach: int) -> set[str]:
    """Return the nodes at most `reach` steps away from one that the last rewrite changed."""
    near = set(graph.changed)
    edge = near
    for _ in range(reach):
        edge = {one for name in edge for one in (*graph.nodes[name].inputs, *graph.users[name])} - near
        near |= edge
    return near
