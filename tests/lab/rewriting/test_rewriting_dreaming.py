"""A world model of rewriting, its dream, and a controller that learns in it without a step of the real environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from drawn_models import row_model
from gymnasium.error import ResetNeeded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier_lab.rewriting.engine import OperatorCosts, apply, verify
from espalier_lab.rewriting.learned import IllegalActionError, RewriteLearnerSettings, RewritesEnvironment, walks
from espalier_lab.rewriting.learned.dreaming import (
    Awake,
    Controller,
    Dream,
    Uniform,
    World,
    WorldSettings,
    judged,
    learn_controller,
    learn_world,
    record,
)
from espalier_lab.rewriting.learned.dreaming.blocks import EpisodeBlock, mask_of
from espalier_lab.rewriting.learned.dreaming.controller import Thought
from espalier_lab.rewriting.learned.dreaming.memory import HIDDEN, Foretold, Memory, State
from espalier_lab.rewriting.learned.dreaming.mind import MIND_SIZE
from espalier_lab.rewriting.learned.dreaming.mixture import Mixture
from espalier_lab.rewriting.learned.dreaming.vision import LATENT
from espalier_lab.rewriting.learned.dreaming.world import _descended
from espalier_lab.rewriting.learned.environment import FORBIDDEN, LOCATIONS, STOP
from espalier_lab.rewriting.learned.rollout import RewriteEpisode, play
from espalier_lab.rewriting.learned.seen import GraphObservation

TINY = WorldSettings(seeing=2, remembering=2)
HORIZON = 8


@pytest.fixture(scope="module")
def environment() -> RewritesEnvironment:
    """Every operator costs one tick of a clock, so that nothing depends on the machine."""
    torch.manual_seed(0)
    net = row_model(["chain", "gelu by hand"])
    tick = itertools.count()
    return RewritesEnvironment(net, OperatorCosts(net[0], clock=lambda: float(next(tick))), horizon=HORIZON)


@pytest.fixture(scope="module")
def episodes(environment: RewritesEnvironment) -> list[RewriteEpisode[GraphObservation]]:
    return record(environment, 40, seed=0)


@pytest.fixture(scope="module")
def world(episodes: list[RewriteEpisode[GraphObservation]]) -> World:
    return learn_world(episodes, TINY, seed=0)


def mixture(seed: int) -> Mixture:
    draw = torch.Generator().manual_seed(seed)
    scales = torch.rand(2, 3, 4, 5, generator=draw) + 0.1
    return Mixture(torch.randn(2, 3, 4, generator=draw), torch.randn(2, 3, 4, 5, generator=draw), scales)


def test_the_likelihood_is_bishops() -> None:
    one = mixture(0)
    values = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    off = (values[..., None, :] - one.means) / one.scales
    parts = (-(off**2) / 2 - one.scales.log() - math.log(2 * math.pi) / 2).sum(-1)
    expected = torch.log((torch.softmax(one.logits, -1) * parts.exp()).sum(-1))
    assert torch.allclose(one.log_prob(values), expected, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_a_temperature_sharpens_the_weights_and_narrows_the_gaussians(temperature: float) -> None:
    count = 20_000
    one = Mixture(torch.tensor([[0.0, 1.0]]), torch.tensor([[[-50.0], [50.0]]]), torch.tensor([[[1.0], [2.0]]]))
    many = Mixture(*(part.expand(count, *part.shape[1:]) for part in (one.logits, one.means, one.scales)))
    drawn = many.at(temperature).sample(torch.Generator().manual_seed(0))[:, 0]
    second = drawn > 0
    share = 1 / (1 + math.exp(-1 / temperature))
    assert float(second.float().mean()) == pytest.approx(share, abs=0.02)
    assert float(drawn[second].std()) == pytest.approx(2 * math.sqrt(temperature), rel=0.05)
    assert float(drawn[second].mean()) == pytest.approx(50, abs=0.1)
    assert one.mode().tolist() == [[50.0]]


def test_episodes_are_recorded_whole(
    environment: RewritesEnvironment, episodes: list[RewriteEpisode[GraphObservation]]
) -> None:
    counts = [len(one.actions) for one in episodes]
    assert 40 <= sum(counts) < 40 + HORIZON
    block = EpisodeBlock.of(episodes)
    assert block.played.sum(1).tolist() == counts
    for row, one in enumerate(episodes):
        assert len(one.seen) == counts[row]
        assert block.ends[row].nonzero()[:, 0].tolist() == [counts[row] - 1]
        assert torch.equal(block.masks[row, 0], mask_of(one.seen[1] if counts[row] > 1 else one.last))
        # Every walk goes on until it stops or the horizon comes.
        assert one.actions[-1] == 0 or counts[row] == HORIZON
        rule, place = one.seen[0].action(one.actions[0])
        assert block.actions[row, 0].nonzero()[:, 0].tolist() == [rule, STOP + 1 + place]
    assert all(action != 0 for one in episodes for action in one.actions[:-1])


def test_the_same_episodes_and_seed_give_the_same_world(
    world: World, episodes: list[RewriteEpisode[GraphObservation]]
) -> None:
    told: list[tuple[str, int, float]] = []
    again = learn_world(episodes, TINY, 0, lambda *news: told.append(news))
    for part in ("vision", "memory"):
        first, second = getattr(world, part).state_dict(), getattr(again, part).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        losses = [loss for its, _, loss in told if its == part]
        assert len(losses) == 2
        assert losses[1] < losses[0]


def test_a_world_is_learnt_from_two_graphs_and_not_from_fewer(environment: RewritesEnvironment) -> None:
    single = record(environment, 2, 0, Uniform(stopping=1.0))
    assert [len(each.seen) for each in single] == [1, 1]
    learn_world(single, TINY, 0)
    for few in (single[:1], []):
        with pytest.raises(ValueError, match=rf"episodes: {len(few)} graphs were recorded; record at least two"):
            learn_world(few, TINY, 0)


@given(count=st.integers(2, 5000), minibatch=st.integers(2, 64))
@example(count=4033, minibatch=64)
@settings(max_examples=20, deadline=None)
def test_no_minibatch_is_one_graph(count: int, minibatch: int) -> None:
    sizes: list[int] = []
    network = nn.Linear(1, 1)

    def loss(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return network(rows.float()[:, None]).mean()

    chosen = WorldSettings(seeing=1, remembering=1)
    assert [done for done, _ in _descended(network, loss, count, minibatch, 1, chosen)] == [1]
    assert sum(sizes) == count
    assert min(sizes) > 1 or minibatch == 2
    assert max(sizes) <= minibatch


def dreamt(dream: Dream, seed: int) -> list[tuple[list[float], float, bool, list[list[int]]]]:
    """Dream three episodes of random rewrites."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(3):
        _, info = dream.reset(seed=seed if number == 0 else None)
        over = False
        while not over:
            places = np.argwhere(info["location_mask"])
            known, reward, ended, truncated, info = dream.step(places[draw.integers(len(places))])
            over = ended or truncated
            assert dream.observation_space.contains(known)
            found.append((known.tolist(), reward, ended, info["location_mask"].tolist()))
    return found


