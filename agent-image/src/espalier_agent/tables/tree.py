"""An outcome table as the tree of its decisions: the simulated environment of Lamelas 6.4.

`Transitions` are such trees as arrays: all states, the next state for each action, and the reward of that step.
`Reward` names the rewards of the steps of an episode. The paper's is 100·tan(a·π/2) of the final accuracy after the
last decision and 0 before (Lamelas, equation 2). The dense rewards add the difference of a potential to it, Φ(next) -
Φ(here), with Φ = 0 when the episode is over and without discount (Ng, Harada and Russell 1999). An episode's rewards
then sum to the paper's less Φ of the first state, which no decision can change: the same actions are best under all of
them in every state.

There is no reward from the slope of the learning curve: tables have final accuracies and no curves.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from espalier_agent.data import NAMED_MODELS, named_architecture
from espalier_core.files.documents import first_fault
from espalier_core.growth import operations_of, target_counts
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.types.advice import Action, AdviceRequest, offered
from espalier_core.types.outcomes import OutcomeTable, read_table

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
ILLEGAL: Final = -1
"""The next state after an illegal action."""


class TableError(ValueError):
    """An outcome table cannot be played. The message names the table, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class State:
    """A state of the decision process (Lamelas 3.1): the current model, the time left and the budget, in seconds."""

    architecture: Architecture
    time_left_s: float
    time_budget_s: float


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """All states of a table's episodes, and the result of each action.

    States are ordered by the number of decisions before them, then by those decisions: state 0 is the first.
    """

    name: str
    model: str
    scenario: str
    actions: tuple[Action, ...]
    """The table's actions, in order: all growths in the starting model's description, then `Nothing`."""
    decisions: int
    """Number of decisions in an episode."""
    states: tuple[State, ...]
    next_states: tuple[tuple[int, ...], ...]
    """Index of the next state for each state and action; after the last decision, the index of the sequence."""
    sequences: tuple[tuple[int, ...], ...]
    """Sequences in lexicographic order."""
    accuracies: tuple[float, ...]
    """Final accuracy of each sequence."""

    def rank(self, accuracy: float) -> int:
        """Return 1 + the number of sequences that end with a higher accuracy."""
        return 1 + sum(other > accuracy for other in self.accuracies)

    def follow(self, choose: Callable[[AdviceRequest], Action]) -> tuple[int, ...]:
        """Return the actions (their indices) chosen one after the other, each in the state after the last one."""
        chosen: list[int] = []
        at = 0
        for _ in range(self.decisions):
            state = self.states[at]
            request = AdviceRequest(
                job=self.name,
                architecture=state.architecture,
                time_left_seconds=state.time_left_s,
                time_budget_seconds=state.time_budget_s,
            )
            chosen.append(self.actions.index(choose(request)))
            at = self.next_states[at][chosen[-1]]
        return tuple(chosen)


def starting_architecture(table: OutcomeTable) -> Architecture:
    """Return the architecture of a table's starting model: the one in the table, or the one of the named model.

    Raise `TableError` if the table has none and the name is unknown, or if actions and growth points differ in number
    or, according to labels, in order.
    """
    architecture = table.architecture
    if architecture is None:
        if table.model not in NAMED_MODELS:
            raise TableError(
                f"table {table.name}: has no architecture, and {table.model!r} is not a model known by name "
                f"({', '.join(NAMED_MODELS)}); add the starting model's architecture to the table"
            )
        architecture = named_architecture(table.model)
    needed = len(offered(architecture)) + 1
    if needed != len(table.actions):
        raise TableError(
            f"table {table.name}: has {len(table.actions)} actions, where {table.model!r} with its "
            f"{target_counts(architecture)} needs {needed}"
        )
    _check_order(table, architecture)
    return architecture


def _check_order(table: OutcomeTable, architecture: Architecture) -> None:
    """Raise `TableError` if an action's label names another growth point or group than the one at its place.

    Labels are free text: a label names a growth point if it ends in the id of that point alone, as a separate word.
    """
    # Separately by operation, as a group of channels may have the id of a growth point.
    alike = [each.targets(architecture) for each in operations_of(architecture)]
    places = [*((ids, target) for ids in alike for target in ids), (alike[0], None)]
    for index, (label, (ids, expected)) in enumerate(zip(table.actions, places, strict=True)):
        matching = [each for each in ids if label == each or label.endswith(f" {each}")]
        if len(matching) == 1 and matching[0] != expected:
            place = "doing nothing" if expected is None else repr(expected)
            raise TableError(
                f"table {table.name}: actions[{index}], {label!r}, is in the place of {place}; bring actions and "
                "sequences into the order of the architecture's growth points, or rename the action"
            )


