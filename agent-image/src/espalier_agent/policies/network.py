"""The policy network: an encoder of models, and a decider that scores the actions of a state.

Two kinds (`NetworkConfig.encoder`). `lstm` is that of Lamelas, section 5: its decider has one output for each growth
point, in the architecture's order, and a last one for doing nothing (Figure 5). Its number of growth points is fixed
when the policy is made, to that of the largest model it learns from; the surplus outputs of a smaller model are
masked, and points beyond the head are never chosen: no experience has shaped an output for them. `graph` reads the
architecture as a graph and scores each growth point by where it is, so it serves any number of them. Only it can
score the targets of other growth operations (groups of channels to widen), and does if it has learnt from tables that
have them: the LSTMs read a sequence of layers and have outputs by number, so what a number of groups means would be
fixed with the models learnt from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from espalier_agent.policies.encoders import FixedHead, LstmModelEncoder
from espalier_agent.policies.graph_encoder import GraphModelEncoder, PointerHead
from espalier_agent.policies.graph_features import target_layers
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_api.advice import ActionColumns
from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.growth import OperationName, operation
from espalier_api.growth.deepen import DEEPEN
from espalier_api.growth.widen import WIDEN

Prepared = dict[str, Tensor]
"""Models as the fixed tensors that an encoder reads; made once, encoded in each update."""


class NetworkConfig(Record):
    """What tells two policy networks apart."""

    encoder: Literal["lstm", "graph"] = "lstm"
    """How models are read."""
    growth_points: int = Field(ge=1, le=4096)
    """Growth points that the decider of `lstm` has outputs for; `graph` serves any number whatever stands here."""
    widening: Literal[True] | None = None
    """Groups of channels are scored too; absent: never chosen. Of `graph` only: `lstm` has no outputs for them."""
    others: tuple[OperationName, ...] | None = None
    """Growth operations other than `Deepen` and `Widen` whose targets are scored; of `graph` only."""

    @classmethod
    def scoring(cls, encoder: str, growth_points: int, operations: Iterable[str]) -> NetworkConfig:
        """Return the configuration of a network that scores growth points and the targets of `operations`."""
        others = tuple(name for name in operations if name not in (DEEPEN.name, WIDEN.name))
        widening = WIDEN.name in operations or None
        return cls(encoder=encoder, growth_points=growth_points, widening=widening, others=others or None)

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations whose targets are scored, in the order of the outputs."""
        return (DEEPEN.name, *((WIDEN.name,) if self.widening else ()), *(self.others or ()))

    @model_validator(mode="after")
    def _more_by_graph(self) -> Self:
        if len(self.operations) > 1 and self.encoder != "graph":
            targets = operation(self.operations[1]).targets_are
            raise ValueError(f"encoder {self.encoder} has no outputs for {targets}; graph has")
        return self


class PolicyNetwork(nn.Module):
    """Encoder and decider. What layers and times are turned into before is not trained."""

    def __init__(self, config: NetworkConfig) -> None:
        """Initialise with torch's defaults from the global generator; `seeded` makes it reproducible."""
        super().__init__()
        self.config = config
        self.encoder: LstmModelEncoder | GraphModelEncoder
        self.decider: FixedHead | PointerHead
        if config.encoder == "graph":
            more = config.operations[1:]
            self.encoder, self.decider = GraphModelEncoder(more), PointerHead(more)
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

    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return what the columns of `logits` are about, for these prepared models."""
        points = prepared["points"].shape[1] if self.config.encoder == "graph" else self.config.growth_points
        more = {name: prepared[target_layers(name)].shape[1] for name in self.config.operations[1:]}
        return ActionColumns({DEEPEN.name: points, **more})

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits of n states, (n, width): one for each action, in the order of `outputs`.

        `models` (n,) says which prepared model each state has; times are (n,), in float64. The width is that of the
        decider's head, or for `graph` what the largest prepared models need; what stands at points and groups that a
        model does not have means nothing.
        """
        return self.decider.score(self.encoder(prepared), models, time_left_s, time_budget_s)

    forward = logits
    """Under the name that `torch.func.functional_call` calls: for networks whose weights are stacked."""


def masked_log_probabilities(logits: Tensor, legal: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) over the legal actions; -inf for the others.

    `logits` and `legal` (bool) are (n, actions); each row needs a legal action. A temperature above 1 makes the
    choice more uniform (softmax action selection, Lamelas 6.5).
    """
    return torch.log_softmax((logits / temperature).masked_fill(~legal, -torch.inf), dim=1)
