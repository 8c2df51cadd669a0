"""States of the nodes of graphs, from messages along the edges: what all networks that read a graph begin with."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

STATE_SIZE: Final = 32
"""Of a node's state."""
ROUNDS: Final = 4
"""Rounds of messages: a node knows its surroundings up to this distance; a pooled state contains the rest."""


class MessagePassing(nn.Module):
    """Message passing over nodes with `features` numbers each."""

    def __init__(self, features: int) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.layers = nn.Linear(features, STATE_SIZE)
        # Features of a node never seen can be large; normalised they stay within what the rounds were trained on.
        self.norm = nn.LayerNorm(STATE_SIZE)
        self.rounds = nn.ModuleList(nn.Linear(3 * STATE_SIZE, STATE_SIZE) for _ in range(ROUNDS))

    def states(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return the states (N, `STATE_SIZE`) of nodes (N, features); edges (2, E): a node, and one that reads it."""
        read, reading = edges
        states: Tensor = self.norm(self.layers(nodes))
        ahead = _share(reading, len(states))
        by_readers = _share(read, len(states))
        for transform in self.rounds:
            from_inputs = torch.zeros_like(states).index_add(0, reading, states[read] * ahead)
            from_readers = torch.zeros_like(states).index_add(0, read, states[reading] * by_readers)
            states = states + torch.relu(transform(torch.cat([states, from_inputs, from_readers], dim=1)))
        return states


def _share(ends: Tensor, nodes: int) -> Tensor:
    """Return for each edge 1 / the number of edges at its end, so that messages are averaged: (E, 1)."""
    counts = torch.bincount(ends, minlength=nodes)
    return (1.0 / counts[ends].float())[:, None]
