"""A decision tree as tensors, so that many episodes are played at once: what learners work on."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from espalier_agent.network import NetworkConfig, PolicyNetwork, masked_log_probabilities
from espalier_agent.tree import DecisionTree
from espalier_agent.vocabulary import Vocabulary
from espalier_api.outcomes import reward


class Returns(StrEnum):
    """What a final accuracy is worth to the learner."""

    PAPER = "paper"
    """Equation 2, 100·tan(a·π/2)."""
    STANDARDISED = "standardised"
    """Equation 2, less its mean over the table's sequences, by their standard deviation: tables weigh the same."""


class Game:
    """A decision tree as tensors: all of its states are evaluated at once, and episodes walk over the result.

    States that share an architecture share its encoding, so a table with 21 states needs 10 passes of the encoder.
    """

    def __init__(self, tree: DecisionTree, vocabulary: Vocabulary, config: NetworkConfig, returns: Returns) -> None:
        self.tree = tree
        distinct = {state.architecture.fingerprint: state.architecture for state in tree.states}
        place = {fingerprint: index for index, fingerprint in enumerate(distinct)}
        self.architectures = tuple(distinct.values())
        """The models that differ."""
        with torch.device("meta"):
            reader = PolicyNetwork(config)
        self.prepared = reader.prepare(self.architectures, vocabulary)
        self.models = torch.tensor([place[state.architecture.fingerprint] for state in tree.states])
        """Which of them each state has."""
        self.time_left_s = torch.tensor([state.time_left_s for state in tree.states], dtype=torch.float64)
        self.time_budget_s = torch.tensor([state.time_budget_s for state in tree.states], dtype=torch.float64)
        self.following = torch.tensor(tree.following)
        """(states, actions): the next state; after the last decision the index of the sequence."""
        self.legal = torch.ones(self.following.shape, dtype=torch.bool)
        """(states, actions): a table has every action in all of its states."""
        self.accuracies = torch.tensor(tree.accuracies, dtype=torch.float64)
        """(sequences,)."""
        self.returns = torch.tensor([reward(accuracy) for accuracy in tree.accuracies], dtype=torch.float64)
        """(sequences,): what each is worth."""
        if returns is Returns.STANDARDISED:
            spread = self.returns.std(correction=0)
            self.returns = (self.returns - self.returns.mean()) / spread.clamp_min(1e-12)

    def logits(self, network: PolicyNetwork, shift: float = 0.0) -> Tensor:
        """Return the logits of the table's own actions in all its states, (states, actions).

        `shift` moves all times left by a share of the budget.
        """
        left = self.time_left_s + shift * self.time_budget_s
        logits = network.logits(self.prepared, self.models, left, self.time_budget_s)
        # The table's actions are growth points 0..n-1 and Nothing, which is the decider's last output.
        points = self.following.shape[1] - 1
        return torch.cat([logits[:, :points], logits[:, -1:]], dim=1)

    def log_probabilities(self, network: PolicyNetwork, temperature: float = 1.0, shift: float = 0.0) -> Tensor:
        """Return the log probabilities of the table's actions in all its states, (states, actions)."""
        return masked_log_probabilities(self.logits(network, shift), self.legal, temperature)

    def play(self, log_probabilities: Tensor, episodes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Play episodes by the probabilities: return P (episodes, decisions) and the index of each one's sequence."""
        probabilities = log_probabilities.detach().exp()
        at = torch.zeros(episodes, dtype=torch.long)
        recorded = []
        for _ in range(self.tree.decisions):
            action = torch.multinomial(probabilities[at], 1, generator=generator).squeeze(1)
            recorded.append(log_probabilities[at, action])
            at = self.following[at, action]
        return torch.stack(recorded, dim=1), at
