"""The policy network: an encoder of models, and a decider that scores the actions of a state.

Two kinds (`NetworkConfig.encoder`). `lstm` is that of Lamelas, section 5: its decider has one output for each growth
point, in the architecture's order, and a last one for doing nothing (Figure 5). Its number of growth points is fixed
when the policy is made, to that of the largest model it learns from; the surplus outputs of a smaller model are
masked, and points beyond the head are never chosen: no experience has shaped an output for them. `graph` reads the
architecture as a graph and scores each growth point by where it is, so it serves any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from espalier_agent.encoders import FixedHead, LstmModelEncoder
from espalier_agent.graph_encoder import GraphModelEncoder, PointerHead
from espalier_agent.vocabulary import Vocabulary
from espalier_api.architecture import Architecture
from espalier_api.base import Record

Prepared = dict[str, Tensor]
"""Models as the fixed tensors that an encoder reads; made once, encoded in each update."""


class NetworkConfig(Record):
    """What tells two policy networks apart."""

    encoder: Literal["lstm", "graph"] = "lstm"
    """How models are read."""
    growth_points: int = Field(ge=1, le=4096)
    """Growth points that the decider of `lstm` has outputs for; `graph` serves any number whatever stands here."""


class PolicyNetwork(nn.Module):
    """Encoder and decider. What layers and times are turned into before is not trained."""

    def __init__(self, config: NetworkConfig) -> None:
        """Initialise with torch's defaults from the global generator; `seeded` makes it reproducible."""
        super().__init__()
        self.config = config
        self.encoder: LstmModelEncoder | GraphModelEncoder
        self.decider: FixedHead | PointerHead
        if config.encoder == "graph":
            self.encoder, self.decider = GraphModelEncoder(), PointerHead()
        else:
            self.encoder, self.decider = LstmModelEncoder(), FixedHead(config.growth_points)

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

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into the fixed tensors that `logits` reads."""
        return self.encoder.prepare(architectures, vocabulary)

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits of n states, (n, width): one for each growth point, in order, and last that of Nothing.

        `models` (n,) says which prepared model each state has; times are (n,), in float64. The width is that of the
        decider's head, or for `graph` one more than the growth points of the largest prepared model; what stands at
        points that a model does not have means nothing.
        """
        return self.decider.score(self.encoder(prepared), models, time_left_s, time_budget_s)


def masked_log_probabilities(logits: Tensor, legal: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) over the legal actions; -inf for the others.

    `logits` and `legal` (bool) are (n, actions); each row needs a legal action. A temperature above 1 makes the
    choice more uniform (softmax action selection, Lamelas 6.5).
    """
    return torch.log_softmax((logits / temperature).masked_fill(~legal, -torch.inf), dim=1)
