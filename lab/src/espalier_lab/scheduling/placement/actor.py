"""A network that places by the observations of `espalier/Placement-v0`, without memory. In torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from espalier_lab.scheduling.learned.network import MASKED
from espalier_lab.scheduling.placement.tasks import KINDS

HIDDEN = 64
NODE = 1 + KINDS + 2
"""Number of features of a node."""
JOB = KINDS + 2
"""Number of features of a job."""
_CANDIDATE, _CLUSTER = 3, 2
"""Number of node summaries that describe a candidate, and that value the cluster."""


class Actor(nn.Module):
    """Scores candidates by the job and their nodes, and values the cluster. It treats nodes alike.

    A candidate is described by the mean and the maximum of its nodes' features, by the mean weighted by its workers, by
    the number of nodes and by the largest part of a node's GPUs that it takes.
    """

    def __init__(self, racks: int, rack_nodes: int, seed: int = 0, *, state: int = 0) -> None:
        """Draw weights from this seed; nodes are in racks of `rack_nodes`.

        Each node has `state` more features, at the end; their weights begin at 0.
        """
        super().__init__()
        self._racks, self._rack_nodes = racks, rack_nodes
        node = NODE + state
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.score = _layers(JOB + _CANDIDATE * node + 3)
            self.value = _layers(JOB + _CLUSTER * node)
        with torch.no_grad():
            _linear(self.score, -1).weight.mul_(0.01)  # initially it has no preferences
            for layers, nodes in ((self.score, _CANDIDATE), (self.value, _CLUSTER)):
                read = _linear(layers, 0).weight[:, JOB : JOB + nodes * node]
                read.view(-1, nodes, node)[..., NODE:] = 0

    def forward(
        self, jobs: Tensor, options: Tensor, cluster: Tensor, present: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (episodes, candidates + 1) and the value (episodes, 1), from `PlacementEpisodes`' input."""
        value = self.value(torch.cat([jobs[:, 0], cluster.mean(1), cluster.amax(1)], dim=-1))
        return self.scored(self.described(jobs, options, cluster, present, mask), mask), value * present

    def described(self, jobs: Tensor, options: Tensor, cluster: Tensor, present: Tensor, mask: Tensor) -> Tensor:
        """Return (candidates of all episodes, features) without padding, one episode after the other."""
        del present  # there is always a job
        row, column = mask[:, :-1].nonzero(as_tuple=True)
        taken, nodes = options[row, 0, column], cluster[row]  # (n, nodes), (n, nodes, features)
        on = (taken > 0).float()
        many = on.sum(-1, keepdim=True).clamp(min=1)
        racks = on.reshape(len(on), self._racks, self._rack_nodes).amax(-1).sum(-1, keepdim=True)
        weights = torch.stack([on / many, taken / taken.sum(-1, keepdim=True).clamp(min=1e-6)], 1)
        return torch.cat(
            [
                jobs[row, 0],
                (weights @ nodes).flatten(1),
                (on[..., None] * nodes).amax(1),
                many / 8,
                racks / self._racks,
                taken.amax(-1, keepdim=True),
            ],
            dim=-1,
        )

    def scored(self, described: Tensor, mask: Tensor) -> Tensor:
        """Return the scores of the result of `described`."""
        return torch.full(mask.shape, MASKED).masked_scatter(mask, self.score(described)[:, 0])


def _layers(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    )


def _linear(layers: nn.Sequential, index: int) -> nn.Linear:
    found = layers[index]
    assert isinstance(found, nn.Linear)  # noqa: S101  (made by `_layers`)
    return found
