"""One rewrite of a graph: it adds nodes, redirects the users of a node, and removes unused nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from espalier_lab.rewriting.engine.graph import LEAVES, OUTPUT, OpGraph, OpNode, attributes
from espalier_lab.rewriting.engine.metas import inferred, laid_out
from espalier_lab.rewriting.engine.operators import OPERATORS


class GraphEdit:
    """A graph in the making; the original graph stays unchanged."""

    def __init__(self, graph: OpGraph, at: str) -> None:
        """Start from `graph`; new nodes take the place of the node `at` in the order of the forward."""
        self._graph = graph
        self._order = graph.nodes[at].order
        self._at = at
        self._nodes = dict(graph.nodes)
        self._users = dict(graph.users)
        self._index = dict(graph.index)
        self._changed: set[str] = set()
        self._left: list[str] = []

    def node(self, name: str) -> OpNode:
        """Return a node in its current state."""
        return self._nodes[name]

    def users(self, name: str) -> frozenset[str]:
        """Return the current readers of a node."""
        return frozenset(self._users[name])

    def add(self, operator: str, inputs: Sequence[str], **settings: Hashable) -> str:
        """Return the name of a node with this computation: an existing one, or a new one.

        Raise torch's error if shapes do not fit.
        """
        content = (operator, attributes(settings), tuple(inputs))
        known: str | None = self._index.get(content)
        if known is not None:
            return known
        name, count = f"{self._at}:{operator}", 1
        while name in self._nodes:
            count += 1
            name = f"{self._at}:{operator}{count}"
        meta = inferred(operator, content[1], tuple([self._nodes[one].meta for one in inputs]))
        self._put(name, OpNode(*content, meta, self._order))
        for one in set(inputs):
            self._users[one] = (*self._users[one], name)
            self._changed.add(one)
        self._users[name] = ()
        self._changed.add(name)
        return name

    def replace(self, old: str, new: str, keep: frozenset[str] = frozenset()) -> None:
        """Make all users of `old` except `keep` read `new` instead."""
        users = [user for user in self._users[old] if user not in keep]
        if not users or old == new:
            return
        self._users[old] = tuple([user for user in self._users[old] if user in keep])
        self._users[new] = tuple(dict.fromkeys([*self._users[new], *users]))
        other_layout = self._nodes[old].meta != self._nodes[new].meta
        for user in users:
            node = self._nodes[user]
            self._forget(user, node)
            self._put(user, replace(node, inputs=tuple([new if one == old else one for one in node.inputs])))
            if other_layout:
                self._relay(user)
        self._changed.update(users, (old, new))
        self._left.append(old)

    def done(self) -> OpGraph:
        """Return the new graph, without unused nodes."""
        while self._left:
            name = self._left.pop()
            node = self._nodes.get(name)
            if node is None or self._users[name] or node.effect or node.operator in (OUTPUT, "input"):
                continue
            del self._nodes[name], self._users[name]
            self._forget(name, node)
            self._changed.discard(name)
            for one in set(node.inputs):
                self._users[one] = tuple([user for user in self._users[one] if user != name])
                self._changed.add(one)
                self._left.append(one)
        return replace(
            self._graph,
            nodes=self._nodes,
            users=self._users,
            index=self._index,
            changed=frozenset(self._changed & self._nodes.keys()),
        )

    def _put(self, name: str, node: OpNode) -> None:
        self._nodes[name] = node
        if not node.effect:
            self._index.setdefault(node.content, name)

    def _forget(self, name: str, node: OpNode) -> None:
        if self._index.get(node.content) == name:
            del self._index[node.content]

    def _relay(self, name: str) -> None:
        """Update the memory layouts of a node's output and of the nodes after it."""
        waiting = [name]
        while waiting:
            one = waiting.pop()
            node = self._nodes[one]
            if node.operator in LEAVES or node.operator == OUTPUT:
                continue
            metas: tuple[Any, ...] = tuple([self._nodes[each].meta for each in node.inputs])
            known = node.operator in OPERATORS
            meta = inferred(node.operator, node.attributes, metas) if known else laid_out(node.meta, metas)
            self._changed.add(one)  # its cost changes even if its output's layout does not
            if meta != node.meta:
                self._nodes[one] = replace(node, meta=meta)
                waiting.extend(self._users[one])
