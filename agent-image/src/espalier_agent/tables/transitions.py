"""Outcome tables as arrays: the states of all of them, where each action leads from each, and what that step earns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from espalier_agent.tables.rewards import Floats, Indices, Reward, step_rewards
from espalier_agent.tables.tree import DecisionTree

ILLEGAL: Final = -1
"""The next state after an illegal action."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """The states of all tables, table by table, and after them all ended sequences; the same index in all arrays."""

    trees: tuple[DecisionTree, ...]
    columns: tuple[Indices, ...]
    """Of each table, the column of each of its actions."""
    states: int
    """How many there are; the index of the first ended sequence."""
    first: Indices
    """Of each table, the state in which its episodes begin."""
    table_of: Indices
    """(states + sequences,)."""
    next_states: Indices
    """(states + sequences, actions); `ILLEGAL` where the action is illegal, as are all after the end."""

    @classmethod
    def of(cls, trees: Sequence[DecisionTree], columns: Sequence[Sequence[int]] | None = None) -> Transitions:
        """Join tables; without `columns`, each table's actions have the first ones, in their order."""
        numbers = [range(len(tree.actions)) for tree in trees] if columns is None else columns
        placed = tuple(np.array(each, dtype=np.int64) for each in numbers)
        sizes = [len(tree.states) for tree in trees]
        lengths = [len(tree.sequences) for tree in trees]
        states = sum(sizes)
        first = np.cumsum([0, *sizes[:-1]])
        ends = states + np.cumsum([0, *lengths[:-1]])
        width = 1 + max(int(each.max()) for each in placed)
        next_states = np.full((states + sum(lengths), width), ILLEGAL, dtype=np.int64)
        for tree, place, start, end in zip(trees, placed, first, ends, strict=True):
            own = np.array(tree.next_states)
            # In the tree, sequences are counted apart from states.
            last = len(own) - len(tree.sequences) // len(tree.actions)
            own[:last] += start
            own[last:] += end
            next_states[start : start + len(own), place] = own
        tables = np.arange(len(trees))
        table_of = np.concatenate([np.repeat(tables, sizes), np.repeat(tables, lengths)])
        return cls(tuple(trees), placed, states, first, table_of, next_states)

    @property
    def legal(self) -> npt.NDArray[np.bool_]:
        """(states + sequences, actions)."""
        legal: npt.NDArray[np.bool_] = self.next_states != ILLEGAL
        return legal

    def rewards(self, returns: Sequence[Floats], reward: Reward) -> Floats:
        """Return the reward of each step, (states + sequences, actions), for each table's returns; 0 where illegal."""
        rewards = np.zeros(self.next_states.shape)
        for tree, place, start, own in zip(self.trees, self.columns, self.first, returns, strict=True):
            rewards[start : start + len(tree.states), place] = step_rewards(np.array(tree.next_states), own, reward)
        return rewards

    def paths(self) -> Indices:
        """Return where each decision of each sequence lies in (states · actions), (sequences, decisions).

        Those of tables with fewer decisions are filled with the place after all of them.
        """
        width = self.next_states.shape[1]
        longest = max(tree.decisions for tree in self.trees)
        paths = np.full((len(self.next_states) - self.states, longest), self.states * width)
        at = self.first[self.table_of[self.states :]]
        actions = [place[np.array(tree.sequences)] for tree, place in zip(self.trees, self.columns, strict=True)]
        for decision in range(longest):
            on = at < self.states
            action = np.concatenate([each[:, min(decision, each.shape[1] - 1)] for each in actions])
            paths[on, decision] = at[on] * width + action[on]
            at = np.where(on, self.next_states[at, action], at)
        return paths
