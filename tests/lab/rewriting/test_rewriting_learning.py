"""A learnt policy in the place of a search, and what the table of costs misjudges, learnt."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from drawn_models import row_model
from torch import Tensor

from espalier_lab.rewriting.engine import OperatorCosts, apply, capture, search, verify
from espalier_lab.rewriting.engine.search import SearchState
from espalier_lab.rewriting.learned import RewriteLearnerSettings, RewritePolicy, RewritesEnvironment, learn, walks
from espalier_lab.rewriting.learned.environment import LOCATIONS, STOP
from espalier_lab.rewriting.learned.families import member
from espalier_lab.rewriting.learned.nets import Net
from espalier_lab.rewriting.learned.residual import MeasuredPlans, choose
from espalier_lab.rewriting.learned.rollout import play
from espalier_lab.rewriting.learned.seen import Batch, GraphObservation


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return row_model(["norm by hand", "attention by hand", "chain", "gelu by hand"])


@pytest.fixture(scope="module")
def environment(net: Net) -> RewritesEnvironment:
    """Every operator costs one tick of a clock, so that nothing depends on the machine."""
    tick = itertools.count()
    return RewritesEnvironment(net, OperatorCosts(net[0], clock=lambda: float(next(tick))), horizon=12)


@pytest.fixture
def policy() -> RewritePolicy:
    torch.manual_seed(1)
    return RewritePolicy().eval()


def walked(environment: RewritesEnvironment, steps: int) -> list[tuple[GraphObservation, Tensor]]:
    """Return what is seen on a random walk, and the mask of the environment."""
    draw = np.random.default_rng(0)
    observation, info = environment.reset()
    found = [(GraphObservation.of(observation, info), torch.from_numpy(info["location_mask"]))]
    for _ in range(steps):
        rules, places = info["location_mask"][:STOP].nonzero()
        one = draw.integers(len(rules))
        observation, _, _, _, info = environment.step(np.array([rules[one], places[one]]))
        found.append((GraphObservation.of(observation, info), torch.from_numpy(info["location_mask"])))
    return found


def test_the_actions_of_the_masks_have_all_the_probability(
    environment: RewritesEnvironment, policy: RewritePolicy
) -> None:
    seen = walked(environment, 4)
    logs = policy(Batch.of([one for one, _ in seen])).logs
    assert torch.allclose(logs.exp().sum(1), torch.ones(len(seen)))
    for row, (one, mask) in zip(logs, seen, strict=True):
        offered = torch.zeros(STOP + 1, LOCATIONS)
        for number in torch.isfinite(row).nonzero()[:, 0].tolist():
            rule, place = one.action(number)
            offered[rule, place] += 1
        assert torch.equal(offered, mask.float())


def test_graphs_do_not_see_one_another_in_a_batch(environment: RewritesEnvironment, policy: RewritePolicy) -> None:
    seen = [one for one, _ in walked(environment, 4)]
    together = policy(Batch.of(seen))
    for row, one in enumerate(seen):
        alone = policy(Batch.of([one]))
        width = alone.logs.shape[1]
        torch.testing.assert_close(together.logs[row, :width], alone.logs[0], rtol=1e-4, atol=1e-5)
        assert not torch.isfinite(together.logs[row, width:]).any()
        torch.testing.assert_close(together.values[row], alone.values[0], rtol=1e-4, atol=1e-5)


def test_a_graph_without_matches_leaves_nothing_but_to_stop(
    environment: RewritesEnvironment, policy: RewritePolicy
) -> None:
    seen, _ = walked(environment, 0)[0]
    none = np.zeros(0, np.int64)
    scores = policy(Batch.of([GraphObservation(seen.nodes, seen.edges, none, none, none)]))
    assert scores.logs.tolist() == [[0.0]]


def test_episodes_tell_what_they_earned(environment: RewritesEnvironment, policy: RewritePolicy) -> None:
    (episode,) = play([environment], policy, torch.Generator().manual_seed(0))
    gain = math.log(environment.start.cost / environment.state.cost)
    assert sum(episode.rewards) == pytest.approx(gain)
    assert len(episode.seen) == len(episode.actions) == len(episode.logs) == len(episode.values)
    again = policy(Batch.of(episode.seen)).logs.gather(1, torch.tensor(episode.actions)[:, None])[:, 0]
    torch.testing.assert_close(again, torch.tensor(episode.logs), rtol=1e-4, atol=1e-5)


def test_a_seed_decides_what_is_learnt(environment: RewritesEnvironment) -> None:
    settings = RewriteLearnerSettings(updates=2, episodes=3, passes=1)
    told: list[tuple[int, int]] = []
    first, second, other = (
        learn({"one": [environment]}, settings, seed, lambda updates, count, _: told.append((updates, count)))
        for seed in (0, 0, 1)
    )
    weights = [torch.cat([one.flatten() for one in policy.parameters()]) for policy in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(first.met, second.met)
    assert first.met.any()
    assert [updates for updates, _ in told] == [1, 2] * 3
    assert told[0][1] >= settings.episodes


def test_rules_that_were_not_met_are_taken_for_the_mean_of_those_that_were(
    environment: RewritesEnvironment, policy: RewritePolicy
) -> None:
    seen, _ = walked(environment, 0)[0]
    policy.met[:] = True
    policy.met[seen.rules[0]] = False
    before = policy(Batch.of([seen])).logs
    with torch.no_grad():
        policy.rules.weight[seen.rules[0]] += 5
    assert torch.equal(policy(Batch.of([seen])).logs, before)


@pytest.mark.parametrize("evaluations", [1, 7, 30])
def test_walks_count_and_find_plans_that_compute_the_same(
    net: Net, environment: RewritesEnvironment, policy: RewritePolicy, evaluations: int
) -> None:
    found = walks(environment, policy, evaluations=evaluations)
    assert found.evaluations <= evaluations
    costs = [cost for cost, _ in found.best]
    assert costs == sorted(costs)
    assert costs[0] <= found.start == environment.start.cost
    assert costs[0] >= search(environment.start.graph, environment.costs, method="beam").best[0][0]
    module, inputs = net
    assert verify(module, apply(module, found.plan, inputs), inputs, Tensor.sum).right


@pytest.mark.parametrize("family", ["handwritten", "repvgg-like"])  # torchvision's take seconds to import
def test_a_number_decides_a_member_of_a_family(family: str) -> None:
    first, second = (capture(*member(family, 3)).fingerprint() for _ in range(2))
    assert first == second
    assert len({capture(*member(family, number)).fingerprint() for number in (4, 5)}) > 1


def states(seed: int) -> tuple[SearchState, list[SearchState]]:
    """Return a net and the cheapest graphs one or two rewrites away; an operator costs a tick of a clock."""
    torch.manual_seed(seed)
    module, inputs = row_model(["norm by hand", "attention by hand", "chain", "gelu by hand"])
    tick = itertools.count()
    start = SearchState.start(capture(module, inputs), OperatorCosts(module, clock=lambda: float(next(tick))))
    once = [start.after(match) for match in start.matches.all()]
    found = {
        one.graph.key(): one for one in (*once, *(one.after(match) for one in once for match in one.matches.all()))
    }
    return start, sorted(found.values(), key=lambda one: one.cost)[:12]


def truth(start: SearchState, state: SearchState) -> float:
    """Return a gain that is the table's, but for attention, which takes three times as long as it should."""
    bad = any(step.rule.name == "AttentionByHand" for step in state.steps)
    return start.cost / state.cost / (3 if bad else 1)


