"""The paper's network, an encoder of states and a decider (Lamelas 5.3 to 5.6).

Its decider has one output for each growth point, in the architecture's order, and a last one for doing nothing (Figure
5). Their number is fixed when the policy is created, by the largest model it learns from; the surplus outputs of a
smaller model are masked, and points beyond the head are never chosen: no experience has shaped an output for them.
Outputs are numbered, so there are none for groups of channels: the learnt models would fix their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, Prepared
from espalier_agent.policies.vocabulary import EMBEDDING_SIZE, Vocabulary
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.advice import ActionColumns

LAYER_HIDDEN_SIZE: Final = 50
"""Hidden size of each direction of the layer encoder: layer encodings have 100 dimensions (Lamelas 5.3)."""
MODEL_ENCODING_SIZE: Final = 16
"""Size of a model's encoding (Lamelas 5.4)."""
TIME_ENCODING_SIZE: Final = 8
"""Size of a time's encoding (Lamelas 5.5)."""
DECIDER_HIDDEN_SIZE: Final = 128
"""Hidden size of the decider (Lamelas 5.6)."""
TIME_SCALE: Final = 5.0
"""Factor on time encodings (Lamelas 5.5): "we ... decided to scale the time encodings by 5 from empirical trials"."""


def encode_time(time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
    """Return equation 6 of Lamelas, v_i = 5·sin(2π·i·t_r/t_b), for times of shape (n,): shape (n, 8).

    The paper does not give the first i. i = 0 would be the constant 0 and leave seven of the eight features, so i runs
    from 1 to 8. Time left is clamped to [0, t_b]. Known limit of the formula: the beginning, the exact middle and the
    end of a budget all encode as zeros.
    """
    share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0)
    harmonics = torch.arange(1, TIME_ENCODING_SIZE + 1, dtype=torch.float64, device=share.device)
    return (TIME_SCALE * torch.sin(2.0 * math.pi * share[:, None] * harmonics)).float()


class LstmModelEncoder(nn.Module):
    """Layer embeddings → layer encodings (biLSTM, 2×50) → model encoding (LSTM, 16): Lamelas 5.3, 5.4.

    Layers are read in execution order; a network with branches is read as that sequence, its edges are not seen.

    The bidirectional LSTM is two modules over padded batches, the second reading each model's layers reversed: the
    same numbers as `nn.LSTM(bidirectional=True)` over packed sequences (a test), five times as fast on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers_forward = nn.LSTM(EMBEDDING_SIZE, LAYER_HIDDEN_SIZE, batch_first=True)
        self.layers_backward = nn.LSTM(EMBEDDING_SIZE, LAYER_HIDDEN_SIZE, batch_first=True)
        self.model = nn.LSTM(2 * LAYER_HIDDEN_SIZE, MODEL_ENCODING_SIZE, batch_first=True)

    def encode_layers(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """Encode layers: embeddings (n, longest, 16), padded at the end, and lengths (n,) → (n, longest, 100).

        Values after a model's last layer have no meaning.
        """
        mirror = _mirror(lengths, embedded.shape[1])
        ahead, _ = self.layers_forward(embedded)
        backward, _ = self.layers_backward(_reorder(embedded, mirror))
        return torch.cat([ahead, _reorder(backward, mirror)], dim=2)

    def forward(self, prepared: dict[str, Tensor]) -> Tensor:
        """Encode prepared models: (n, 16)."""
        embedded, lengths = prepared["embedded"], prepared["lengths"]
        hidden, _ = self.model(self.encode_layers(embedded, lengths))
        encoded: Tensor = hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1]
        return encoded


class FixedHead(nn.Sequential):
    """The decider of Lamelas 5.6: model and time encodings → one output per growth point, one for Nothing."""

    def __init__(self, growth_points: int) -> None:
        super().__init__(
            nn.Linear(MODEL_ENCODING_SIZE + TIME_ENCODING_SIZE, DECIDER_HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(DECIDER_HIDDEN_SIZE, DECIDER_HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(DECIDER_HIDDEN_SIZE, growth_points + 1),
        )

    def score(self, encodings: Tensor, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits (n, growth points + 1) of states, given the model of each (n,), and times (n,)."""
        times = encode_time(time_left_s, time_budget_s)
        logits: Tensor = self(torch.cat([times, encodings[models]], dim=1))
        return logits


class LstmNetwork(PolicyNetwork):
    """Encoder and decider of the paper."""

    fixed_size = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.encoder, self.decider = LstmModelEncoder(), FixedHead(config.growth_points)

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Embed the layers of models: `embedded` (n, longest, 16), padded at the end, and `lengths` (n,)."""
        embedded = [vocabulary.embed(architecture) for architecture in architectures]
        lengths = torch.tensor([len(layers) for layers in embedded])
        return {"embedded": pad_sequence(embedded, batch_first=True), "lengths": lengths}

    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return the columns of the head."""
        return ActionColumns({DEEPEN.name: self.config.growth_points})

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Encode each model once, and score each state."""
        return self.decider.score(self.encoder(prepared), models, time_left_s, time_budget_s)


def _mirror(lengths: Tensor, longest: int) -> Tensor:
    """Return the places of each model's layers from last to first, with padding left in place: (n, longest)."""
    places = torch.arange(longest, device=lengths.device).expand(len(lengths), longest)
    reversed_places = lengths[:, None] - 1 - places
    return torch.where(reversed_places >= 0, reversed_places, places)


def _reorder(sequences: Tensor, places: Tensor) -> Tensor:
    return sequences.gather(1, places[:, :, None].expand(-1, -1, sequences.shape[2]))
