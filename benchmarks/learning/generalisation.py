"""Policies learnt from some tables and evaluated on others, compared with baselines without a network.

Nothing that is judged was learnt.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.printed import progress
from harness.statistics import spread

from espalier_agent.evaluation.evaluate import (
    accuracies_by_seed,
    best_on_average,
    greedy_sequence,
    heuristic_sequence,
    none_sequence,
    random_mean,
    rank_noise,
)
from espalier_agent.learners import distilled, expected
from espalier_agent.learners.expected import SeededRun, learn_many
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.types.outcomes import OutcomeTable

Tables = Sequence[OutcomeTable]

CASES = {"fit": (expected.FIT, False), "smooth": (expected.SMOOTH, False), "fit, shuffled": (expected.FIT, True)}
"""Recipe, and whether the tables learnt are shuffled."""
DISTILLED = "distilled"
"""One more case, on request only: it takes twenty seconds for each policy."""


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


class Policies:
    """Learnt policies, all seeds at once; several experiments share what they learn."""

    def __init__(self, seeds: int, updates: int | None) -> None:
        self._seeds = seeds
        self._updates = updates
        self._kept: dict[tuple[str, ...], tuple[Policy, ...]] = {}

    def learn(self, split: Split, case: str) -> tuple[Policy, ...]:
        """Learn what a split says, with each seed."""
        key = (case, *(table.name for table in split.learnt))
        if key not in self._kept and case == DISTILLED:
            self._kept[key] = self._distilled(split)
        elif key not in self._kept:
            config, shuffle = CASES[case]
            if self._updates is not None:
                config = config.model_copy(update={"updates": self._updates})
            runs = [
                SeededRun(shuffled(split.learnt, seed) if shuffle else split.learnt, seed)
                for seed in range(self._seeds)
            ]
            self._kept[key] = learn_many(runs, config=config)
        return self._kept[key]

    def _distilled(self, split: Split) -> tuple[Policy, ...]:
        config = distilled.DEFAULT
        if self._updates is not None:
            config = config.model_copy(update={"updates": self._updates, "student_updates": self._updates})
        return tuple(distilled.learn(split.learnt, config=config, seed=seed) for seed in range(self._seeds))


def generalisation(
    experiments: Mapping[str, Sequence[Split]],
    seeds: int,
    updates: int | None = None,
    cases: Sequence[str] = tuple(CASES),
) -> dict[str, dict[str, Any]]:
    """Run every experiment with each recipe and the control, and the baselines."""
    policies = Policies(seeds, updates)
    report = {}
    for name, splits in experiments.items():
        rows = {case: found for case, rule in BASELINES.items() if (found := without_network(splits, rule)) is not None}
        for case in cases:
            # By split, then by seed.
            learnt = [policies.learn(split, case) for split in splits]
            reached = [
                [
                    (judged, _accuracy(judged.tree, greedy_sequence(own[seed], judged.tree)))
                    for split, own in zip(splits, learnt, strict=True)
                    for judged in split.judged
                ]
                for seed in range(seeds)
            ]
            rows[case] = {
                "regret": spread([statistics.fmean(_regret(*one) for one in found) for found in reached]),
                "rank": spread([statistics.fmean(one.tree.rank(got) for one, got in found) for found in reached]),
            }
            progress(f"{name}, {case}: regret {rows[case]['regret']['mean']:.4f}")
        report[name] = rows
    return report


def without_network(
    splits: Sequence[Split], rule: Callable[[Split, Judged], float | None]
) -> dict[str, dict[str, float]] | None:
    """Return regret and rank of a rule, means over the tables judged; None where it says nothing of one of them."""
    regrets, ranks = [], []
    for split in splits:
        for judged in split.judged:
            accuracy = rule(split, judged)
            if accuracy is None:
                return None
            regrets.append(_regret(judged, accuracy))
            ranks.append(judged.tree.rank(accuracy))
    return {"regret": {"mean": statistics.fmean(regrets)}, "rank": {"mean": statistics.fmean(ranks)}}


def _best_on_average(split: Split, judged: Judged) -> float | None:
    sequence = best_on_average([decision_tree(table) for table in split.learnt])
    if sequence is None or sequence not in judged.tree.sequences:
        return None
    return _accuracy(judged.tree, sequence)


def _of_one_seed(_: Split, judged: Judged) -> float | None:
    by_seed = accuracies_by_seed(judged.table)
    if by_seed is None:
        return None
    return max(judged.tree.accuracies) - rank_noise(judged.table.name, by_seed).regret_of_one_seed


def _accuracy(tree: DecisionTree, sequence: tuple[int, ...]) -> float:
    return tree.accuracies[tree.sequences.index(sequence)]


def _regret(judged: Judged, accuracy: float) -> float:
    return max(judged.tree.accuracies) - accuracy


BASELINES: dict[str, Callable[[Split, Judged], float | None]] = {
    "best on average": _best_on_average,
    "heuristic": lambda _, judged: _accuracy(judged.tree, heuristic_sequence(judged.tree)),
    "random (mean of all)": lambda _, judged: random_mean(judged.tree),
    "none": lambda _, judged: _accuracy(judged.tree, none_sequence(judged.tree)),
    "noise: best of one seed": _of_one_seed,
}
"""What needs no network. The last is what a rank's noise costs one who knows one seed of the judged table by heart."""
