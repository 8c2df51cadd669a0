"""How much the ranks of a whole table vary between its seeds, as `espalier_agent.evaluation.evaluate` takes noise."""

from __future__ import annotations

import itertools
import math
from typing import Final

import numpy as np

from espalier_agent.evaluation.evaluate import DRAWS, Floats, pooled_deviation, rank_intervals, ranks_of, truths_of
from espalier_core.base import Record

FIRST_FEW: Final = 5


class RankNoise(Record):
    """The noise of one table's ranks, estimated from its seeds."""

    table: str
    seeds: int
    sequences: int
    deviation: float
    """Pooled standard deviation of the noise in one seed's accuracy of one sequence."""
    standard_error: float
    """Standard error of a sequence's mean over the seeds."""
    rank_width: float
    """Ranks in the 90 % interval of a sequence's rank by its mean, on average over all sequences."""
    spearman: float
    """Rank correlation of two seeds' accuracies, mean over pairs; ties share the middle of their ranks."""
    kendall: float
    """Kendall's tau-b, mean over the same pairs."""
    first_among_first_five: float
    """Probability that the sequence that is best under one seed is truly among the best five."""
    regret_of_one_seed: float
    """Best mean of the other seeds, less their mean for the sequence that is best under one; mean over the seeds. A
    policy that memorised one seed's table would have this regret: a smaller one cannot be distinguished from noise."""


def rank_noise(table: str, accuracies: Floats, seed: int = 0) -> RankNoise:
    """Return the noise of the ranks of the table with this name, which has two seeds or more."""
    sequences, seeds = accuracies.shape
    deviation = pooled_deviation(accuracies)
    low, high = rank_intervals(accuracies, seed)
    pairs = list(itertools.combinations(range(seeds), 2))
    return RankNoise(
        table=table,
        seeds=seeds,
        sequences=sequences,
        deviation=deviation,
        standard_error=deviation / math.sqrt(seeds),
        rank_width=float((high - low + 1).mean()),
        spearman=float(np.mean([spearman(accuracies[:, one], accuracies[:, other]) for one, other in pairs])),
        kendall=float(np.mean([kendall(accuracies[:, one], accuracies[:, other]) for one, other in pairs])),
        first_among_first_five=_first_among_first(accuracies, deviation, np.random.default_rng(seed)),
        regret_of_one_seed=float(np.mean([_regret_of(accuracies, one) for one in range(seeds)])),
    )


def spearman(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation; 0 if all values of either are equal."""
    return _correlation(_middle_ranks(one), _middle_ranks(other))


def kendall(one: Floats, other: Floats) -> float:
    """Return Kendall's tau-b; 0 if all values of either are equal."""
    upper = np.triu_indices(len(one), 1)
    first, second = (np.sign(values[:, None] - values[None, :])[upper] for values in (one, other))
    norm = math.sqrt(float((first**2).sum()) * float((second**2).sum()))
    return float((first * second).sum()) / norm if norm > 0 else 0.0


def _first_among_first(accuracies: Floats, deviation: float, chance: np.random.Generator) -> float:
    truths = truths_of(accuracies, chance, DRAWS)
    seen = truths + deviation * chance.standard_normal(truths.shape)
    return float((ranks_of(truths)[np.arange(len(seen)), seen.argmax(axis=1)] <= FIRST_FEW).mean())


def _regret_of(accuracies: Floats, seed: int) -> float:
    own, others = accuracies[:, seed], np.delete(accuracies, seed, axis=1).mean(axis=1)
    # If several are equally good under the seed, any may be picked.
    return float(others.max() - others[own == own.max()].mean())


def _middle_ranks(values: Floats) -> Floats:
    ordered = np.sort(values)
    ranks: Floats = (np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")) / 2
    return ranks


def _correlation(one: Floats, other: Floats) -> float:
    one, other = one - one.mean(), other - other.mean()
    norm = math.sqrt(float((one**2).sum()) * float((other**2).sum()))
    return float((one * other).sum()) / norm if norm > 0 else 0.0
