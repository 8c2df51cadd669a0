"""Sequences chosen without a network, with which a policy is compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final

from espalier_agent.tables.tree import DecisionTree
from espalier_core.types.advice import heuristic
from espalier_core.types.outcomes import reward

PAPER_RANDOM_RUNS: Final = 10
"""The paper's random baseline is the mean of ten random sequences."""


def none_sequence(tree: DecisionTree) -> tuple[int, ...]:
    """Do nothing each time."""
    return (len(tree.actions) - 1,) * tree.decisions


def best_sequence(tree: DecisionTree) -> tuple[int, ...]:
    """Return the sequence that ended with the highest accuracy."""
    return tree.sequences[tree.accuracies.index(max(tree.accuracies))]


def heuristic_sequence(tree: DecisionTree) -> tuple[int, ...]:
    """Deepen the first growth point while a tenth of the budget is left."""
    return tree.follow(heuristic)


def random_mean(tree: DecisionTree) -> float:
    """Return the mean accuracy of all sequences: what uniformly random decisions give."""
    return fmean(tree.accuracies)


def random_mean_of_ten(tree: DecisionTree, seed: int) -> float:
    """Return the paper's baseline: the mean accuracy of ten random sequences, which depends on the seed."""
    # The name gives tables of one seed independent random numbers. Not for security.
    chance = random.Random(f"{seed}/{tree.name}")
    return fmean(chance.choice(tree.accuracies) for _ in range(PAPER_RANDOM_RUNS))


def best_on_average(trees: Sequence[DecisionTree]) -> tuple[int, ...] | None:
    """Return the sequence with the greatest mean standardised reward on these tables.

    None without tables, and where their sequences differ: an action's number means another thing in each.
    """
    if not trees or any(tree.sequences != trees[0].sequences for tree in trees):
        return None
    totals = [0.0] * len(trees[0].sequences)
    for tree in trees:
        rewards = [reward(accuracy) for accuracy in tree.accuracies]
        mean, spread = fmean(rewards), max(pstdev(rewards), 1e-12)
        totals = [total + (value - mean) / spread for total, value in zip(totals, rewards, strict=True)]
    return trees[0].sequences[totals.index(max(totals))]
