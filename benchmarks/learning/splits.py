"""What is learnt and what is judged: nothing that is judged was learnt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_api.outcomes import OutcomeTable

Tables = Sequence[OutcomeTable]


@dataclass(frozen=True)
class Judged:
    """A table to judge on."""

    table: OutcomeTable
    tree: DecisionTree


@dataclass(frozen=True)
class Split:
    """What is learnt, and what is judged."""

    name: str
    learnt: tuple[OutcomeTable, ...]
    judged: tuple[Judged, ...]


def experiments(paper: Tables, ours: Mapping[str, Tables]) -> dict[str, list[Split]]:
    """Return all experiments: figures of one are means over its splits. `ours` by the name of their model."""
    found = {}
    for model in sorted({table.model for table in paper}):
        found[f"a scenario left out, {model}"] = _scenarios(paper, model)
    for model in sorted({table.model for table in paper}):
        learnt = tuple(table for table in paper if table.model != model)
        found[f"the model left out, {model}"] = [_split(model, learnt, [t for t in paper if t.model == model])]
    for model, tables in ours.items():
        if len({table.scenario for table in tables}) > 1:
            found[f"a scenario left out, {model} alone"] = _scenarios(tables, model)
        found[f"the paper's tables learnt, {model}"] = [_split(model, paper, tables)]
        for other, beside in ours.items():
            if other != model:
                found[f"the paper's and {other} learnt, {model}"] = [_split(model, (*paper, *beside), tables)]
    return found


def shuffled(tables: Tables, seed: int) -> tuple[OutcomeTable, ...]:
    """Return the tables, each with its accuracies shuffled among its sequences."""
    chance = random.Random(seed)
    changed = []
    for table in tables:
        dealt = [outcome.accuracy for outcome in table.sequences]
        chance.shuffle(dealt)
        outcomes = zip(table.sequences, dealt, strict=True)
        sequences = tuple(
            # Of a mean alone: its seeds' figures are another sequence's now.
            outcome.model_copy(update={"accuracy": accuracy, "accuracies": None, "accuracy_std": None})
            for outcome, accuracy in outcomes
        )
        changed.append(table.model_copy(update={"sequences": sequences}))
    return tuple(changed)


def _scenarios(tables: Tables, model: str) -> list[Split]:
    return [
        _split(
            scenario,
            [table for table in tables if table.scenario != scenario],
            [table for table in tables if table.scenario == scenario and table.model == model],
        )
        for scenario in sorted({table.scenario for table in tables})
    ]


def _split(name: str, learnt: Tables, judged: Tables) -> Split:
    return Split(name, tuple(learnt), tuple(Judged(table, decision_tree(table)) for table in judged))
