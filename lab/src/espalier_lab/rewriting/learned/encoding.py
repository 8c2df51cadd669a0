"""Graphs as numbers, for all networks that read them: the states of their nodes, and the whole."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from espalier_agent.policies.graph_encoder import STATE_SIZE, MessagePassing
from espalier_lab.rewriting.learned.seen import NODE_FEATURES, WHOLE_FEATURES, Batch

WHOLE_SIZE: Final = 2 * STATE_SIZE + WHOLE_FEATURES
"""Size of a whole graph's encoding."""


class GraphEncoder(MessagePassing):
    """The agent's message passing, over the operators of graphs."""

    def __init__(self) -> None:
        """Initialise with torch's defaults from the global generator."""
        super().__init__(NODE_FEATURES)

    def encoded(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states of all nodes (N, `STATE_SIZE`), and the encoding of each graph (B, `WHOLE_SIZE`)."""
        states = self.states(batch.nodes, batch.edges)
        return states, torch.cat([pooled(states, batch.graphs, len(batch.whole)), batch.whole], dim=1)


def pooled(states: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the mean and the maximum of the states of each group: (count, 2 × size); no group may be empty."""
    size = states.shape[1]
    mean = torch.zeros(count, size).index_add(0, groups, states)
    mean = mean / torch.bincount(groups, minlength=count).clamp_min(1)[:, None]
    index = groups[:, None].expand(-1, size)
    most = torch.zeros(count, size).scatter_reduce(0, index, states, "amax", include_self=False)
    return torch.cat([mean, most], dim=1)
