"""Masked SAC for actions of which one is chosen (Christodoulou, arXiv 1910.07207).

For environments with one job to decide about at a time, such as placement: what that job's decisions lose is all that
counts. So it is no `LEARNERS`. Two networks value each action, the smaller value counts, and targets follow them; the
temperature is learnt such that entropy is a given part of that of choosing at random among the actions that there are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from espalier_scheduling.learners.descent import descend
from espalier_scheduling.learners.replay import replayed
from espalier_scheduling.learners.rollout import Rollout, Seen, columns_of, joined

if TYPE_CHECKING:
    from espalier_scheduling.learners.learner import Learner
    from espalier_scheduling.learners.registry import Told

RATE: Final = 3e-4
FOLLOWED: Final = 0.005
"""The part of the way to the networks that targets go in an update."""


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """One step of all episodes; arrays begin with (episodes)."""

    seen: Seen
    columns: Tensor
    """Of what was chosen."""
    rewards: Tensor
    lives: Tensor
    """How much what was seen next counts; 0 where the episode was over."""
    following: Seen


def improve(learner: Learner, told: Told, entropy: float) -> None:
    """Learn from the network's own decisions, all of which are remembered; an update for each step of all episodes.

    `entropy` is aimed at, as a part of that of choosing at random.
    """
    run = Run(learner.network, entropy)
    replayed(learner, told, list[Remembered](), _remembered, run.update, learner.settings.steps)


def _remembered(rollout: Rollout, step: int) -> Remembered:
    return Remembered(
        seen=rollout.seen[step],
        columns=columns_of(rollout.actions[step], rollout.seen[step][4]),
        rewards=torch.from_numpy(rollout.rewards[step][:, 0]).float(),
        lives=torch.from_numpy(rollout.lives[step][:, 0]).float(),
        following=rollout.seen[step + 1],
    )


class Run:
    """The network that decides, those that value, and their optimizers."""

    def __init__(self, network: nn.Module, entropy: float) -> None:
        """Begin; scores of the copies are values, and how they begin does not matter."""
        self._network, self._entropy = network, entropy
        self._critics = nn.ModuleList(copy.deepcopy(network) for _ in range(2))
        self._targets = copy.deepcopy(self._critics)
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.manual_seed(0)
            for parameter in self._critics[1].parameters():  # of two that are the same, one would be enough
                parameter.add_(0.01 * torch.randn_like(parameter))
        self._temperature = torch.zeros(1, requires_grad=True)
        self._optimizers = [
            torch.optim.Adam(parameters, lr=RATE)
            for parameters in (network.parameters(), self._critics.parameters(), [self._temperature])
        ]

    def update(self, drawn: list[Remembered]) -> dict[str, float]:
        """Take a step of each optimizer; return figures."""
        deciding, valuing, warming = self._optimizers
        batch, following = joined([each.seen for each in drawn]), joined([each.following for each in drawn])
        columns = torch.cat([each.columns for each in drawn])[:, None]
        rewards, lives = (torch.cat([getattr(each, name) for each in drawn]) for name in ("rewards", "lives"))
        temperature = self._temperature.detach().exp()
        with torch.no_grad():
            logs, chances = _chances(self._network, following)
            value = (chances * (_smaller(self._targets, following) - temperature * logs)).sum(1)
            wanted = rewards + lives * value
        found = [critic(*batch)[0].gather(1, columns)[:, 0] for critic in self._critics]
        error = sum(((each - wanted) ** 2).mean() for each in found)
        assert isinstance(error, Tensor)  # noqa: S101  (there are two)
        descend(valuing, error, self._critics)
        logs, chances = _chances(self._network, batch)
        with torch.no_grad():
            values = _smaller(self._critics, batch)
        descend(deciding, (chances * (temperature * logs - values)).sum(1).mean(), self._network)
        entropy = -(chances.detach() * logs.detach()).sum(1)
        aimed = self._entropy * batch[4].sum(1).float().log()
        descend(warming, (self._temperature.exp() * (entropy - aimed).mean()).sum())
        with torch.no_grad():
            for target, critic in zip(self._targets.parameters(), self._critics.parameters(), strict=True):
                target.lerp_(critic, FOLLOWED)
        return {"entropy": float(entropy.mean()), "error": float(error.detach()), "temperature": float(temperature)}


def _chances(network: nn.Module, seen: Seen) -> tuple[Tensor, Tensor]:
    """Return logarithms of probabilities and probabilities, (n, columns); 0 and 0 of what cannot be chosen."""
    scores, _ = network(*seen)
    logs = torch.log_softmax(scores, 1)
    return logs.masked_fill(~seen[4], 0.0), logs.exp() * seen[4]


def _smaller(critics: nn.ModuleList, seen: Seen) -> Tensor:
    """Return the smaller value of each action, (n, columns); 0 of what cannot be chosen."""
    values = torch.stack([critic(*seen)[0] for critic in critics]).amin(0)
    return values.masked_fill(~seen[4], 0.0)
