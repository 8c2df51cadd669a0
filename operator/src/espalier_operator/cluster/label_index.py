"""Which of many nodes constraints admit, without a look at each node. Pure.

Tenants may write a thousand different constraints. Nodes that none of them tells apart are one group, so there are no
more groups than values that constraints name; and which groups one admits is computed from sets of groups by value,
not group by group. The answers are those of `Constraints.admit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from espalier_operator.model import Node
from espalier_operator.model.constraints import UNNAMED, Constraints, Expression, Taint, Term

K = TypeVar("K")
_Groups = frozenset[int]
_NO_GROUPS: _Groups = frozenset()


@dataclass(frozen=True, slots=True)
class Mentioned:
    """What constraints name of nodes: nodes differ by nothing else."""

    values: Mapping[str, set[str] | None]
    """By label: the values that constraints distinguish from others; None: all of them."""
    names: set[str]
    """The nodes whose names decide."""

    @classmethod
    def by(cls, constraints: Iterable[Constraints]) -> Self:
        """Return what `constraints` name."""
        values, names = dict[str, set[str] | None](), set[str]()
        for each in constraints:
            for key, value in each.node_selector:
                _mention(values, key, (value,))
            for term in each.terms if each.alternatives else ():  # most have none
                for expression in term.labels:
                    _mention(values, expression.key, None if expression.compares else expression.values)
                for expression in term.fields:
                    names.update(expression.values)
        return cls(values, names)


def _mention(values: dict[str, set[str] | None], key: str, more: Iterable[str] | None) -> None:
    known = values.setdefault(key, set())
    if more is None:
        values[key] = None
    elif known is not None:
        known.update(more)


class Index:
    """Groups of nodes, each represented by one of them, by what constraints ask for."""

    def __init__(self, examples: Sequence[Node]) -> None:
        """Number the groups in the order of `examples`."""
        self.groups = len(examples)
        """How many there are."""
        self._all: _Groups = frozenset(range(self.groups))
        self._examples = examples
        self._by_type = _sets((node.gpu_type, (group,)) for group, node in enumerate(examples))
        self._by_name = _sets((node.host, (group,)) for group, node in enumerate(examples))
        self._by_taints = _sets((node.taints, (group,)) for group, node in enumerate(examples))
        self._by_label: dict[str, tuple[Mapping[str, _Groups], _Groups]] = {}
        self._by_expression: dict[Expression, _Groups] = {}

    def admitting(self, gpu_type: str, constraints: Constraints | None) -> frozenset[int]:
        """Return the groups of a type of GPU whose nodes admit a pod with `constraints`; None: all of the type."""
        found = self._by_type.get(gpu_type, _NO_GROUPS)
        if constraints is None:
            return found
        for key, value in constraints.node_selector:
            found &= self._labelled(key)[0].get(value, _NO_GROUPS)
        for terms in constraints.alternatives:
            found &= _NO_GROUPS.union(*map(self._matching, terms))
        if found:
            found &= self._tolerated(constraints.tolerates)
        return found

    def _tolerated(self, tolerates: Callable[[Iterable[Taint]], bool]) -> _Groups:
        return _NO_GROUPS.union(*(groups for taints, groups in self._by_taints.items() if tolerates(taints)))

    def _matching(self, term: Term) -> _Groups:
        if term.is_empty:
            return _NO_GROUPS
        found = self._all
        for expression in term.labels:
            found &= self._meeting(expression)
        for expression in term.fields:
            found &= _taken(expression, expression.takes_name, self._by_name, self._all)
        return found

    def _meeting(self, expression: Expression) -> _Groups:
        known = self._by_expression.get(expression)
        if known is None:
            by_value, labelled = self._labelled(expression.key)
            known = _taken(expression, expression.takes, by_value, labelled)
            if expression.takes(None):
                known |= self._all - labelled
            self._by_expression[expression] = known
        return known

    def _labelled(self, key: str) -> tuple[Mapping[str, _Groups], _Groups]:
        """Return the groups that have a label, by its value and all together."""
        known = self._by_label.get(key)
        if known is None:
            pairs = ((node.labels.get(key), (group,)) for group, node in enumerate(self._examples))
            by_value = _sets((value, groups) for value, groups in pairs if value is not None)
            known = self._by_label[key] = by_value, _NO_GROUPS.union(*by_value.values())
        return known


def _taken(
    expression: Expression, takes: Callable[[str], bool], by_value: Mapping[str, _Groups], having: _Groups
) -> _Groups:
    """Return of the groups `having` a value those whose value is taken; `takes` is one of the rules of `expression`."""
    if expression.compares:
        return _NO_GROUPS.union(*(groups for value, groups in by_value.items() if takes(value)))
    named = {value for value in expression.values if value in by_value}
    if takes(UNNAMED):
        return having.difference(*(by_value[value] for value in named if not takes(value)))
    return _NO_GROUPS.union(*(by_value[value] for value in named if takes(value)))


def _sets(pairs: Iterable[tuple[K, tuple[int]]]) -> dict[K, _Groups]:
    found: dict[K, set[int]] = defaultdict(set)
    for key, groups in pairs:
        found[key].update(groups)
    return {key: frozenset(groups) for key, groups in found.items()}
