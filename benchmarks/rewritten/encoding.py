"""From a captured graph to egglog's terms, and from the members of an e-graph back to nodes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from espalier_lab.rewriting.engine.graph import LEAVES, Attributes, Meta, OpGraph, OpNode, Value, attributes
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
