"""V of the world model: a graph as a few numbers, with the information that a world model needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from espalier_lab.rewriting.learned.dreaming.blocks import ACTION_SIZE
from espalier_lab.rewriting.learned.encoding import WHOLE_SIZE, GraphEncoder
from espalier_lab.rewriting.learned.environment import LOCATIONS, STOP
from espalier_lab.rewriting.learned.seen import WHOLE_FEATURES, Batch, GraphObservation

LATENT: Final = 32
"""Size of z, as in the thesis."""

_HIDDEN: Final = 64
_CHUNK: Final = 256


class Vision(GraphEncoder):
    """The encoder of PPO, with heads that predict the required contents of z_t.

    Ha and Schmidhuber (2018) learn V as an autoencoder. 32 numbers cannot store a graph, so the heads predict the needs
    of the rest of the model: applicable rules, the cost and size of the graph, and the reward of an action. It is
    learnt before the memory and then fixed: if both were learnt together, the likelihood of z_{t+1} would be largest
    for an empty z. An encoder learnt by PPO would have cost steps of the real environment.
    """

    def __init__(self) -> None:
        """Initialise with torch's defaults from the global generator."""
        super().__init__()
        self.narrow = nn.Linear(WHOLE_SIZE, LATENT)
        # Variance 1 over the recorded graphs, the initial spread of the memory's Gaussians.
        self.scale = nn.BatchNorm1d(LATENT, affine=False)
        self.masks = nn.Linear(LATENT, STOP * LOCATIONS)
        self.whole = nn.Linear(LATENT, WHOLE_FEATURES)
        self.reward = nn.Sequential(nn.Linear(LATENT + ACTION_SIZE, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return z_t of graphs: (B, `LATENT`)."""
        latents: Tensor = self.scale(self.narrow(self.encoded(batch)[1]))
        return latents

    def latents(self, seen: Sequence[GraphObservation]) -> Tensor:
        """Return z_t of any number of graphs, without gradients: (graphs, `LATENT`)."""
        with torch.no_grad():
            parts = [self(Batch.of(seen[first : first + _CHUNK])) for first in range(0, len(seen), _CHUNK)]
        return torch.cat(parts)

    def predicted(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the predictions from z_t and actions (B, `ACTION_SIZE`).

        Logits of the masks (B, `STOP`, `LOCATIONS`), the numbers of the whole graph (B, `WHOLE_FEATURES`), and the
        rewards (B,).
        """
        masks = self.masks(latents).unflatten(1, (STOP, LOCATIONS))
        return masks, self.whole(latents), self.reward(torch.cat([latents, actions], dim=1)).squeeze(1)