def test_a_seed_decides_a_dream(world: World, episodes: list[RewriteEpisode[GraphObservation]]) -> None:
    dream = Dream(world, episodes[0].seen[0], horizon=HORIZON)
    first, second, other = (dreamt(dream, seed) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_a_dream_begins_as_the_real_environment_does_and_forbids_what_its_masks_do(
    world: World, environment: RewritesEnvironment, episodes: list[RewriteEpisode[GraphObservation]]
) -> None:
    dream = Dream(world, episodes[0].seen[0], horizon=HORIZON, illegal="penalize")
    with pytest.raises(ResetNeeded):
        dream.step(np.array([STOP, 0]))
    known, info = dream.reset(seed=0)
    real, its = Awake(environment, world).reset()
    np.testing.assert_allclose(known, real, atol=1e-6)
    for name in ("rule_mask", "location_mask"):
        np.testing.assert_array_equal(info[name], its[name])
    rule = next(number for number, holds in enumerate(info["rule_mask"]) if not holds)
    for step in range(HORIZON):
        after, reward, ended, truncated, masks = dream.step(np.array([rule, 3]))
        assert (reward, ended, truncated) == (FORBIDDEN, False, step == HORIZON - 1)
        np.testing.assert_array_equal(after, known)
        np.testing.assert_array_equal(masks["location_mask"], info["location_mask"])
    strict = Dream(world, episodes[0].seen[0])
    strict.reset(seed=0)
    for pair in ([rule, 3], [-1, 0], [STOP + 1, 0]):
        with pytest.raises(IllegalActionError):
            strict.step(np.array(pair))
    with pytest.raises(ValueError, match="temperature is 0"):
        Dream(world, episodes[0].seen[0], temperature=0)


def test_the_actions_of_the_masks_have_all_the_probability() -> None:
    draw = torch.Generator().manual_seed(0)
    masks = torch.rand(4, STOP, LOCATIONS, generator=draw) < 0.02
    masks[3] = False
    thoughts = [
        Thought(torch.randn(MIND_SIZE, generator=draw).numpy(), mask) for mask in masks.numpy().astype(np.bool_)
    ]
    torch.manual_seed(0)
    scores = Controller().scores(thoughts)
    assert torch.allclose(scores.logs.exp().sum(1), torch.ones(4))
    for row, thought in zip(scores.logs, thoughts, strict=True):
        offered = np.zeros((STOP + 1, LOCATIONS), bool)
        for number in torch.isfinite(row).nonzero()[:, 0].tolist():
            offered[tuple(thought.action(number))] = True
        np.testing.assert_array_equal(offered[:STOP], thought.mask)
        assert offered[STOP].nonzero()[0].tolist() == [0]
    torch.autograd.backward(scores.logs[torch.isfinite(scores.logs)].sum())


def test_a_controller_learns_without_a_step_of_the_real_environment(
    world: World,
    environment: RewritesEnvironment,
    episodes: list[RewriteEpisode[GraphObservation]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = RewriteLearnerSettings(updates=2, episodes=3, passes=1)
    with monkeypatch.context() as patch:
        for name in ("reset", "step"):
            patch.setattr(RewritesEnvironment, name, None)
        dream = Dream(world, episodes[0].seen[0], horizon=HORIZON)
        first, second, other = (learn_controller(dream, settings, seed) for seed in (0, 0, 1))
    weights = [torch.cat([one.flatten() for one in policy.parameters()]) for policy in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    awake = Awake(environment, world)
    found = walks(awake, first, evaluations=7)
    assert 0 < found.evaluations <= 7
    assert found.best[0][0] <= found.start == environment.start.cost
    torch.manual_seed(0)
    module, inputs = row_model(["chain", "gelu by hand"])
    assert verify(module, apply(module, found.plan, inputs), inputs, Tensor.sum).right
    # And it can go on learning there, several episodes at a time.
    assert len(play([awake, awake.__copy__()], first, torch.Generator().manual_seed(0))) == 2


def test_walks_are_of_rewrites() -> None:
    with pytest.raises(TypeError, match="give a RewritesEnvironment"):
        walks(gymnasium.make("CartPole-v1"), Uniform(), evaluations=1)


class Oracle(Memory):
    """Foretells what was recorded, but rewards that are off by a factor."""

    def __init__(self, block: EpisodeBlock, latents: Tensor, factor: float) -> None:
        super().__init__()
        self.block, self.next, self.factor, self.step = block, latents[:, 1:], factor, 0

    def forward(self, latents: Tensor, actions: Tensor, state: State | None = None) -> tuple[Foretold, State]:
        now = slice(self.step, self.step + 1)
        self.step += 1
        assert torch.equal(actions, self.block.actions[:, now])
        means = self.next[:, now, None]
        sure = Mixture(torch.zeros(means.shape[:-1]), means, torch.ones_like(means))
        masks, ends = (2 * part[:, now] - 1 for part in (self.block.masks, self.block.ends))
        zeros = torch.zeros(1, len(latents), HIDDEN)
        return Foretold(sure, self.factor * self.block.rewards[:, now], masks, ends), (zeros, zeros)


@pytest.mark.parametrize("dreaming", [False, True])
def test_a_world_is_judged_by_what_it_foretells(
    world: World, episodes: Sequence[RewriteEpisode[GraphObservation]], dreaming: bool
) -> None:
    block, latents = EpisodeBlock.of(episodes), world.latents(episodes)
    assert latents.shape == (len(episodes), block.played.shape[1] + 1, LATENT)
    right = judged(replace(world, memory=Oracle(block, latents, 1.0), unit=1.0), episodes, dreaming=dreaming)
    assert (right.rewards, right.masks, right.offered, right.ends) == pytest.approx((1, 1, 1, 1))
    none = judged(replace(world, memory=Oracle(block, latents, 0.0), unit=1.0), episodes, dreaming=dreaming)
    rewards = block.rewards[block.played]
    assert none.rewards == pytest.approx(1 - float((rewards**2).mean() / rewards.var(correction=0)), rel=1e-4)
