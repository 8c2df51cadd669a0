"""The paper's experiments, run again: from scratch, transfers between scenarios, curricula of three.

Stages follow each other, as a transfer begins where learning from scratch ended; the runs of a stage are independent
and are learnt together, in one process a core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from espalier_agent.evaluation.baselines import none_sequence, random_mean, random_mean_of_ten
from espalier_agent.study.many_runs import Learnt, Run, greedy
from espalier_agent.study.paper import CURRICULA, TEMPERATURES
from espalier_agent.tables.tree import DecisionTree

Floats = npt.NDArray[np.float64]
Learn = Callable[[str, Sequence[Run], int], list[Learnt]]
"""Runs a stage: its name, its runs, episodes of each."""
TRANSFERRED_MODEL = "cnn1"
"""Transfers and curricula are learnt on this one's tables."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The greedy sequence of an agent on a table."""

    actions: tuple[int, ...]
    accuracy: float
    rank: int
    regret: float
    """Accuracy of the table's best sequence less this one's."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that has learnt, and how its last stage went."""

    weights: Mapping[str, Tensor]
    objectives: Floats
    accuracies: Floats
    reached: Mapping[str, Reached]
    """By table, of all tables."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """What a table gives without an agent."""

    none: float
    random_mean: float
    """Of all sequences."""
    random_ten: float
    """Of ten random ones, as in the paper."""
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All results."""

    episodes: int
    seeds: tuple[int, ...]
    trees: Mapping[str, DecisionTree]
    baselines: Mapping[str, Baselines]
    scratch: Mapping[tuple[str, int], Agent]
    """By table and seed."""
    transfers: Mapping[tuple[str, str, float], Agent]
    """By prior scenario, scenario and temperature; from the agent of the first seed."""
    curricula: Mapping[tuple[str, ...], Agent]
    """The best of the temperatures for the last scenario."""


def run_study(trees: Sequence[DecisionTree], seeds: Sequence[int], episodes: int, learn: Learn) -> Study:
    """Run all experiments on these tables, which are the paper's six."""
    by_name = {f"{tree.model}-{tree.scenario}": tree for tree in trees}

    def agents(stage: str, runs: Sequence[Run]) -> list[Agent]:
        return [_agent(learnt, by_name) for learnt in learn(stage, runs, episodes)]

    names = [(name, seed) for seed in seeds for name in by_name]
    fresh = agents("from scratch", [Run(tree=by_name[name], seed=seed) for name, seed in names])
    scratch = dict(zip(names, fresh, strict=True))

    first = seeds[0]
    scenarios = [tree.scenario for tree in trees if tree.model == TRANSFERRED_MODEL]
    pairs = [
        (prior, scenario, temperature)
        for prior in scenarios
        for scenario in scenarios
        if prior != scenario
        for temperature in TEMPERATURES
    ]
    moved = agents(
        "transfers",
        [
            _onward(by_name, scenario, first, scratch[f"{TRANSFERRED_MODEL}-{prior}", first], temperature)
            for prior, scenario, temperature in pairs
        ],
    )
    transfers = dict(zip(pairs, moved, strict=True))

    last = [(curriculum, temperature) for curriculum in CURRICULA for temperature in TEMPERATURES]
    ended = agents(
        "curricula",
        [
            _onward(by_name, end, first, _best([transfers[start, then, each] for each in TEMPERATURES], then), heat)
            for (start, then, end), heat in last
        ],
    )
    tried: dict[tuple[str, ...], list[Agent]] = {}
    for (curriculum, _), agent in zip(last, ended, strict=True):
        tried.setdefault(curriculum, []).append(agent)
    return Study(
        episodes=episodes,
        seeds=tuple(seeds),
        trees=by_name,
        baselines={name: baselines(tree, first) for name, tree in by_name.items()},
        scratch=scratch,
        transfers=transfers,
        curricula={curriculum: _best(found, curriculum[-1]) for curriculum, found in tried.items()},
    )


def baselines(tree: DecisionTree, seed: int) -> Baselines:
    """Return what a table gives without an agent; `seed` draws the ten random sequences, the same as in `evaluate`."""
    return Baselines(
        none=tree.accuracies[tree.sequences.index(none_sequence(tree))],
        random_mean=random_mean(tree),
        random_ten=random_mean_of_ten(tree, seed),
        best=max(tree.accuracies),
    )


def _onward(trees: Mapping[str, DecisionTree], scenario: str, seed: int, prior: Agent, temperature: float) -> Run:
    tree = trees[f"{TRANSFERRED_MODEL}-{scenario}"]
    # Another seed than the prior's, whose draws the agent has met.
    return Run(tree=tree, seed=seed + 1_000_003, start=prior.weights, temperature=temperature)


def _best(found: Sequence[Agent], scenario: str) -> Agent:
    return min(found, key=lambda agent: agent.reached[f"{TRANSFERRED_MODEL}-{scenario}"].rank)


def _agent(learnt: Learnt, trees: Mapping[str, DecisionTree]) -> Agent:
    sequences = greedy([learnt.weights] * len(trees), list(trees.values()))
    reached = {}
    for (name, tree), actions in zip(trees.items(), sequences, strict=True):
        accuracy = tree.accuracies[tree.sequences.index(actions)]
        reached[name] = Reached(actions, accuracy, tree.rank(accuracy), max(tree.accuracies) - accuracy)
    return Agent(learnt.weights, learnt.objectives, learnt.accuracies, reached)
