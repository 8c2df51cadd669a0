"""Learning of the prior of beliefs over many clusters: empirical Bayes by expectation and maximisation.

On each training episode a belief is updated from the prior so far; the next prior is the mean of the posteriors' means,
and the mean of their covariances plus the covariance of their means (Dempster, Laird and Rubin, 1977). Hidden
parameters are not used. Nodes are alike, so they share one mean and variance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from espalier_lab.scheduling.placement.beliefs import Belief, Prior, wide_prior
from espalier_lab.scheduling.placement.cluster import PendingGang, PlacementCluster
from espalier_lab.scheduling.placement.placers import Model, Placer, Random, run
from espalier_lab.scheduling.placement.tasks import PlacementEpisode


class _Exploring:
    """Places at random with a given probability, else by its model, so that all kinds meet."""

    def __init__(self, model: Model, seed: int, part: float) -> None:
        self._model, self._random = model, Random(seed)
        self._rng, self._part = np.random.default_rng((seed, 1)), part

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        by_model = self._model.choose(cluster, pending)
        return self._random.choose(cluster, pending) if self._rng.random() < self._part else by_model


def learn_prior(
    episodes: list[PlacementEpisode],
    *,
    rounds: int = 4,
    explore: float = 0.2,
    on_round: Callable[[int, float], None] = lambda *_: None,
) -> Prior:
    """Return the prior learnt on `episodes`, each on one cluster; `on_round` gets the round and the mean seconds."""
    prior = wide_prior()
    for turn in range(rounds):
        beliefs: list[Belief] = []
        seconds = []
        for index, episode in enumerate(episodes):
            belief = Belief(prior, episode.family.nodes)
            placer: Placer = _Exploring(Model(belief), index, explore)
            seconds.append(run(PlacementCluster(episode), placer))
            beliefs.append(belief)
        prior = _next(beliefs, episodes[0].family.nodes)
        on_round(turn, float(np.mean(seconds)))
    return prior


def _next(beliefs: list[Belief], nodes: int) -> Prior:
    means = np.array([belief.mean for belief in beliefs])
    spreads = np.array([belief.covariance for belief in beliefs])
    slow = means[:, :nodes]
    variance = float(slow.var() + spreads[:, range(nodes), range(nodes)].mean())
    rest = means[:, nodes:]
    centre = rest.mean(axis=0)
    covariance = spreads[:, nodes:, nodes:].mean(axis=0) + np.cov(rest.T, bias=True)
    return Prior((float(slow.mean()), variance), centre, covariance)
