"""An outcome table as the tree of its decisions: the simulated environment of Lamelas 6.4."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from espalier_agent.data import NAMED_MODELS, named_architecture
from espalier_core.files.documents import first_fault
from espalier_core.growth import described, target_counts
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.types.advice import Action, AdviceRequest, offered
from espalier_core.types.outcomes import OutcomeTable, read_table


class TableError(ValueError):
    """An outcome table cannot be played. The message names the table, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class State:
    """What the agent is asked about (Lamelas 3.1): the current model, the time left and the time budget, in seconds."""

    architecture: Architecture
    time_left_s: float
    time_budget_s: float


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """All states that a table's episodes pass through, and where each action leads.

    States are ordered by the number of decisions before them, then by those decisions: state 0 is the first.
    """

    name: str
    model: str
    scenario: str
    actions: tuple[Action, ...]
    """In the table's order: all that the starting model's description offers, then `Nothing`."""
    decisions: int
    """In an episode."""
    states: tuple[State, ...]
    next_states: tuple[tuple[int, ...], ...]
    """For each state and action the index of the next state; after the last decision, that of the sequence."""
    sequences: tuple[tuple[int, ...], ...]
    """In lexicographic order."""
    accuracies: tuple[float, ...]
    """Final accuracy of each sequence."""

    def rank(self, accuracy: float) -> int:
        """Return 1 + the number of sequences that end with a higher accuracy."""
        return 1 + sum(other > accuracy for other in self.accuracies)

    def follow(self, choose: Callable[[AdviceRequest], Action]) -> tuple[int, ...]:
        """Return the actions (their indices) that are chosen, each by the state the last one led to."""
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
    """Return the architecture of a table's starting model: its own, or that of the model it names.

    Raises `TableError` where the table has none and the name is unknown, or where actions and growth points differ in
    their number or, as far as labels tell, in their order.
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
    """Raise `TableError` where an action's label names another growth point, or group, than its place does.

    Labels are free text: one names a growth point if it ends in the id of that one alone, as a separate word.
    """
    # Apart by operation, for a group of channels may have the id of a growth point.
    alike = [each.targets(architecture) for each in described(architecture)]
    places = [*((ids, target) for ids in alike for target in ids), (alike[0], None)]
    for index, (label, (ids, expected)) in enumerate(zip(table.actions, places, strict=True)):
        matching = [each for each in ids if label == each or label.endswith(f" {each}")]
        if len(matching) == 1 and matching[0] != expected:
            place = "doing nothing" if expected is None else repr(expected)
            raise TableError(
                f"table {table.name}: actions[{index}], {label!r}, is in the place of {place}; bring actions and "
                "sequences into the order of the architecture's growth points, or call the action otherwise"
            )


def decision_tree(table: OutcomeTable) -> DecisionTree:
    """Unfold a table; raises `TableError` as `starting_architecture`.

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
        # All sequences that begin alike are neighbours, so each prefix owns one stretch of them.
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
    """Read a table; `DocumentError` where it is damaged, `TableError` where it cannot be played; both name the file."""
    table = read_table(path)
    try:
        decision_tree(table)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error
    return table


def carried_out(table: str, architecture: Architecture, action: Action) -> Architecture:
    """Return the architecture after an action; `TableError` where the table's description of it cannot grow so."""
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
