"""M of the world model: an LSTM that predicts the next state, the reward, the applicable rules, and the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from espalier_lab.rewriting.learned.dreaming.blocks import ACTION_SIZE
from espalier_lab.rewriting.learned.dreaming.mixture import Mixture
from espalier_lab.rewriting.learned.dreaming.vision import LATENT
from espalier_lab.rewriting.learned.environment import LOCATIONS, STOP

HIDDEN: Final = 256
GAUSSIANS: Final = 8
"""Sizes of the thesis."""

_LEAST: Final = 0.03
"""Minimum standard deviation: rewriting is deterministic, so a likelihood could otherwise grow without bound."""

State = tuple[Tensor, Tensor]
"""h and c of the LSTM, each (1, B, `HIDDEN`)."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """The predictions for T steps of B episodes."""

    latents: Mixture
    """Over z_{t+1}: places (B, T)."""
    rewards: Tensor
    """(B, T), in the unit of the memory's training."""
    masks: Tensor
    """(B, T, `STOP`, `LOCATIONS`): logits of the places where rules apply."""
    ends: Tensor
    """(B, T): logits of the end of the episode."""


class Memory(nn.Module):
    """P(z_{t+1}, r_t, masks, end | z_t, a_t, h_{t-1}): the MDN-RNN of Ha and Schmidhuber (2018).

    They learn z and, in one of their two worlds, the end. The reward and the masks are of this environment: without
    predicted masks, a dream would need the real environment's legal actions at each step.
    """

    def __init__(self) -> None:
        """Initialise with torch's defaults from the global generator."""
        super().__init__()
        self.lstm = nn.LSTM(LATENT + ACTION_SIZE, HIDDEN, batch_first=True)
        features = HIDDEN + LATENT + ACTION_SIZE
        self.weights = nn.Linear(features, GAUSSIANS)
        self.moves = nn.Linear(features, GAUSSIANS * LATENT)
        self.scales = nn.Linear(features, GAUSSIANS * LATENT)
        self.rewards = nn.Linear(features, 1)
        self.masks = nn.Linear(features, STOP * LOCATIONS)
        self.ends = nn.Linear(features, 1)

    def forward(self, latents: Tensor, actions: Tensor, state: State | None = None) -> tuple[Foretold, State]:
        """Predict the result of z_t (B, T, `LATENT`) and actions (B, T, `ACTION_SIZE`), and remember them."""
        inputs = torch.cat([latents, actions], dim=-1)
        hidden, state = self.lstm(inputs, state)
        # Facts such as a stopping action bypass the gates of the LSTM.
        features = torch.cat([hidden, inputs], dim=-1)
        # A rewrite changes a graph little, so a Gaussian describes the move from z_t.
        moves, scales = (head(features).unflatten(-1, (GAUSSIANS, LATENT)) for head in (self.moves, self.scales))
        mixture = Mixture(
            self.weights(features), latents[..., None, :] + moves, _LEAST + nn.functional.softplus(scales)
        )
        masks = self.masks(features).unflatten(-1, (STOP, LOCATIONS))
        return Foretold(mixture, self.rewards(features).squeeze(-1), masks, self.ends(features).squeeze(-1)), state
