"""RL²: the network remembers an episode, PPO learns by what it remembered, and it learns to use that."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import NetworkInputs
from espalier_lab.scheduling.learners.learner import LearnerSettings, SchedulingLearner
from espalier_lab.scheduling.learners.passed import Chosen, Passed
from espalier_lab.scheduling.learners.recurrent import remembering
from espalier_lab.scheduling.learners.rollout import Seen, tensors
from espalier_lab.scheduling.placement.actor import JOB, NODE, Actor
from espalier_lab.scheduling.placement.recurrent import STATE, RecallingEpisodes, RecurrentActor
from espalier_lab.scheduling.placement.reinforced import frozen, learn_remembering
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

SMALL = Family(jobs=8)
SETTINGS = LearnerSettings(teacher="emptiest", imitated=16, kept=1.0, episodes=4, steps=8, decisions=32, minibatch=8)


def reader(seed: int) -> RecurrentActor:
    """Return a network whose scores depend on its state, which those of a new one do not."""
    network = RecurrentActor(3, 4, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.actor.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def played(network: RecurrentActor, steps: int) -> tuple[list[Seen], list[torch.Tensor]]:
    """Return what is seen, and the scores, by step: the rule decides."""
    episodes = RecallingEpisodes(itertools.count(), 2, SeedSplit.TRAIN, family=SMALL)
    seen, scores = [], []
    with torch.no_grad(), remembering(network, 2):
        for _ in range(steps):
            seen.append(tensors(*episodes.seen()))
            scores.append(network(*seen[-1])[0])
            episodes.act(episodes.taught("emptiest"))
    return seen, scores


@torch.no_grad()
def test_what_is_unrolled_is_what_was_decided_by_and_depends_on_what_came_before() -> None:
    network = reader(1)
    seen, scores = played(network, 8)
    torch.testing.assert_close(network.unrolled(seen)[0], torch.cat(scores))
    forgotten, _ = network.unrolled(seen[4:])
    assert not torch.allclose(forgotten, torch.cat(scores[4:]))
    assert network.state is None


def test_episodes_tell_what_was_chosen_last_and_forget_it_when_they_are_over() -> None:
    episodes = RecallingEpisodes(itertools.count(), 1, SeedSplit.TRAIN, family=SMALL)
    told = episodes.seen()[0].cluster[..., NODE:]
    assert not told.any()
    for _ in range(SMALL.jobs - 1):
        shown = episodes.seen()[0]
        chosen = episodes.taught("emptiest")
        _, passed = episodes.act(chosen)
        told = episodes.seen()[0].cluster[0, :, NODE:]
        np.testing.assert_array_equal(told[:, 0], shown.options[0, 0, chosen[0]])
        np.testing.assert_array_equal(told[:, 1:-1], np.tile(shown.jobs[0], (len(told), 1)))
        np.testing.assert_allclose(told[:, -1], -passed.lost[0, 0], rtol=1e-6)
    episodes.act(episodes.taught("emptiest"))
    assert len(episodes.ended) == 1
    assert not episodes.seen()[0].cluster[..., NODE:].any()


def test_ppo_gives_decisions_the_probabilities_with_which_they_were_taken() -> None:
    """As long as weights do not change, whatever the minibatches."""
    episodes = RecallingEpisodes(itertools.count(), 4, SeedSplit.TRAIN, family=SMALL)
    heard: list[dict[str, float]] = []
    learner = SchedulingLearner(episodes, reader(2), replace(SETTINGS, rate=0.0), seed=0)
    learner.improve(lambda _, figures: heard.append(figures))
    assert heard
    assert heard[0]["moved"] == pytest.approx(0, abs=1e-5)


def test_a_seed_says_what_is_learnt_and_the_state_is_read() -> None:
    actors = [learn_remembering(3, SETTINGS, SMALL) for _ in range(2)]
    found = [frozen(actor, 2, SeedSplit.JUDGE, shift=True, family=SMALL) for actor in actors]
    assert found[0] == found[1]
    read = actors[0].actor.score[0].weight
    assert read[:, JOB + NODE : JOB + NODE + STATE].any()


def test_a_new_network_decides_as_one_without_a_memory() -> None:
    seen, scores = played(RecurrentActor(3, 4, 1), 3)
    without = Actor(3, 4, 1, state=STATE)
    for (jobs, options, cluster, present, mask), found in zip(seen, scores, strict=True):
        known = torch.cat([cluster[..., :NODE], torch.zeros(*cluster.shape[:2], STATE)], -1)
        torch.testing.assert_close(without(jobs, options, known, present, mask)[0], found)


@pytest.mark.parametrize("steps", [3, 5, 12])
def test_parts_of_episodes_and_several_at_once_are_refused(steps: int) -> None:
    settings = replace(SETTINGS, episodes=2, steps=steps, decisions=2 * steps)
    with pytest.raises(ValueError, match=f"steps: {steps} are not the decisions of one whole episode"):
        SchedulingLearner(Bandits(2, 6), RecurrentActor(1, 2, 0), settings, seed=0).improve()


class Bandits:
    """Clusters of two nodes, one of which is good: which one it is shows only in what a decision loses."""

    options = 2

    def __init__(self, count: int, steps: int) -> None:
        self._rng, self._steps, self._step = np.random.default_rng(0), steps, 0
        self._good = self._rng.integers(2, size=count)
        self._told = np.zeros((count, 2, JOB + 2), np.float32)
        self.window, self.present = np.zeros((count, 1), np.int64), np.ones((count, 1), bool)
        self.opened = np.zeros((count, 1))

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        count = len(self._good)
        nodes = np.concatenate([np.zeros((count, 2, NODE), np.float32), self._told], -1)
        options = np.broadcast_to(np.eye(2, dtype=np.float32), (count, 1, 2, 2)).copy()
        seen = NetworkInputs(np.zeros((count, 1, JOB), np.float32), options, nodes, np.ones((count, 1), np.float32))
        return seen, np.tile(np.array([True, True, False]), (count, 1))

    def speed_parts(self) -> NDArray[np.float64]:
        return np.zeros((len(self._good), 1))

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        count, self._step = len(chosen), self._step + 1
        lost = (chosen != self._good).astype(float)[:, None]
        self._told[..., 0], self._told[..., -1] = np.eye(2)[chosen], -lost
        over = self._step % self._steps == 0
        if over:
            self._good, self._told = self._rng.integers(2, size=count), np.zeros_like(self._told)
        return np.arange(count), Passed(lost, lost, np.full((count, 1), over))

    def taught(self, teacher: str) -> Chosen:
        raise NotImplementedError(teacher)


def test_it_learns_to_find_out_which_node_is_good() -> None:
    """Half of the decisions lose whoever remembers nothing; one half of a decision of six, who remembers all."""
    settings = replace(SETTINGS, episodes=64, steps=6, decisions=64 * 6 * 10, minibatch=192, rate=1e-2, epochs=4)
    heard: list[float] = []
    SchedulingLearner(Bandits(64, 6), RecurrentActor(1, 2, 0), settings, seed=0).improve(
        lambda _, figures: heard.append(figures["lost"])
    )
    assert heard[0] == pytest.approx(0.5, abs=0.1)
    assert heard[-1] < 0.35
