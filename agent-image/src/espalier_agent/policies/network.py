"""The policy network, which reads models and scores the actions of a state.

There are several kinds, named in the registry `ENCODERS`, which other packages extend by entry points. Class attributes
state the abilities of a kind; code that combines it with tables or learners reads these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.base import Record
from espalier_core.growth import OperationName, operation
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.registry import Registry
from espalier_core.types.advice import ActionColumns, AdviceRequest
from espalier_core.types.task import Task

TreeCount = Annotated[int, Field(ge=1, le=1000)]
Prepared = dict[str, Tensor]
"""Models as the constant tensors that an encoder reads; prepared once, encoded in each update."""


class NetworkConfig(Record):
    """The configuration that distinguishes policy networks."""

    encoder: str = "lstm"
    """Encoder of models, a name in `ENCODERS`. Policy files rely on this default."""
    growth_points: int = Field(ge=1, le=4096)
    """Number of growth points with outputs in a network of fixed size; other networks serve any number."""
    widening: Literal[True] | None = None
    """True: groups of channels are scored too; absent: they are never chosen."""
    others: tuple[OperationName, ...] | None = None
    """Growth operations other than `Deepen` and `Widen` whose targets are scored."""
    task: Task | None = None
    """The task in whose measure gains are; absent: a classification."""
    trees: TreeCount | None = None
    """Number of trees, where there are any; absent: 100."""

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

    @field_validator("encoder")
    @classmethod
    def _known(cls, encoder: str) -> str:
        ENCODERS.load(encoder)
        return encoder

    @model_validator(mode="after")
    def _scores(self) -> Self:
        if len(self.operations) > 1 and not ENCODERS.load(self.encoder).any_operation:
            targets = operation(self.operations[1]).targets_are
            raise ValueError(f"encoder {self.encoder} has no outputs for {targets}; graph has")
        return self


@dataclass(frozen=True, slots=True)
class Gains:
    """Expected gains of growths in final accuracy over doing nothing, (n, growths) each, in the order of `outputs`."""

    mean: Tensor
    low: Tensor
    high: Tensor


class PolicyNetwork(nn.Module, ABC):
    """A network that scores actions, created from its configuration alone; one subclass for each encoder.

    A policy's file holds its state dict. `prepare` turns models into tensors once, and is not trained.
    """

    any_operation: ClassVar[bool] = False
    """Whether it scores the targets of the growth operations in its configuration; else growth points alone."""
    fixed_size: ClassVar[bool] = False
    """Whether it has outputs for exactly `growth_points` growth points; else for as many as a model has."""
    learnt_by: ClassVar[str | None] = None
    """The only learner for it; None: any that follows gradients."""
    stackable: ClassVar[bool] = False
    """Whether `torch.vmap` can map it over stacked weights."""

    def __init__(self, config: NetworkConfig) -> None:
        """Initialise with torch's defaults from the global generator; `seeded` makes it reproducible."""
        super().__init__()
        self.config = config

    @abstractmethod
    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into the fixed tensors that `logits` reads."""

    def prepare_request(self, request: AdviceRequest, vocabulary: Vocabulary) -> Prepared:
        """Turn the model of a request into the input of `logits`, with further facts if they are read."""
        return self.prepare([request.architecture], vocabulary)

    @abstractmethod
    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return the meaning of the columns of `logits`, for these prepared models."""

    @abstractmethod
    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits of n states, (n, width): one for each action, in the order of `outputs`.

        `models` (n,) has the index of each state's prepared model; times are (n,), in float64. The width is fixed in a
        network of fixed size, else the largest prepared models determine it; values for points and groups that a model
        does not have are meaningless.
        """

    def estimates(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor
    ) -> tuple[Tensor, Gains | None]:
        """Return `logits`, and the expected gain of each growth in final accuracy; None if it is not known."""
        return self.logits(prepared, models, time_left_s, time_budget_s), None

    def forward(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return `logits`: `torch.func.functional_call` calls `forward`, for stacked weights."""
        return self.logits(prepared, models, time_left_s, time_budget_s)

    @staticmethod
    def of(config: NetworkConfig) -> PolicyNetwork:
        """Return a network of the configuration's kind."""
        return ENCODERS.load(config.encoder)(config)

    @classmethod
    def seeded(cls, config: NetworkConfig, seed: int) -> PolicyNetwork:
        """Return a freshly initialised network that depends on `seed` alone; the global generator stays unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls.of(config)

    @classmethod
    def with_weights(cls, config: NetworkConfig, weights: Mapping[str, Tensor]) -> PolicyNetwork:
        """Return a network that holds copies of these tensors (a state dict); no random numbers are drawn."""
        with torch.device("meta"):
            network = cls.of(config)
        network.load_state_dict({name: value.detach().cpu().clone() for name, value in weights.items()}, assign=True)
        return network

    @classmethod
    def shapes(cls, config: NetworkConfig) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of such a network's state dict."""
        with torch.device("meta"):
            network = cls.of(config)
        return {name: tuple(value.shape) for name, value in network.state_dict().items()}


ENCODERS: Final = Registry[type[PolicyNetwork]](
    "encoder",
    "espalier.encoders",
    {
        "graph": "espalier_agent.policies.graph_encoder:GraphNetwork",
        "graph-gains": "espalier_agent.policies.graph_gains:GraphGainsNetwork",
        "lstm": "espalier_agent.policies.lstm_encoder:LstmNetwork",
        "trees": "espalier_agent.policies.tree_ensemble:TreesNetwork",
    },
)


def masked_log_probabilities(logits: Tensor, legal: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) over the legal actions; -inf for the others.

    `logits` and `legal` (bool) are (n, actions); each row needs a legal action. A temperature above 1 makes the
    choice more uniform (softmax action selection, Lamelas 6.5).
    """
    return torch.log_softmax((logits / temperature).masked_fill(~legal, -torch.inf), dim=1)
