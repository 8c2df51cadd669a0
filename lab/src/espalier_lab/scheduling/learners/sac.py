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

from espalier_lab.scheduling.learners.descent import descend
from espalier_lab.scheduling.learners.replay import replayed
from espalier_lab.scheduling.learners.rollout import Rollout, Seen, columns_of, joined

if TYPE_CHECKING:
    from espalier_lab.scheduling.learners.learner import SchedulingLearner
    from espalier_lab.scheduling.learners.registry import OnUpdate
    from espalier_lab.scheduling.placement.actor import Actor

RATE: Final = 3e-4
FOLLOWED: Final = 0.005
"""The part of the way to the networks that targets go in an update."""

Described = tuple[Tensor, Tensor]
"""What `Actor.described` makes of what was seen, once for all networks; and what can be chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class SacStep:
    """One step of all episodes; arrays begin with (episodes)."""

    seen: Seen
    columns: Tensor
    """Of what was chosen."""
    rewards: Tensor
    lives: Tensor
    """How much what was seen next counts; 0 where the episode was over."""
    following: Seen


def improve(learner: SchedulingLearner, actor: Actor, on_update: OnUpdate, entropy: float) -> None:
    """Learn from the decisions of the learner's `actor`, all of which are remembered; an update for each step.

    `entropy` is aimed at, as a part of that of choosing at random.
    """
    run = SacNetworks(actor, entropy)
    replayed(learner, on_update, list[SacStep](), _remembered, run.update, learner.settings.steps)


def _remembered(rollout: Rollout, step: int) -> SacStep:
    return SacStep(
        seen=rollout.seen[step],
        columns=columns_of(rollout.actions[step], rollout.seen[step][4]),
        rewards=torch.from_numpy(rollout.rewards[step][:, 0]).float(),
        lives=torch.from_numpy(rollout.lives[step][:, 0]).float(),
        following=rollout.seen[step + 1],
    )


class SacNetworks:
    """The network that decides, those that value, and their optimizers."""

    def __init__(self, network: Actor, entropy: float) -> None:
        """Begin; scores of the copies are values, and how they begin does not matter."""
        self._network, self._entropy = network, entropy
        self._critics = [copy.deepcopy(network) for _ in range(2)]
        self._targets = copy.deepcopy(self._critics)
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.manual_seed(0)
            for parameter in self._critics[1].parameters():  # of two that are the same, one would be enough
                parameter.add_(0.01 * torch.randn_like(parameter))
        self._valuing = nn.ModuleList(self._critics)
        self._temperature = torch.zeros(1, requires_grad=True)
        self._optimizers = [
            torch.optim.Adam(parameters, lr=RATE)
            for parameters in (network.parameters(), self._valuing.parameters(), [self._temperature])
        ]

    def update(self, drawn: list[SacStep]) -> dict[str, float]:
        """Take a step of each optimizer; return figures."""
        deciding, valuing, warming = self._optimizers
        now, later = (self._described([getattr(each, name) for each in drawn]) for name in ("seen", "following"))
        columns = torch.cat([each.columns for each in drawn])[:, None]
        rewards, lives = (torch.cat([getattr(each, name) for each in drawn]) for name in ("rewards", "lives"))
        temperature = self._temperature.detach().exp()
        with torch.no_grad():
            logs, chances = _chances(self._network, later)
            value = (chances * (_smaller(self._targets, later) - temperature * logs)).sum(1)
            wanted = rewards + lives * value
        found = torch.stack([critic.scored(*now).gather(1, columns)[:, 0] for critic in self._critics])
        error = ((found - wanted) ** 2).mean(1).sum()
        descend(valuing, error, self._valuing)
        logs, chances = _chances(self._network, now)
        with torch.no_grad():
            values = _smaller(self._critics, now)
        descend(deciding, (chances * (temperature * logs - values)).sum(1).mean(), self._network)
        entropy = -(chances.detach() * logs.detach()).sum(1)
        aimed = self._entropy * now[1].sum(1).float().log()
        descend(warming, (self._temperature.exp() * (entropy - aimed).mean()).sum())
        with torch.no_grad():
            for target, critic in zip(self._targets, self._critics, strict=True):
                for one, other in zip(target.parameters(), critic.parameters(), strict=True):
                    one.lerp_(other, FOLLOWED)
        return {"entropy": float(entropy.mean()), "error": float(error.detach()), "temperature": float(temperature)}

    def _described(self, seen: list[Seen]) -> Described:
        batch = joined(seen)
        return self._network.described(*batch), batch[4]


def _chances(network: Actor, seen: Described) -> tuple[Tensor, Tensor]:
    """Return logarithms of probabilities and probabilities, (n, columns); 0 and 0 of what cannot be chosen."""
    logs = torch.log_softmax(network.scored(*seen), 1)
    return logs.masked_fill(~seen[1], 0.0), logs.exp() * seen[1]


def _smaller(critics: list[Actor], seen: Described) -> Tensor:
    """Return the smaller value of each action, (n, columns); 0 of what cannot be chosen."""
    values = torch.stack([critic.scored(*seen) for critic in critics]).amin(0)
    return values.masked_fill(~seen[1], 0.0)
