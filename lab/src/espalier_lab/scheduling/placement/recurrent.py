"""RL²: a network that places by its history with a cluster (Duan et al., arXiv 1611.02779; Wang et al., 1611.05763).

A recurrent network also reads its last action and reward, and is learnt by PPO over many tasks (Duan et al., 2.2). So
it can learn to explore the hidden parameters of a task. Within a task its weights stay, and its state h changes:

h' = GRU(h; observation, last action, last reward), and scores and values depend on (observation, h').

A task is an episode, thus a cluster; a change in the middle of it is not signalled. The source also signals the end of
an episode, because its tasks have several, and keeps the state; here a task has one. Each node has a separate state
with the same weights, as nodes are alike until they are observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier_lab.scheduling.learned.description import NetworkInputs
from espalier_lab.scheduling.learners.passed import Chosen, Passed
from espalier_lab.scheduling.learners.recurrent import Recurrent
from espalier_lab.scheduling.learners.rollout import Seen, joined
from espalier_lab.scheduling.placement.actor import JOB, NODE, Actor
from espalier_lab.scheduling.placement.episodes import PlacementEpisodes
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

STATE: Final = 32
"""Size of a node's state."""
_LAST: Final = 1 + JOB + 1
"""Number of features of the last decision: the job's part of the node's GPUs, the job, the reward."""


class RecurrentActor(Recurrent):
    """An `Actor` that also reads the state of nodes, and a recurrent cell (GRU) that updates it.

    The cell reads the features of its node and the mean over all, the last job with its part of the node, and the
    reward, which is minus the loss of all jobs since. Weights that read the state begin at 0, so the network begins as
    one without a memory.
    """

    def __init__(self, racks: int, rack_nodes: int, seed: int = 0) -> None:
        """Draw weights from this seed; nodes are in racks of `rack_nodes`."""
        super().__init__()
        self.actor = Actor(racks, rack_nodes, seed, state=STATE)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.cell = nn.GRU(2 * NODE + _LAST, STATE)
        self._nodes = racks * rack_nodes

    def begun(self, episodes: int) -> Tensor:
        """Return zeros, (1, episodes × nodes, `STATE`)."""
        return torch.zeros(1, episodes * self._nodes, STATE)

    def forward(
        self, jobs: Tensor, options: Tensor, cluster: Tensor, present: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (episodes, candidates + 1) and the value (episodes, 1), from the input of `RecallingEpisodes`.

        Its shapes are those of `PlacementEpisodes.seen`, but `cluster` is (episodes, nodes, `NODE` + `_LAST`).
        """
        seen = (jobs, options, cluster, present, mask)
        if self.state is None:
            return self._judged(seen, self.begun(len(cluster)))
        states, self.state = self.cell(_cell_inputs(cluster[None]), self.state)
        return self._judged(seen, states)

    def unrolled(self, seen: list[Seen]) -> tuple[Tensor, Tensor]:
        """Return the results of calls step by step, from the beginning on."""
        states, _ = self.cell(_cell_inputs(torch.stack([cluster for _, _, cluster, _, _ in seen])))
        return self._judged(joined(seen), states)

    def _judged(self, seen: Seen, states: Tensor) -> tuple[Tensor, Tensor]:
        jobs, options, cluster, present, mask = seen
        known = torch.cat([cluster[..., :NODE], states.reshape(*cluster.shape[:2], STATE)], -1)
        found: tuple[Tensor, Tensor] = self.actor(jobs, options, known, present, mask)
        return found


def _cell_inputs(clusters: Tensor) -> Tensor:
    """Return the cell's input, (steps, episodes × nodes, features), from (steps, episodes, nodes, features)."""
    mean = clusters[..., :NODE].mean(2, keepdim=True).expand(-1, -1, clusters.shape[2], -1)
    return torch.cat([clusters, mean], -1).flatten(1, 2)


class RecallingEpisodes(PlacementEpisodes):
    """The same episodes, in which nodes also show the last choice, its job, and the reward.

    At the first decision of an episode all of these are 0.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        count: int,
        purpose: SeedSplit,
        *,
        shift: bool = False,
        family: Family | None = None,
    ) -> None:
        """Begin without a last choice."""
        super().__init__(numbers, count, purpose, shift=shift, family=family)
        self._last = np.zeros((count, (family or Family()).nodes, _LAST), np.float32)

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the input of `PlacementEpisodes`, with the last decision after the features of each node."""
        seen, mask = super().seen()
        return replace(seen, cluster=np.concatenate([seen.cluster, self._last], -1)), mask

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Place the jobs, and remember the choice if the episode continues."""
        seen, _ = super().seen()
        rows, passed = super().act(chosen)
        self._last[..., 0] = seen.options[rows, 0, chosen]
        self._last[..., 1:-1] = seen.jobs
        self._last[..., -1] = -passed.lost
        self._last[passed.ended[:, 0]] = 0
        return rows, passed
