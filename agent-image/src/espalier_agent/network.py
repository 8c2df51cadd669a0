"""The policy network of Lamelas, section 5: model encoding and time encoding → probabilities of actions.

The decider has one output for each growth point, in the architecture's order, and a last one for doing nothing
(Figure 5). Its number of growth points is fixed when the policy is made, to that of the largest model it learns
from. A model with fewer points has the surplus outputs masked. Points of a model beyond the head are never chosen:
no experience has shaped an output for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from espalier_agent.encoders import MODEL_ENCODING_SIZE, TIME_ENCODING_SIZE, LstmModelEncoder
from espalier_api.base import Record

DECIDER_HIDDEN_SIZE: Final = 128
"""Lamelas 5.6."""


class NetworkConfig(Record):
    """What tells two policy networks apart."""

    encoder: str = Field(default="lstm", pattern="^lstm$")
    """Only the paper's for now."""
    growth_points: int = Field(ge=1, le=4096)
    """Growth points that the decider has outputs for."""


class PolicyNetwork(nn.Module):
    """Encoder and decider. The embeddings before it and the time encoding beside it are not trained."""

    def __init__(self, config: NetworkConfig) -> None:
        """Initialise with torch's defaults from the global generator; `seeded` makes it reproducible."""
        super().__init__()
        self.config = config
        self.encoder = LstmModelEncoder()
        self.decider = nn.Sequential(
            nn.Linear(MODEL_ENCODING_SIZE + TIME_ENCODING_SIZE, DECIDER_HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(DECIDER_HIDDEN_SIZE, DECIDER_HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(DECIDER_HIDDEN_SIZE, config.growth_points + 1),
        )

    @classmethod
    def seeded(cls, config: NetworkConfig, seed: int) -> PolicyNetwork:
        """Return a freshly initialised network that depends on `seed` alone; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config)

    @classmethod
    def with_weights(cls, config: NetworkConfig, weights: Mapping[str, Tensor]) -> PolicyNetwork:
        """Return a network that holds copies of these tensors (a state dict); no random numbers are drawn."""
        with torch.device("meta"):
            network = cls(config)
        network.load_state_dict({name: value.detach().cpu().clone() for name, value in weights.items()}, assign=True)
        return network

    @classmethod
    def shapes(cls, config: NetworkConfig) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of such a network's state dict."""
        with torch.device("meta"):
            network = cls(config)
        return {name: tuple(value.shape) for name, value in network.state_dict().items()}

    def encode(self, embedded: Sequence[Tensor]) -> Tensor:
        """Encode models, each given as its layers' embeddings (layers, 16): shape (models, 16)."""
        lengths = torch.tensor([len(layers) for layers in embedded], device=embedded[0].device)
        encoded: Tensor = self.encoder(pad_sequence(list(embedded), batch_first=True), lengths)
        return encoded

    def decide(self, model_encodings: Tensor, time_encodings: Tensor) -> Tensor:
        """Return the logits (n, growth points + 1) for model encodings (n, 16) and time encodings (n, 8)."""
        logits: Tensor = self.decider(torch.cat([time_encodings, model_encodings], dim=1))
        return logits

    def forward(self, embedded: Sequence[Tensor], time_encodings: Tensor) -> Tensor:
        """Return the logits of n states: one model and one time encoding each."""
        return self.decide(self.encode(embedded), time_encodings)


def masked_log_probabilities(logits: Tensor, legal: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) over the legal actions; -inf for the others.

    `logits` and `legal` (bool) are (n, actions); each row needs a legal action. A temperature above 1 makes the
    choice more uniform (softmax action selection, Lamelas 6.5).
    """
    return torch.log_softmax((logits / temperature).masked_fill(~legal, -torch.inf), dim=1)
