"""Outcome tables as arrays of positions, with the observations that an environment gives of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.vocabulary import EMBEDDING_SIZE, layer_embedding
from espalier_agent.tables.game import outputs_of
from espalier_agent.tables.tree import (
    DecisionTree,
    Floats,
    Indices,
    Reward,
    Transitions,
    carried_out,
    decision_tree,
)
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import ActionColumns
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable
from espalier_core.types.outcomes import reward as paper_return

LAYER_FEATURES: Final = EMBEDDING_SIZE + 1
"""The embedding of operator and attributes, and log2(1 + parameters)."""
NO_INDEX: Final = -1
"""The index for nothing: after the last edge or growth point, or before the first episode."""

Array = npt.NDArray[Any]


class NoTableError(ValueError):
    """There is no table to play, or none with the given name."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Each position is a state of one table, or the end of one of its sequences; the same index in all arrays.

    Actions are numbered alike for all tables (`ActionColumns`): i deepens growth point i; after the largest number of
    points, the next ones each double a group of channels; the last one does nothing. Actions without a growth point or
    group in the model are illegal.
    """

    tables: tuple[str, ...]
    first: Indices
    """The first position of each table's episodes."""
    table_of: Indices
    next_states: Indices
    """(positions, actions): the next position, as `Transitions.next_states`."""
    legal: npt.NDArray[np.int8]
    """(positions, actions), 1 where legal: the form of a mask for sampling from a space."""
    rewards: Floats
    """(positions, actions); 0 where illegal."""
    over: npt.NDArray[np.bool_]
    accuracies: npt.NDArray[np.float64]
    """Final accuracy where the episode is over, 0 elsewhere."""
    by_position: dict[str, Array]
    """Parts of the observation that differ between positions of one architecture."""
    by_architecture: dict[str, Array]
    """Parts of the observation that describe the architecture, one row for each distinct one."""
    architecture_of: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tables: Sequence[OutcomeTable], reward: Reward, allocation: Allocation) -> Positions:
        """Unfold tables; raise `TableError` for one that cannot be played and `NoTableError` if there is none."""
        if not tables:
            raise NoTableError("there is no outcome table to play; give at least one")
        trees = [decision_tree(table) for table in tables]
        numbers = ActionColumns.over(tree.states[0].architecture for tree in trees)
        transitions = Transitions.of(trees, [outputs_of(tree, numbers) for tree in trees])
        count = len(transitions.next_states)
        returns = [np.array([paper_return(accuracy) for accuracy in tree.accuracies]) for tree in trees]
        seen = [state.architecture for tree in trees for state in tree.states]
        seen += [end for tree in trees for end in _ends(tree)]
        moments = [moment for tree in trees for moment in _moments(tree)]
        # An episode is over when the budget is spent: training continues after the last decision until then.
        moments += [(0.0, tree.states[0].time_budget_s, 0) for tree in trees for _ in tree.sequences]
        rows = {architecture.fingerprint: architecture for architecture in seen}
        place = {fingerprint: row for row, fingerprint in enumerate(rows)}
        over = np.arange(count) >= transitions.states
        accuracies = np.zeros(count)
        accuracies[over] = [accuracy for tree in trees for accuracy in tree.accuracies]
        return cls(
            tables=tuple(tree.name for tree in trees),
            first=transitions.first,
            table_of=transitions.table_of,
            next_states=transitions.next_states,
            legal=transitions.legal.astype(np.int8),
            rewards=transitions.rewards(returns, reward),
            over=over,
            accuracies=accuracies,
            by_position={
                "time_left_share": np.array([[share] for share, _, _ in moments], dtype=np.float32),
                "time_budget_s": np.array([[budget] for _, budget, _ in moments], dtype=np.float32),
                "decisions_left": np.array([[left] for _, _, left in moments], dtype=np.int64),
                "allocation": np.tile(np.array([allocation.replicas, allocation.gpus]), (count, 1)),
            },
            by_architecture=_described(tuple(rows.values()), numbers.counts),
            architecture_of=np.array([place[architecture.fingerprint] for architecture in seen]),
        )

    def observe(self, at: Any) -> dict[str, Array]:
        """Return the observation at one position, or at many (an array of them), in new arrays."""
        rows = self.architecture_of[at]
        seen = {name: np.take(values, rows, axis=0) for name, values in self.by_architecture.items()}
        return seen | {name: np.take(values, at, axis=0) for name, values in self.by_position.items()}

    def beginning(self, table: str) -> int:
        """Return the index of the table with this name; raise `NoTableError` with the known ones."""
        if table not in self.tables:
            raise NoTableError(f"there is no table {table!r} here; there are: {', '.join(self.tables)}")
        return self.tables.index(table)


def _ends(tree: DecisionTree) -> list[Architecture]:
    """Return the architecture at the end of each sequence."""
    last = len(tree.states) - len(tree.sequences) // len(tree.actions)
    return [
        carried_out(tree.name, state.architecture, action) for state in tree.states[last:] for action in tree.actions
    ]


def _moments(tree: DecisionTree) -> list[tuple[float, float, int]]:
    """Return the share of time left, the budget and the decisions left, for each state."""
    left = [tree.decisions - depth for depth in range(tree.decisions) for _ in range(len(tree.actions) ** depth)]
    return [
        (state.time_left_s / state.time_budget_s, state.time_budget_s, decisions)
        for state, decisions in zip(tree.states, left, strict=True)
    ]


def _described(architectures: Sequence[Architecture], counts: Mapping[str, int]) -> dict[str, Array]:
    """Return the arrays that describe architectures, padded to the largest; arrays of groups only if there are any."""
    points, groups = counts.get(DEEPEN.name, 0), counts.get(WIDEN.name, 0)
    count = len(architectures)
    layers = max(len(architecture.layers) for architecture in architectures)
    edges = max(1, *(sum(len(layer.inputs) for layer in architecture.layers) for architecture in architectures))
    described: dict[str, Array] = {
        "layers": np.zeros((count, layers, LAYER_FEATURES), dtype=np.float32),
        "layer_mask": np.zeros((count, layers), dtype=np.int8),
        "edges": np.full((count, edges, 2), NO_INDEX, dtype=np.int64),
        "growth_points": np.full((count, max(points, 1)), NO_INDEX, dtype=np.int64),
        "grown": np.zeros((count, max(points, 1)), dtype=np.int64),
    }
    if groups:
        described["carriers"] = np.zeros((count, groups, layers), dtype=np.int8)
        described["channels"] = np.zeros((count, groups), dtype=np.int64)
    for row, architecture in enumerate(architectures):
        place = {layer.name: index for index, layer in enumerate(architecture.layers)}
        for index, layer in enumerate(architecture.layers):
            described["layers"][row, index, :-1] = layer_embedding(layer, DEFAULT_EMBEDDING_SEED)
            described["layers"][row, index, -1] = np.log2(1 + layer.parameters)
        described["layer_mask"][row, : len(place)] = 1
        read = [(place[name], place[layer.name]) for layer in architecture.layers for name in layer.inputs]
        described["edges"][row, : len(read)] = np.array(read, dtype=np.int64).reshape(-1, 2)
        for index, point in enumerate(architecture.growth_points):
            described["growth_points"][row, index] = place[point.after]
            described["grown"][row, index] = point.grown
        for index, group in enumerate(architecture.channel_groups):
            described["carriers"][row, index, [place[name] for name in group.carriers]] = 1
            described["channels"][row, index] = group.width
    return described
