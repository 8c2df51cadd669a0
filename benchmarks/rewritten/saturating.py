"""Equality saturation of a captured graph by egglog (Zhang et al. 2023): all rules at once, then the cheapest graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from egglog.bindings import EGraph

from espalier_lab.rewriting.engine import OperatorCosts
from espalier_lab.rewriting.engine.graph import OUTPUT, Meta, OpGraph, OpNode, assembled
from espalier_lab.rewriting.engine.metas import inferred
from espalier_lab.rewriting.engine.operators import OPERATORS
from rewritten.encoding import Encoding, Member
from rewritten.extraction import Choice, ExtractionError, Members, by_greedy_graph, by_tree, exact

RULES: Final = Path(__file__).with_name("rules.egg").read_text()
ITERATIONS: Final = 30
MEMBERS: Final = 20_000
"""Of an e-graph that grows no further."""
EXTRACTION_SECONDS: Final = 60.0
"""That an integer program may take."""
EXTRACTIONS: Final[Mapping[str, Callable[[Members, Sequence[str]], Choice]]] = {
    "tree": by_tree,
    "greedy": by_greedy_graph,
    "exact": lambda classes, roots: exact(classes, roots, EXTRACTION_SECONDS),
}

Classes = dict[str, list[Member]]


@dataclass(frozen=True)
class Saturated:
    """An e-graph in which the rules were applied, ready to be extracted from."""

    graph: OpGraph
    """That it was made of."""
    nodes: Mapping[str, Sequence[OpNode]]
    """The members of each class; they read classes."""
    priced: Members
    places: Mapping[str, float]
    """Of the classes of captured nodes, in the order of the forward."""
    roots: Sequence[str]
    whole: bool
    """Whether the rules have nothing to add; otherwise a limit was met."""

    def members(self) -> int:
        """Return how many e-nodes compute something."""
        return sum(map(len, self.nodes.values()))

    def extracted(self, kind: str) -> OpGraph:
        """Return the cheapest graph as one of `EXTRACTIONS` finds it.

        Raises `ExtractionError` where it finds none in time, or one that would draw random numbers in another order.
        """
        choice = EXTRACTIONS[kind](self.priced, self.roots)
        orders = self._orders(choice)
        found = {}
        for name, number in choice.items():
            node = self.nodes[name][number]
            found[OUTPUT if node.operator == OUTPUT else name] = replace(node, order=orders[name])
        graph = replace(assembled(found, self.graph.constants), both_modes=self.graph.both_modes)
        effects = [[each.nodes[one].order for one in each.effects()] for each in (graph, self.graph)]
        if effects[0] != effects[1]:
            raise ExtractionError("random draws, or updates of buffers, would change their order")
        return graph

    def _orders(self, choice: Choice) -> dict[str, float]:
        """Return for each class its place in the forward; a new one has that of the first that reads it."""
        orders: dict[str, float] = {}
        waiting = [(root, self.places.get(root, 0.0)) for root in self.roots]
        while waiting:
            name, reader = waiting.pop()
            order = self.places.get(name, reader)
            if order < orders.get(name, order + 1):
                orders[name] = order
                waiting += [(one, order) for one in self.nodes[name][choice[name]].inputs]
        return orders


def saturated(
    graph: OpGraph, costs: OperatorCosts, *, iterations: int = ITERATIONS, members: int = MEMBERS
) -> Saturated:
    """Return what is equal to `graph` by the rules, with the seconds of each e-node by the table."""
    encoding = Encoding(graph)
    egraph = EGraph()
    _run(egraph, "\n".join([RULES, *encoding.lines]))
    whole = False
    for _ in range(iterations):
        whole = not _run(egraph, "(run 1)")[0].report.updated
        classes, numbers = _read(egraph)
        if whole or sum(map(len, classes.values())) > members:
            break
    captured = {name: graph.nodes[encoding.names[number]] for name, number in numbers.items()}
    nodes = _nodes(encoding, classes, {name: node.meta for name, node in captured.items()})
    places = {name: node.order for name, node in captured.items()}
    places |= {name: node.order for name, each in nodes.items() for node in each if node.effect}
    everything: dict[str, OpNode] = {}
    for name, each in nodes.items():
        everything |= {name: each[0]} | {f"{name}/{number}": node for number, node in enumerate(each)}
    table = OpGraph(everything, {}, {})
    priced = {
        name: [(costs.of(table, f"{name}/{number}"), node.inputs) for number, node in enumerate(each)]
        for name, each in nodes.items()
    }
    roots = [name for name, (node, *_) in nodes.items() if node.effect or node.operator in (OUTPUT, "input")]
    return Saturated(graph, nodes, priced, places, roots, whole)


def _run(egraph: EGraph, program: str) -> list[Any]:
    return egraph.run_program(*egraph.parse_program(program))


def _read(egraph: EGraph) -> tuple[Classes, dict[str, int]]:
    """Return the members of each class of tensors, and the number of the first captured node of those that have one."""
    nodes = json.loads(egraph.serialize([]).to_json())["nodes"]
    numbers = {each["eclass"]: each["op"] for name, each in nodes.items() if name.startswith("primitive-i64")}
    absent = next(each["eclass"] for each in nodes.values() if each["op"] == "None")

    def plain(node: dict[str, Any]) -> Any:
        if node["op"] in ("vec-of", "vec-empty"):
            return tuple(plain(nodes[one]) for one in node["children"])
        return json.loads(node["op"])

    classes: Classes = {}
    places: dict[str, int] = {}
    for each in nodes.values():
        children = [nodes[one] for one in each["children"]]
        if each["op"] == "place":
            places[children[0]["eclass"]] = int(numbers[each["eclass"]])
        if not each["op"][0].isupper() or each["eclass"] == absent:
            continue
        inputs: list[str] = []
        settings: list[Any] = []
        for child in children:
            if child["eclass"].startswith("Tensors-"):
                inputs += [nodes[one]["eclass"] for one in child["children"]]
            elif child["eclass"].startswith("Tensor-"):
                inputs.append(child["eclass"])
            else:
                settings.append(plain(child))
        read = tuple(one for one in inputs if one != absent)
        classes.setdefault(each["eclass"], []).append(Member(each["op"].lower(), tuple(settings), read))
    return classes, places


def _nodes(encoding: Encoding, classes: Classes, metas: dict[str, Meta]) -> dict[str, list[OpNode]]:
    """Return the members of each class as nodes; `metas` are those of captured classes, others are inferred."""
    found: dict[str, list[OpNode]] = {name: [] for name in classes}
    waiting = [(name, member) for name, members in classes.items() for member in members]
    while waiting:
        late = []
        for name, member in waiting:
            if not all(one in metas for one in member.inputs):
                late.append((name, member))
                continue
            inputs = tuple([metas[one] for one in member.inputs])
            node = encoding.node(member, inputs)
            if name not in metas:
                metas[name] = (
                    inferred(node.operator, node.attributes, inputs) if node.operator in OPERATORS else node.meta
                )
            found[name].append(replace(node, meta=metas[name]))
        if len(late) == len(waiting):
            break  # a class that nothing computes without itself
        waiting = late
    return {name: nodes for name, nodes in found.items() if nodes}
