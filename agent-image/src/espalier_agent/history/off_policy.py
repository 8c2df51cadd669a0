"""Off-policy estimates of the value of a policy: clipped, self-normalised importance sampling.

What was drawn with probability b and would be done with probability p counts p / b. Three things keep the variance of
that in bounds:

- A learner's weights are cut at √n, n of them (Ionides, Truncated Importance Sampling, 2008): the error that cutting
  makes goes to 0 with n, and so does the variance. What is rarely tried weighs more than that until there are
  (actions / share tried)² of them, so where two policies are compared by decisions, whose weights that bounds, nothing
  is cut: it would hide what differs.
- The estimate is Σ w·r / Σ w (Swaminathan and Joachims, The Self-Normalized Estimator for Counterfactual Learning,
  2015): it does not depend on where rewards have their zero, and is never outside of what was seen. Without it a
  learner gains by giving no weight at all to what was tried.
- How much it can be trusted is the effective sample size (Σ w)² / Σ w² (Kong 1992).

A weight is that of an episode, the product over its decisions, or that of one decision. Of an episode it is unbiased
but for the cut, and hopeless for long ones: a job's accuracy comes at its end, so weights of decisions that multiply
those before (Precup, Sutton and Singh 2000) are the same product. Of a decision alone (Degris, White and Sutton,
Off-Policy Actor-Critic, 2012) it says what the choice is worth while all others are as they were: a policy that is
better so in each state is better than the one that was served, exploration included (Sutton and Barto 4.2, 5.4), which
is a step at a time, and one that a few hundred jobs can show.
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
    """Episodes as tensors: n decisions, and what has a weight (units), which are episodes or decisions."""

    def __init__(self, episodes: Sequence[Episode], rewards: Sequence[float], unit: Unit) -> None:
        """`rewards` are those of each episode."""
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
        """(decisions,): the log probability of what was done."""

    @classmethod
    def of(cls, decisions: Sequence[HistoryDecision]) -> Log:
        """Return the log of decisions of which nothing is known but their states."""
        log = cls((), (), Unit.DECISION)
        log.decisions = tuple(decisions)
        return log

    @property
    def episode_of_unit(self) -> Tensor:
        """(units,): which episode each is of."""
        return torch.zeros(len(self.rewards), dtype=torch.long).index_put((self.unit,), self.episode)

    def weights(self, log_probabilities: Tensor, *, cut: bool = True) -> Tensor:
        """Return the weight of each unit, by the log probabilities of what was done, (decisions,)."""
        ratios = log_probabilities.double() - self.behaviour
        weights = ratios.new_zeros(len(self.rewards)).index_add(0, self.unit, ratios).exp()
        return weights.clamp_max(len(self.rewards) ** 0.5) if cut else weights


def self_normalised(weights: Tensor, rewards: Tensor) -> Tensor:
    """Return Σ w·r / Σ w; not a number where all weights are 0."""
    return (weights * rewards).sum() / weights.sum()


def effective_size(weights: Tensor) -> Tensor:
    """Return (Σ w)² / Σ w²: how many equal weights would say as much; not a number where all are 0."""
    return weights.sum() ** 2 / (weights**2).sum()


class LoggedStates:
    """The states of a log as one batch for a network, and what was done in each."""

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
        """Return the log probability of what was done and the entropy of what would be, each (decisions,).

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
        """Return what was seen of each output, and which outputs were tried, (decisions, outputs) each."""
        seen, known = torch.zeros(self._legal.shape, dtype=torch.float64), torch.zeros_like(self._legal)
        for index, (one, actions) in enumerate(zip(tried, self._actions, strict=True)):
            for output, action in actions.items():
                if not action.grows or str(action) in one.seen:
                    known[index, output] = True
                    seen[index, output] = one.seen[str(action)].gain if action.grows else 0.0
        return seen, known

    def preferred(self, network: PolicyNetwork) -> list[Action]:
        """Return what `decide` chooses in each state, greedily."""
        with torch.inference_mode():
            logits = network.logits(self._prepared, self._models, self._left, self._budget)
            rows = masked_log_probabilities(logits.double(), self._legal)
            last = rows.shape[1] - 1
            # On a tie the later one, and Nothing where the network overflows, as there.
            best = last - rows.flip(1).argmax(dim=1)
            best = torch.where(rows.isnan().any(dim=1), last, best)
        return [actions[output] for actions, output in zip(self._actions, best.tolist(), strict=True)]
