"""How good a policy is on outcome tables: the rank of its greedy sequence among all sequences (Lamelas 6.5).

It is compared with sequences that are chosen without a network.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final

from espalier_agent.evaluation.rank_noise import ResultNoise, accuracies_by_seed, result_noise
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import DecisionTree, decision_tree, table_digest
from espalier_core.base import Record
from espalier_core.types.advice import heuristic
from espalier_core.types.outcomes import OutcomeTable, reward

PAPER_RANDOM_RUNS: Final = 10
"""The paper's random baseline is the mean of ten random sequences."""


class SequenceResult(Record):
    """One sequence of decisions and what it led to."""

    actions: tuple[str, ...]
    accuracy: float
    rank: int
    """1 + the number of the table's sequences that end with a higher accuracy."""


class TableResult(Record):
    """A policy's greedy sequence on one table, compared with the alternatives."""

    table: str
    model: str
    scenario: str
    sequences: int
    """Number of sequences that are ranked."""
    actions: tuple[str, ...]
    accuracy: float
    rank: int
    regret: float
    """Accuracy of the best sequence less this one's."""
    none: SequenceResult
    """Doing nothing each time."""
    random_mean_accuracy: float
    """Mean over all sequences: what uniformly random decisions give."""
    random_ten_mean_accuracy: float
    """Mean of ten random sequences, the paper's baseline; it depends on the seed."""
    best: SequenceResult
    heuristic: SequenceResult
    """The trainer's fallback: the first growth point while a tenth of the budget is left."""
    best_on_average: SequenceResult | None
    """The sequence that is best on average over the tables that the policy has learnt: a baseline without a network.
    None if no such table is given, or if they have other actions."""
    noise: ResultNoise | None = None
    """Uncertainty of rank and regret; None if the table has fewer than two seeds."""


class Evaluation(Record):
    """A policy on several tables."""

    policy: str
    version: str
    tables: tuple[TableResult, ...]
    mean_regret: float


def evaluate(policy: Policy, tables: Sequence[OutcomeTable], *, seed: int = 0) -> Evaluation:
    """Roll the policy out greedily on each table; raises `TableError` for one that cannot be played.

    `seed` is that of the ten random sequences. Tables that the policy has learnt are recognised by their digest.
    """
    trees = [decision_tree(table) for table in tables]
    known = {learnt.sha256 for learnt in policy.lineage.tables}
    learnt = [tree for tree, table in zip(trees, tables, strict=True) if table_digest(table) in known]
    average = best_on_average(learnt)
    results = tuple(_result(policy, table, tree, average, seed) for table, tree in zip(tables, trees, strict=True))
    return Evaluation(
        policy=policy.name,
        version=policy.version,
        tables=results,
        mean_regret=sum(result.regret for result in results) / max(len(results), 1),
    )


def greedy_sequence(policy: Policy, tree: DecisionTree) -> tuple[int, ...]:
    """Return the actions (indices into the table's) that the policy chooses, one after the other."""
    return tree.follow(lambda request: decide(policy, request).action)


def sequence_result(tree: DecisionTree, sequence: tuple[int, ...]) -> SequenceResult:
    """Look up the result of a sequence."""
    accuracy = tree.accuracies[tree.sequences.index(sequence)]
    return SequenceResult(
        actions=tuple(str(tree.actions[index]) for index in sequence), accuracy=accuracy, rank=tree.rank(accuracy)
    )


def _result(
    policy: Policy, table: OutcomeTable, tree: DecisionTree, average: tuple[int, ...] | None, seed: int
) -> TableResult:
    best = sequence_result(tree, best_sequence(tree))
    sequence = greedy_sequence(policy, tree)
    reached = sequence_result(tree, sequence)
    by_seed = accuracies_by_seed(table)
    return TableResult(
        table=tree.name,
        model=tree.model,
        scenario=tree.scenario,
        sequences=len(tree.sequences),
        actions=reached.actions,
        accuracy=reached.accuracy,
        rank=reached.rank,
        regret=best.accuracy - reached.accuracy,
        none=sequence_result(tree, none_sequence(tree)),
        random_mean_accuracy=random_mean(tree),
        random_ten_mean_accuracy=random_mean_of_ten(tree, seed),
        best=best,
        heuristic=sequence_result(tree, heuristic_sequence(tree)),
        best_on_average=sequence_result(tree, average) if average in tree.sequences else None,
        noise=None if by_seed is None else result_noise(by_seed, tree.sequences.index(sequence)),
    )


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