def decision_tree(table: OutcomeTable) -> DecisionTree:
    """Unfold a table; raise `TableError` as `starting_architecture` does.

    "Get the time left in the budget based on the adaptations we've made" (Algorithm 4): runs that share the first
    decisions were measured separately and differ by a few hundred milliseconds, so a state has their mean.
    """
    start = starting_architecture(table)
    actions = (*offered(start), Action.nothing())
    outcomes = sorted(table.sequences, key=lambda outcome: outcome.actions)
    width = len(actions)
    states: list[State] = []
    next_states: list[tuple[int, ...]] = []
    level = [start]
    for depth in range(table.decisions_per_episode):
        # Sequences with the same beginning are neighbours, so each prefix owns one range of them.
        stretch = width ** (table.decisions_per_episode - depth)
        last = depth == table.decisions_per_episode - 1
        next_level_at = 0 if last else len(states) + len(level)
        for place, architecture in enumerate(level):
            sharing = outcomes[place * stretch : (place + 1) * stretch]
            left = sum(outcome.time_left_s[depth] for outcome in sharing) / stretch
            states.append(State(architecture, left, table.time_budget_s))
            first = next_level_at + place * width
            next_states.append(tuple(range(first, first + width)))
        if not last:
            grown = ((architecture, action) for architecture, action in itertools.product(level, actions))
            level = [carried_out(table.name, architecture, action) for architecture, action in grown]
    return DecisionTree(
        name=table.name,
        model=table.model,
        scenario=table.scenario,
        actions=actions,
        decisions=table.decisions_per_episode,
        states=tuple(states),
        next_states=tuple(next_states),
        sequences=tuple(outcome.actions for outcome in outcomes),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
    )


def read_playable(path: Path) -> OutcomeTable:
    """Read a table; raise `DocumentError` if it is damaged, `TableError` if it cannot be played; both name the file."""
    table = read_table(path)
    try:
        decision_tree(table)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error
    return table


def carried_out(table: str, architecture: Architecture, action: Action) -> Architecture:
    """Return the architecture after an action; raise `TableError` if the table's description does not allow it."""
    try:
        return action.carried_out(architecture)
    except GrowthError as error:
        raise TableError(f"table {table}: its architecture cannot grow by its actions ({error})") from error
    except ValidationError as error:
        raise TableError(
            f"table {table}: its architecture cannot grow at {action.target!r} ({first_fault(error)}); fix the "
            "growth point's insertion and block"
        ) from error


def table_digest(table: OutcomeTable) -> str:
    """Return the SHA-256 (hex) of a table's canonical JSON."""
    text = json.dumps(table.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Reward(StrEnum):
    """The reward of a step."""

    PAPER = "paper"
    """The sequence's return after the last decision, 0 before."""
    OVER_NOTHING = "over-nothing"
    """The effect of the action if nothing else is done from here on; doing nothing is worth 0."""
    OVER_MEAN = "over-mean"
    """The effect of the action on the mean over all continuations."""
    OVER_BEST = "over-best"
    """The action's reduction of the best return still reachable: never above 0, and 0 for a best action."""

    @classmethod
    def _missing_(cls, value: object) -> Reward:
        raise ValueError(f"reward is {value!r}; choose one of {', '.join(cls)}")


def step_rewards(next_states: Indices, returns: Floats, reward: Reward) -> Floats:
    """Return the reward of each action in each state of a decision tree, (states, actions).

    `next_states` is a `DecisionTree`'s, (states, actions); `returns` has the return of each sequence.
    """
    before = potentials(next_states, returns, reward)
    rewards = np.empty(next_states.shape)
    last = _last_level(next_states, returns)
    rewards[:last] = before[next_states[:last]] - before[:last, None]
    rewards[last:] = returns[next_states[last:]] - before[last:, None]
    return rewards


def potentials(next_states: Indices, returns: Floats, reward: Reward) -> Floats:
    """Return Φ of each state, (states,): its value by a simple guess of the continuation; 0 for the paper's reward."""
    values = np.zeros(len(next_states))
    if reward is Reward.PAPER:
        return values
    first, width = _last_level(next_states, returns), next_states.shape[1]
    reached = returns[next_states[first:]]
    while True:
        values[first : first + len(reached)] = _backed_up(reached, reward)
        if first == 0:
            return values
        # The level before has one state per `width` states of this one.
        first -= len(reached) // width
        reached = values[next_states[first : first + len(reached) // width]]


def _backed_up(reached: Floats, reward: Reward) -> Floats:
    if reward is Reward.OVER_NOTHING:
        nothing: Floats = reached[:, -1]
        return nothing
    backed_up: Floats = reached.mean(axis=1) if reward is Reward.OVER_MEAN else reached.max(axis=1)
    return backed_up


def _last_level(next_states: Indices, returns: Floats) -> int:
    """Return the first state of the last decision: states are ordered by depth, and each sequence follows one."""
    width: int = next_states.shape[1]
    return len(next_states) - len(returns) // width


@dataclass(frozen=True, slots=True)
class Transitions:
    """The states of all tables, table by table, followed by all ended sequences; the same index in all arrays."""

    trees: tuple[DecisionTree, ...]
    columns: tuple[Indices, ...]
    """Column of each action, for each table."""
    states: int
    """Number of states, which is the index of the first ended sequence."""
    first: Indices
    """First state of each table's episodes."""
    table_of: Indices
    """(states + sequences,)."""
    next_states: Indices
    """(states + sequences, actions); `ILLEGAL` where the action is illegal, as all are after the end."""

    @classmethod
    def of(cls, trees: Sequence[DecisionTree], columns: Sequence[Sequence[int]] | None = None) -> Transitions:
        """Join tables; without `columns`, each table's actions take the first columns, in order."""
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
            # In the tree, sequences have a separate numbering.
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
        """Return the index of each decision of each sequence in (states · actions), (sequences, decisions).

        Tables with fewer decisions are padded with the index after all of them.
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
