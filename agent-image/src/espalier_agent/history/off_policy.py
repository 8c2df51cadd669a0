"""Off-policy estimates of the value of a policy: clipped, self-normalised importance sampling.

An action that was drawn with probability b and that the policy would take with probability p has the weight p / b.
Three measures keep the variance of that in bounds:

- A learner's n weights are cut at √n (Ionides, Truncated Importance Sampling, 2008): the error of cutting goes to 0
with growing n, and so does the variance. A rarely tried action weighs more than √n until there are (actions / share
tried)² weights, so where two policies are compared by decisions, whose weights are bounded anyway, nothing is cut: it
would hide the differences. - The estimate is Σ w·r / Σ w (Swaminathan and Joachims, The Self-Normalized Estimator for
Counterfactual Learning, 2015): it does not depend on the zero of rewards, and stays within the observed range. Without
it a learner gains by giving no weight at all to the tried actions. - Its reliability is measured by the effective
sample size (Σ w)² / Σ w² (Kong 1992).

A weight belongs to an episode, as the product over its decisions, or to one decision. The estimate by episodes is
unbiased but for the cut, and useless for long ones: a job's accuracy comes at its end, so per-decision weights that
multiply those before (Precup, Sutton and Singh 2000) are the same product. The weight of a single decision (Degris,
White and Sutton, Off-Policy Actor-Critic, 2012) gives the value of the choice while all others stay as they were: a
policy that is better in this sense in each state is better than the served one, exploration included (Sutton and Barto
4.2, 5.4). That is one step of improvement, which a few hundred jobs can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Episode, Tried
from espalier_agent.policies.network import PolicyNetwork, masked_log_probabilities
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.types.advice import Action


class Unit(StrEnum):
    """The unit that has an importance weight."""

    DECISION = "decision"
    EPISODE = "episode"


class Log:
    """Episodes as tensors: n decisions, and the weighted units, which are episodes or decisions."""

    def __init__(self, episodes: Sequence[Episode], rewards: Sequence[float], unit: Unit) -> None:
        """`rewards` has one entry per episode."""
        self.decisions = tuple(decision for episode in episodes for decision in episode.decisions)
        counts = torch.tensor([len(episode.decisions) for episode in episodes], dtype=torch.long)
        self.episode = torch.repeat_interleave(counts)
        """(decisions,)."""
        self.unit = self.episode if unit is Unit.EPISODE else torch.arange(len(self.decisions))
        """(decisions,)."""
        values = torch.tensor(list(rewards), dtype=torch.float64)
        self.rewards = values if unit is Unit.EPISODE else values[self.episode]
        """(units,)."""
        self.behaviour = torch.tensor(
            [decision.behaviour_probability for decision in self.decisions], dtype=torch.float64
        ).log()
        """(decisions,): the log probability of the action taken."""

    @classmethod
    def of(cls, decisions: Sequence[HistoryDecision]) -> Log:
        """Return the log of decisions of which only the states are known."""
        log = cls((), (), Unit.DECISION)
        log.decisions = tuple(decisions)
        return log

    @property
    def episode_of_unit(self) -> Tensor:
        """(units,): the episode of each."""
        return torch.zeros(len(self.rewards), dtype=torch.long).index_put((self.unit,), self.episode)

    def weights(self, log_probabilities: Tensor, *, cut: bool = True) -> Tensor:
        """Return the weight of each unit, from the log probabilities of the actions taken, (decisions,)."""
        ratios = log_probabilities.double() - self.behaviour
        weights = ratios.new_zeros(len(self.rewards)).index_add(0, self.unit, ratios).exp()
        return weights.clamp_max(len(self.rewards) ** 0.5) if cut else weights


def self_normalised(weights: Tensor, rewards: Tensor) -> Tensor:
    """Return Σ w·r / Σ w; NaN if all weights are 0."""
    return (weights * rewards).sum() / weights.sum()


def effective_size(weights: Tensor) -> Tensor:
    """Return (Σ w)² / Σ w², the equivalent number of equal weights; NaN if all are 0."""
    return weights.sum() ** 2 / (weights**2).sum()


class LoggedStates:
    """The states of a log as one batch for a network, with the action taken in each."""

    def __init__(self, log: Log, network: PolicyNetwork, vocabulary: Vocabulary) -> None:
        models = {id(decision.architecture): decision.architecture for decision in log.decisions}
        row = {model: index for index, model in enumerate(models)}
        self._prepared = network.prepare(tuple(models.values()), vocabulary)
        self._models = torch.tensor([row[id(decision.architecture)] for decision in log.decisions])
        self._left = torch.tensor([decision.time_left_seconds for decision in log.decisions], dtype=torch.float64)
        self._budget = torch.tensor([decision.time_budget_seconds for decision in log.decisions], dtype=torch.float64)
        outputs = network.outputs(self._prepared)
        self._legal = torch.zeros((len(log.decisions), outputs.width), dtype=torch.bool)
        self._done = torch.zeros(len(log.decisions), dtype=torch.long)
        self._possible = torch.zeros(len(log.decisions), dtype=torch.bool)
        """Whether the network has an output for the action taken."""
        self._actions: list[dict[int, Action]] = []
        for index, decision in enumerate(log.decisions):
            places = outputs.of(decision.architecture, decision.actions)
            actions = {
                place: action for place, action in zip(places, decision.actions, strict=True) if place is not None
            }
            self._actions.append(actions)
            self._legal[index, list(actions)] = True
            for output, action in actions.items():
                if action == decision.action:
                    self._done[index], self._possible[index] = output, True

    def answers(self, network: PolicyNetwork, shifts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log probability of the action taken, and the entropy of the policy, each (decisions,).

        `shifts` (decisions,) moves times left by a share of the budget.
        """
        left = self._left if shifts is None else self._left + shifts * self._budget
        rows = masked_log_probabilities(network.logits(self._prepared, self._models, left, self._budget), self._legal)
        done = rows.gather(1, self._done[:, None]).squeeze(1).masked_fill(~self._possible, -torch.inf)
        finite = rows.masked_fill(~self._legal, 0.0)
        return done, -(finite.exp() * self._legal * finite).sum(dim=1)

    def choices(self, network: PolicyNetwork) -> Tensor:
        """Return the log probabilities of all outputs in each state, (decisions, outputs)."""
        return masked_log_probabilities(
            network.logits(self._prepared, self._models, self._left, self._budget), self._legal
        )

    def gains(self, tried: Sequence[Tried]) -> tuple[Tensor, Tensor]:
        """Return the observed gain of each output, and whether it was tried, (decisions, outputs) each."""
        seen, known = torch.zeros(self._legal.shape, dtype=torch.float64), torch.zeros_like(self._legal)
        for index, (one, actions) in enumerate(zip(tried, self._actions, strict=True)):
            for output, action in actions.items():
                if not action.grows or str(action) in one.seen:
                    known[index, output] = True
                    seen[index, output] = one.seen[str(action)].gain if action.grows else 0.0
        return seen, known

    def preferred(self, network: PolicyNetwork) -> list[Action]:
        """Return the greedy choice of `decide` in each state."""
        with torch.inference_mode():
            logits = network.logits(self._prepared, self._models, self._left, self._budget)
            rows = masked_log_probabilities(logits.double(), self._legal)
            last = rows.shape[1] - 1
            # As there, the later one wins on a tie, and Nothing if the network overflows.
            best = last - rows.flip(1).argmax(dim=1)
            best = torch.where(rows.isnan().any(dim=1), last, best)
        return [actions[output] for actions, output in zip(self._actions, best.tolist(), strict=True)]
