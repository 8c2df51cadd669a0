"""Equality saturation of a captured graph by egglog (Zhang et al. 2023): all rules at once, then the cheapest graph.

A captured graph becomes egglog's terms, and the members of an e-graph become nodes again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from egglog.bindings import EGraph

from bench.rewritten.extraction import Choice, ExtractionError, Members, by_greedy_graph, by_tree, exact
from espalier_lab.rewriting.engine import OperatorCosts
from espalier_lab.rewriting.engine.graph import (
    LEAVES,
    OUTPUT,
    Attributes,
    Meta,
    OpGraph,
    OpNode,
    Value,
    assembled,
    attributes,
)
from espalier_lab.rewriting.engine.metas import inferred
from espalier_lab.rewriting.engine.operators import OPERATORS
from espalier_lab.rewriting.engine.rules.rule import weights_alone

Settings = dict[str, Any]

_SCALED: Final = {"add": "plus", "sub": "minus", "mul": "times", "div": "over", "pow": "power"}
"""Terms of operators with a number."""
_TERMS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    **dict.fromkeys(("relu", "sigmoid", "silu", "tanh", "erf", "sqrt", "rsqrt"), (1, ())),
    **dict.fromkeys(("logical_not", "identity_kernel"), (1, ())),
    **dict.fromkeys(("matmul", "add", "sub", "mul", "div"), (2, ())),
    **dict.fromkeys(_SCALED.values(), (1, ("scalar",))),
    "linear": (3, ()),
    "conv2d": (3, ("number",)),
    "interpolate": (1, ("number",)),
    "gelu": (1, ("approximate",)),
    "softmax": (1, ("dim",)),
    "transpose": (1, ("dim0", "dim1")),
    "mean": (1, ("dim", "keepdim")),
    "var": (1, ("dim", "correction", "keepdim")),
    "layer_norm": (3, ("normalized_shape", "eps")),
    "masked_fill": (2, ()),
    "attention": (4, ("scale",)),
    "adaptive_avg_pool2d": (1, ("output_size",)),
    "pad": (1, ("pad",)),
    "narrow": (1, ("dim", "start", "length")),
}  # fmt: skip
"""For each term its tensors and the settings after them, as rules.egg declares them; `cat` takes any number."""
_ALWAYS: Final[Mapping[str, Settings]] = {"masked_fill": {"value": -math.inf}, "attention": {"is_causal": False}}
"""Settings that a term stands for."""


@dataclass(frozen=True, slots=True)
class Member:
    """One way to compute a class, as egglog has it."""

    term: str
    settings: tuple[Hashable, ...]
    inputs: tuple[str, ...]
    """Classes, without tensors that are not there."""


class Encoding:
    """A captured graph as a program of egglog, and what its terms stand for."""

    def __init__(self, graph: OpGraph) -> None:
        """Write every node, with the facts about it."""
        self._graph = graph
        self.lines: list[str] = []
        self.names = graph.ordered()
        """Of nodes, by the numbers that the facts about their places have."""
        self._named: list[str] = []
        """Names of leaves, and of nodes that no rule looks into, by their numbers."""
        self._numbers: dict[Hashable, int] = {}
        self._kinds: list[Attributes] = []
        """Settings of convolutions and interpolations by their numbers."""
        self._written: dict[tuple[str, int, tuple[Hashable, ...]], Settings] = {}
        """How the forward writes settings that terms have in one form (dimensions from the end, the order of two)."""
        self._of: dict[str, str] = {}
        types: dict[object, int] = {}
        for place, name in enumerate(self.names):
            node, term = graph.nodes[name], f"$n{place}"
            self.lines.append(f"(let {term} {self._term(name, node)})")
            self._of[name] = term
            if isinstance(node.meta, Value):
                kind = types.setdefault(node.meta.dtype, len(types))
                facts = {"floating": node.meta.dtype.is_floating_point, "held": not node.meta.grad}
                facts["alone"] = weights_alone(graph, name)
                self.lines += [f"(set (shape {term}) {_literal(node.shape)})", f"(set (place {term}) {place})"]
                self.lines += [f"(set (type {term}) {kind})", *(f"({one} {term})" for one in facts if facts[one])]

    def node(self, member: Member, metas: tuple[Meta, ...]) -> OpNode:
        """Return a member as a node of ours that reads classes with these metas; its own meta is None if it is new."""
        if member.term in ("leaf", "call"):
            known = self._graph.nodes[self._named[int(str(member.settings[0]))]]
            return replace(known, inputs=member.inputs)
        rank = len(metas[0].shape) if isinstance(metas[0], Value) else 0
        operator = _OF_SCALED.get(member.term, member.term)
        settings = self._written.get((member.term, rank, member.settings))
        if settings is None:
            settings = dict(
                zip(("dim",) if operator == "cat" else _TERMS[member.term][1], member.settings, strict=True)
            )
            if "number" in settings:
                settings = dict(self._kinds[settings["number"]])
            settings |= _ALWAYS.get(operator, {})
        return OpNode(operator, attributes(settings), member.inputs, None, 0.0)

    def _term(self, name: str, node: OpNode) -> str:
        inputs = [self._of[one] for one in node.inputs]
        plain = self._plain(node)
        if node.operator in LEAVES:
            return f"(Leaf {self._number(name, name)})"
        if plain is None:
            number = self._number(name if node.effect or not node.inputs else (node.operator, node.attributes), name)
            return f"(Call {number} {_vector(inputs)})"
        term, settings = plain
        if term == "cat":
            return f"(Cat {_vector(inputs)} {settings[0]})"
        inputs += ["(None)"] * (_TERMS[term][0] - len(inputs))
        self._written.setdefault((term, len(self._graph.nodes[node.inputs[0]].shape), settings), dict(node.attributes))
        return f"({' '.join([term.capitalize(), *inputs, *map(_literal, settings)])})"

    def _plain(self, node: OpNode) -> tuple[str, tuple[Any, ...]] | None:
        """Return the term of a node and its settings in one form; None where no rule looks into it."""
        settings: Settings = dict(node.attributes)
        term = _SCALED.get(node.operator, node.operator) if "scalar" in settings else node.operator
        if (term not in _TERMS and term != "cat") or node.effect or term in ("attention", "pad"):
            return None
        if any(settings.get(name) != value for name, value in _ALWAYS.get(term, {}).items()):
            return None
        rank = len(self._graph.nodes[node.inputs[0]].shape)
        if term == "cat":
            return term, (settings["dim"] % rank,)
        if term == "transpose":
            return term, tuple(sorted(one % rank for one in settings.values()))
        if term in ("conv2d", "interpolate"):
            return term, (self._kind(node),)
        if "dim" in settings:
            dim = settings["dim"]
            settings["dim"] = tuple(sorted(one % rank for one in dim)) if isinstance(dim, tuple) else dim % rank
        if "scalar" in settings:
            settings["scalar"] = float(settings["scalar"])
        return term, tuple(settings[one] for one in _TERMS[term][1])

    def _number(self, key: Hashable, name: str) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._named)
            self._named.append(name)
        return self._numbers[key]

    def _kind(self, node: OpNode) -> int:
        if node.attributes in self._kinds:
            return self._kinds.index(node.attributes)
        self._kinds.append(node.attributes)
        number = len(self._kinds) - 1
        if node.operator == "conv2d":
            pads, groups = node.get("padding"), node.get("groups")
            if node.get("stride") == node.get("dilation") == (1, 1):
                self.lines.append(f"(settings {number} {pads[0]} {pads[1]} {groups})")
            self.lines += [f"(dense {number})"] * (groups == 1)
        return number


_OF_SCALED: Final = {term: operator for operator, term in _SCALED.items()}


def _vector(terms: list[str]) -> str:
    return f"(vec-of {' '.join(terms)})" if terms else "(vec-empty)"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return _vector([*map(_literal, value)])
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


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
