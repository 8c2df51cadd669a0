"""Evaluation of a policy on outcome tables: the rank of its greedy sequence among all sequences (Lamelas 6.5).

It is compared with sequences chosen without a network.

Tables with several seeds show how much of a rank is noise (`rank_noise`). The accuracy of a sequence under a seed is
taken as the sequence's own value, plus the seed's (it moves all sequences alike, so it changes no rank), plus noise.
The noise's deviation is pooled over all sequences: two or three seeds give a poor estimate for each. So it is right on
average over a table's sequences, not for each of them. Sequences that share decisions also share a part of their noise,
which is ignored: two such sequences differ a little more reliably than shown here.

Ranks are simulated: the truth is drawn around the measured means. These are spread wider than the truth, because they
contain noise too, so where all sequences are nearly equal the intervals are too narrow rather than too wide.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final

import numpy as np
import numpy.typing as npt

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import DecisionTree, decision_tree, table_digest
from espalier_core.base import Record
from espalier_core.types.advice import heuristic
from espalier_core.types.outcomes import OutcomeTable, reward

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

COVERED: Final = 0.9
"""Share of the simulated ranks within an interval; half of the rest is beyond each end."""
DRAWS: Final = 2000
PAPER_RANDOM_RUNS: Final = 10
"""The paper's random baseline is the mean of ten random sequences."""


class ResultNoise(Record):
    """The noise of one sequence of a table."""

    standard_error: float
    rank_low: int
    """Lower end of the 90 % interval of its rank."""
    rank_high: int
    regret_in_errors: float | None
    """Regret in standard errors of a difference of two means; null where the seeds do not differ. If all 64 sequences
    of a table were equal, the best of them would be about 1.7 of these above any other."""


def accuracies_by_seed(table: OutcomeTable) -> Floats | None:
    """Return (sequences in lexicographic order, seeds); None if the table does not have two seeds or more."""
    found = [outcome.accuracies for outcome in sorted(table.sequences, key=lambda outcome: outcome.actions)]
    if table.seeds is None or len(table.seeds) < 2 or any(each is None for each in found):
        return None
    return np.array(found, dtype=np.float64)


def pooled_deviation(accuracies: Floats) -> float:
    """Return the deviation of one accuracy about its sequence's and its seed's mean, for (sequences, seeds)."""
    sequences, seeds = accuracies.shape
    left = accuracies - accuracies.mean(axis=1, keepdims=True) - accuracies.mean(axis=0) + accuracies.mean()
    # Differences by rounding alone count as 0.
    left[np.abs(left) < 1e-12] = 0.0
    freedom = max((sequences - 1) * (seeds - 1), 1)
    return math.sqrt(float((left**2).sum()) / freedom)


def simulated_ranks(accuracies: Floats, seed: int = 0, draws: int = DRAWS) -> Integers:
    """Return possible true ranks (draws, sequences) of the means of these accuracies (sequences, seeds)."""
    return ranks_of(truths_of(accuracies, np.random.default_rng(seed), draws))


def rank_intervals(accuracies: Floats, seed: int = 0) -> tuple[Integers, Integers]:
    """Return the first and the last rank (sequences,) of each sequence's 90 % interval."""
    tail = (1.0 - COVERED) / 2
    low, high = np.quantile(simulated_ranks(accuracies, seed), [tail, 1.0 - tail], axis=0, method="inverted_cdf")
    return low, high


def result_noise(accuracies: Floats, sequence: int, seed: int = 0) -> ResultNoise:
    """Return the noise of one sequence's rank and regret; `sequence` is its row."""
    low, high = rank_intervals(accuracies, seed)
    means = accuracies.mean(axis=1)
    error = pooled_deviation(accuracies) / math.sqrt(accuracies.shape[1])
    regret = float(means.max() - means[sequence])
    return ResultNoise(
        standard_error=error,
        rank_low=int(low[sequence]),
        rank_high=int(high[sequence]),
        regret_in_errors=regret / (math.sqrt(2) * error) if error > 0 else None,
    )


