"""RL²: a network that places by all it has seen of a cluster (Duan et al., arXiv 1611.02779; Wang et al., 1611.05763).

A recurrent network also reads its last action and reward, and is learnt by PPO over many tasks (Duan et al., 2.2). So
it can learn how to find out what a task hides. In a task its weights stay, and its state h changes:

    h' = GRU(h; observation, last action, last reward), and scores and values are of (observation, h').

A task is an episode, thus a cluster; a change in the middle of it is not signalled. The source also tells the end of an
episode, for its tasks have several, and keeps the state over it; a task has one here, so that would never be seen.
Each node has a state of its own, by the same weights, for nodes are alike until something is seen of them.
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
"""Numbers that are remembered of a node."""
_LAST: Final = 1 + JOB + 1
"""What is observed of the last decision: the part of the node's GPUs that the job got, the job, the reward."""


class RecurrentActor(Recurrent):
    """An `Actor` that also sees the state of nodes, and a recurrent cell (GRU) that makes it.

    The cell sees what is observed of its node and of all in the mean, the part of the node that the last job got, that
    job, and the reward: minus what was lost since, by all jobs together. Weights that read the state begin at 0, so the
    network begins as one without a memory.
    """

    def __init__(self, racks: int, rack_nodes: int, seed: int = 0) -> None:
        """Draw weights by this seed; nodes are in racks of `rack_nodes`."""
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
        """Return scores (episodes, candidates + 1) and the value (episodes, 1), of what `RecallingEpisodes` shows.

        The shapes of that are those of `PlacementEpisodes.seen`, but `cluster` is (episodes, nodes, `NODE` + `_LAST`).
        """
        seen = (jobs, options, cluster, present, mask)
        if self.state is None:
            return self._judged(seen, self.begun(len(cluster)))
        states, self.state = self.cell(_cell_inputs(cluster[None]), self.state)
        return self._judged(seen, states)

    def unrolled(self, seen: list[Seen]) -> tuple[Tensor, Tensor]:
        """Return what calls by step would, from the beginning on."""
        states, _ = self.cell(_cell_inputs(torch.stack([cluster for _, _, cluster, _, _ in seen])))
        return self._judged(joined(seen), states)

    def _judged(self, seen: Seen, states: Tensor) -> tuple[Tensor, Tensor]:
        jobs, options, cluster, present, mask = seen
        known = torch.cat([cluster[..., :NODE], states.reshape(*cluster.shape[:2], STATE)], -1)
        found: tuple[Tensor, Tensor] = self.actor(jobs, options, known, present, mask)
        return found


def _cell_inputs(clusters: Tensor) -> Tensor:
    """Return what the cell takes, (steps, episodes × nodes, features), of (steps, episodes, nodes, features)."""
    mean = clusters[..., :NODE].mean(2, keepdim=True).expand(-1, -1, clusters.shape[2], -1)
    return torch.cat([clusters, mean], -1).flatten(1, 2)


class RecallingEpisodes(PlacementEpisodes):
    """The same episodes, in which nodes also show what was chosen last, for which job, and the reward.

    With the first decision of an episode all of that is 0.
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
        """Begin; nothing was chosen yet."""
        super().__init__(numbers, count, purpose, shift=shift, family=family)
        self._last = np.zeros((count, (family or Family()).nodes, _LAST), np.float32)

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return what `PlacementEpisodes` shows; of each node the last decision comes after what is observed."""
        seen, mask = super().seen()
        return replace(seen, cluster=np.concatenate([seen.cluster, self._last], -1)), mask

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Place the jobs, and remember it where the episode goes on."""
        seen, _ = super().seen()
        rows, passed = super().act(chosen)
        self._last[..., 0] = seen.options[rows, 0, chosen]
        self._last[..., 1:-1] = seen.jobs
        self._last[..., -1] = -passed.lost
        self._last[passed.ended[:, 0]] = 0
        return rows, passed
