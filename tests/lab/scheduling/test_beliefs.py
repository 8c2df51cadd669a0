"""What is believed of a cluster, and the prior that is learnt over clusters."""

from __future__ import annotations

import numpy as np
import pytest

from espalier_lab.scheduling.placement.beliefs import Belief, wide_prior
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import PlacedStepTime, slowdown
from espalier_lab.scheduling.placement.placers import Model, run
from espalier_lab.scheduling.placement.prior import learn_prior
from espalier_lab.scheduling.placement.tasks import KINDS, Family, episode, kinds
from espalier_lab.scheduling.seed_split import SeedSplit

NODES = 4


def three_jobs() -> tuple[Occupancy, PlacedJob]:
    """Return a cluster with three jobs on node 0, and the first of them."""
    occupancy = Occupancy(NODES, 4, 2)
    first = PlacedJob(2, ((0, 1), (1, 1)))
    occupancy.add("one", first)
    occupancy.add("two", PlacedJob(5, ((0, 2),)))
    occupancy.add("three", PlacedJob(9, ((0, 1),)))
    return occupancy, first


def test_the_derivative_is_that_of_the_formula() -> None:
    occupancy, placed = three_jobs()
    belief = Belief(wide_prior(), NODES)
    belief.mean = belief.mean + np.random.default_rng(0).normal(0, 0.2, len(belief.mean))
    belief._tell()
    worst = slowdown(belief, occupancy, "one", placed)
    found = belief.compute_gradient(occupancy, "one", placed, worst)
    start, step = belief.mean.copy(), 1e-6
    for index in range(NODES + 2 * KINDS):
        belief.mean = start.copy()
        belief.mean[index] += step
        belief._tell()
        higher = slowdown(belief, occupancy, "one", placed).ratio
        assert (np.log(higher) - np.log(worst.ratio)) / step == pytest.approx(found[index], abs=1e-4)


def test_a_slow_node_is_found_and_the_doubt_shrinks() -> None:
    occupancy = Occupancy(NODES, 4, 2)
    placed = PlacedJob(0, ((2, 1),))
    occupancy.add("one", placed)
    belief = Belief(wide_prior(), NODES)
    before = belief.doubt(occupancy, "one", placed)
    for _ in range(8):
        belief.learn(occupancy, "one", placed, PlacedStepTime(2 * kinds()[0].compute_seconds, 0.0))
    assert belief.slowness(2) == pytest.approx(2.0, rel=0.1)
    assert belief.slowness(1) == pytest.approx(np.exp(0.15))
    assert belief.doubt(occupancy, "one", placed) < before
    assert np.linalg.eigvalsh(belief.covariance).min() > 0


def test_what_was_measured_long_ago_is_forgotten() -> None:
    occupancy, placed = three_jobs()
    belief = Belief(wide_prior(), NODES, memory_seconds=100.0)
    for _ in range(5):
        belief.learn(occupancy, "one", placed, PlacedStepTime(9 * kinds()[2].compute_seconds, 0.5))
    fresh = Belief(wide_prior(), NODES)
    assert not np.allclose(belief.mean, fresh.mean)
    belief.pass_to(1e5)
    assert np.allclose(belief.mean, fresh.mean)
    assert np.allclose(belief.covariance, fresh.covariance)


def test_a_prior_learnt_on_other_clusters_knows_kinds() -> None:
    family = Family(jobs=40)
    prior = learn_prior([episode(family, SeedSplit.TRAIN, index) for index in range(8)], rounds=2)
    table = kinds()
    for found, hidden in (
        (prior.rest[:KINDS], [kind.sensitivity for kind in table]),
        (prior.rest[KINDS : 2 * KINDS], [kind.pressure for kind in table]),
    ):
        assert np.corrcoef(found, hidden)[0, 1] > 0.5
    drawn = episode(family, SeedSplit.CHOOSE, 0)
    assert run(PlacementCluster(drawn), Model(Belief(prior, family.nodes), optimism=0.2)) > 0