def truths_of(accuracies: Floats, chance: np.random.Generator, draws: int) -> Floats:
    sequences, seeds = accuracies.shape
    error = pooled_deviation(accuracies) / math.sqrt(seeds)
    truths: Floats = accuracies.mean(axis=1) + error * chance.standard_normal((draws, sequences))
    return truths


def ranks_of(values: Floats) -> Integers:
    """Return 1 + the number of higher values in the same row, for each of (rows, sequences)."""
    count = values.shape[1]
    return np.stack([1 + count - np.searchsorted(np.sort(row), row, side="right") for row in values])


class SequenceResult(Record):
    """One sequence of decisions and its result."""

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
    """Mean over all sequences, which is the expectation of uniformly random decisions."""
    random_ten_mean_accuracy: float
    """Mean of ten random sequences, the paper's baseline; it depends on the seed."""
    best: SequenceResult
    heuristic: SequenceResult
    """The trainer's fallback: the first growth point while a tenth of the budget is left."""
    best_on_average: SequenceResult | None
    """The sequence that is best on average over the policy's learnt tables: a baseline without a network. None if no
    such table is given, or if they have other actions."""
    noise: ResultNoise | None = None
    """Uncertainty of rank and regret; None if the table has fewer than two seeds."""


class PolicyEvaluation(Record):
    """A policy on several tables."""

    policy: str
    version: str
    tables: tuple[TableResult, ...]
    mean_regret: float


def evaluate(policy: Policy, tables: Sequence[OutcomeTable], *, seed: int = 0) -> PolicyEvaluation:
    """Roll the policy out greedily on each table; raise `TableError` for one that cannot be played.

    `seed` is for the ten random sequences. Tables that the policy has learnt are recognised by their digest.
    """
    trees = [decision_tree(table) for table in tables]
    known = {learnt.sha256 for learnt in policy.lineage.tables}
    learnt = [tree for tree, table in zip(trees, tables, strict=True) if table_digest(table) in known]
    average = best_on_average(learnt)
    results = tuple(_result(policy, table, tree, average, seed) for table, tree in zip(tables, trees, strict=True))
    return PolicyEvaluation(
        policy=policy.name,
        version=policy.version,
        tables=results,
        mean_regret=sum(result.regret for result in results) / max(len(results), 1),
    )


def greedy_sequence(policy: Policy, tree: DecisionTree) -> tuple[int, ...]:
    """Return the policy's chosen actions (indices into the table's), one after the other."""
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
    """Return the sequence that does nothing each time."""
    return (len(tree.actions) - 1,) * tree.decisions


def best_sequence(tree: DecisionTree) -> tuple[int, ...]:
    """Return the sequence that ended with the highest accuracy."""
    return tree.sequences[tree.accuracies.index(max(tree.accuracies))]


def heuristic_sequence(tree: DecisionTree) -> tuple[int, ...]:
    """Return the sequence that deepens the first growth point while a tenth of the budget is left."""
    return tree.follow(heuristic)


def random_mean(tree: DecisionTree) -> float:
    """Return the mean accuracy of all sequences, which is the expectation of uniformly random decisions."""
    return fmean(tree.accuracies)


def random_mean_of_ten(tree: DecisionTree, seed: int) -> float:
    """Return the paper's baseline: the mean accuracy of ten random sequences, which depends on the seed."""
    # The name gives tables of one seed independent random numbers. Not for security.
    chance = random.Random(f"{seed}/{tree.name}")
    return fmean(chance.choice(tree.accuracies) for _ in range(PAPER_RANDOM_RUNS))


def best_on_average(trees: Sequence[DecisionTree]) -> tuple[int, ...] | None:
    """Return the sequence with the greatest mean standardised reward on these tables.

    None without tables, or if their sequences differ: an action's number would mean another action in each.
    """
    if not trees or any(tree.sequences != trees[0].sequences for tree in trees):
        return None
    totals = [0.0] * len(trees[0].sequences)
    for tree in trees:
        rewards = [reward(accuracy) for accuracy in tree.accuracies]
        mean, spread = fmean(rewards), max(pstdev(rewards), 1e-12)
        totals = [total + (value - mean) / spread for total, value in zip(totals, rewards, strict=True)]
    return trees[0].sequences[totals.index(max(totals))]
