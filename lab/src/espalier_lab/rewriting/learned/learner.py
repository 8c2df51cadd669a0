"""Masked PPO with two heads and a learned critic (Schulman et al. 2017), on the returns of the table of costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import gymnasium
import torch
from torch import Tensor

from espalier_lab.learners.core import advantages, clipped_loss, entropy
from espalier_lab.learners.rollouts import descend
from espalier_lab.rewriting.learned.environment import Action, RewritesEnvironment
from espalier_lab.rewriting.learned.learnable import LearnablePolicy
from espalier_lab.rewriting.learned.policy import RewritePolicy
from espalier_lab.rewriting.learned.rollout import RewriteEpisode, play


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteLearnerSettings:
    """PPO hyperparameters."""

    updates: int = 16
    episodes: int = 24
    """Number of episodes in an update; the families have equal shares."""
    passes: int = 3
    """Number of passes over the decisions of an update."""
    minibatch: int = 192
    """Number of decisions in a minibatch."""
    rate: float = 2e-3
    """Adam's learning rate; it falls to a tenth."""
    clip: float = 0.2
    gae: float = 0.95
    """λ; returns are not discounted."""
    entropy: float = 0.02
    """Weight of the entropy of the joint action; it falls to 0."""
    value: float = 0.5
    """Weight of the critic's error."""
    gradient_norm: float = 0.5


OnUpdate = Callable[[int, int, Mapping[str, float]], None]
"""Receives the updates and the decisions so far, and the mean return of each family in the last update."""

P = TypeVar("P", bound=LearnablePolicy[Any])


def ignored(updates: int, decisions: int, returns: Mapping[str, float]) -> None:
    """Ignore the progress."""


def learn(
    families: Mapping[str, Sequence[RewritesEnvironment]],
    settings: RewriteLearnerSettings,
    seed: int,
    on_update: OnUpdate = ignored,
) -> RewritePolicy:
    """Learn a policy for the nets of some families; the same seed and table of costs give the same policy.

    Raise `LearningError` as `practise` does.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = RewritePolicy()
    return practise(policy, families, settings, seed, on_update)


def practise(
    policy: P,
    families: Mapping[str, Sequence[gymnasium.Env[Any, Action]]],
    settings: RewriteLearnerSettings,
    seed: int,
    on_update: OnUpdate = ignored,
) -> P:
    """Improve a policy of any kind, in place, in the environments of some families, and return it.

    Advantages are normalised within a family, so that a family with small gains counts as much. Raise
    `espalier_agent.learners.learning.LearningError` if the loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.rate, fused=True)
    share = max(1, settings.episodes // len(families))
    learnt_from = 0
    for update in range(settings.updates):
        left = 1 - update / settings.updates
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * (0.1 + 0.9 * left)
        # A shallow copy begins its own episodes: the graphs never change.
        chosen = [
            (name, copy.copy(members[int(torch.randint(len(members), (), generator=generator))]))
            for name, members in families.items()
            for _ in range(share)
        ]
        episodes = play([environment for _, environment in chosen], policy, generator)
        for episode in episodes:
            for seen in episode.seen:
                policy.meet(seen)
        names = [name for name, _ in chosen]
        decisions = _decisions(episodes, names, settings.gae)
        learnt_from += len(decisions.seen)
        for _ in range(settings.passes):
            order = torch.randperm(len(decisions.seen), generator=generator)
            for chunk in torch.split(order, settings.minibatch):
                loss = _loss(policy, decisions, chunk, settings, left)
                descend(optimizer, loss, policy, settings.gradient_norm, update)
        totals = [(name, sum(episode.rewards)) for name, episode in zip(names, episodes, strict=True)]
        on_update(
            update + 1, learnt_from, {name: fmean(total for its, total in totals if its == name) for name in families}
        )
    return policy.eval()


@dataclass(frozen=True, slots=True)
class _Decisions:
    """All decisions of an update."""

    seen: list[Any]
    """Inputs in the policy's form."""
    actions: Tensor
    logs: Tensor
    gained: Tensor
    """Normalised advantages."""
    returns: Tensor


def _decisions(episodes: Sequence[RewriteEpisode[Any]], names: Sequence[str], gae: float) -> _Decisions:
    longest = max(len(one.actions) for one in episodes)
    rewards, values = torch.zeros(len(episodes), longest), torch.zeros(len(episodes), longest)
    playing = torch.zeros(len(episodes), longest, dtype=torch.bool)
    for row, one in enumerate(episodes):
        count = len(one.actions)
        rewards[row, :count], values[row, :count] = torch.tensor(one.rewards), torch.tensor(one.values)
        playing[row, :count] = True
    gained = advantages(rewards, values, gae)
    returns = gained + values
    for name in set(names):
        rows = torch.tensor([its == name for its in names])[:, None] & playing
        gained[rows] = (gained[rows] - gained[rows].mean()) / (gained[rows].std(correction=0) + 1e-6)
    return _Decisions(
        [seen for one in episodes for seen in one.seen],
        torch.tensor([action for one in episodes for action in one.actions]),
        torch.tensor([log for one in episodes for log in one.logs]),
        gained[playing],
        returns[playing],
    )


def _loss(
    policy: LearnablePolicy[Any], decisions: _Decisions, chunk: Tensor, settings: RewriteLearnerSettings, left: float
) -> Tensor:
    scores = policy.scores([decisions.seen[one] for one in chunk.tolist()])
    now = scores.logs.gather(1, decisions.actions[chunk][:, None])[:, 0]
    loss = clipped_loss(now, decisions.logs[chunk], decisions.gained[chunk], settings.clip)
    error = ((scores.values - decisions.returns[chunk]) ** 2).mean()
    unsure = entropy(scores.logs).mean()
    total: Tensor = loss + settings.value * error - settings.entropy * left * unsure
    return total