def test_a_third_of_the_measurements_finds_what_other_nets_have_taught() -> None:
    start, candidates = states(0)
    other, its = states(1)
    assert any(truth(start, one) < 1 for one in candidates)
    known = MeasuredPlans()
    for one in its:
        known.add(other, one, truth(other, one))
    choice = choose(start, candidates, lambda one: truth(start, one), measurements=4, others=known)
    assert len(choice.gains) == 4
    assert choice.gains[choice.place] == max(truth(start, one) for one in candidates)


def test_the_first_plan_is_the_tables_where_nothing_is_known_and_none_is_measured_twice() -> None:
    start, candidates = states(0)
    candidates = candidates[:5]
    asked: list[SearchState] = []

    def measure(state: SearchState) -> float:
        asked.append(state)
        return truth(start, state)

    choice = choose(start, candidates, measure, measurements=10 * len(candidates))
    assert asked[0] is candidates[0]
    assert len({id(one) for one in asked}) == len(asked) == len(candidates)
    assert choice.gains[choice.place] == max(choice.gains.values())


def test_nothing_to_choose_from_is_refused() -> None:
    start, candidates = states(0)
    with pytest.raises(ValueError, match="0 candidates, 3 measurements"):
        choose(start, [], lambda one: 1.0, measurements=3)
    with pytest.raises(ValueError, match="0 measurements"):
        choose(start, candidates, lambda one: 1.0, measurements=0)
