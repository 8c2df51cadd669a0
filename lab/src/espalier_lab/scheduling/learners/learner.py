"""Learning of a network: imitation of a rule, then learning from the network's own decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from espalier_lab.scheduling.learners import actor_critic, ppo
from espalier_lab.scheduling.learners.descent import imitate
from espalier_lab.scheduling.learners.rollout import STOP, ParallelEpisodes, Seen, columns_of, joined, tensors

OnUpdate = Callable[[int, dict[str, float]], None]
"""Receives the number of each update, and its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Hyperparameters, chosen on traces of the purpose `choose`. The learner `actor-critic` has some of its own."""

    teacher: str = "optimus-by-share"
    """The rule to imitate first: one of `RULES`, or of `WORTHS` with all-reduce."""
    learner: str = "ppo"
    """One of `LEARNERS`, for learning from the network's own decisions."""
    imitated: int = 20_000
    """Number of the teacher's decisions to learn from."""
    kept: float = 0.25
    """Share of the teacher's decisions that is kept, as those of one slot are alike."""
    imitation_epochs: int = 4
    imitation_rate: float = 1e-3
    episodes: int = 16
    """Number of parallel episodes."""
    steps: int = 256
    """Decisions of each episode between two updates."""
    decisions: int = 160_000
    """Number of the network's own decisions to learn from."""
    discount: float = 0.9
    """Discount per slot."""
    trace: float = 0.97
    """GAE's lambda, per decision."""
    others: float = 1.0
    """Weight of a decision's effect on other jobs, relative to the effect on its own job."""
    clip: float = 0.2
    epochs: int = 2
    minibatch: int = 1024
    rate: float = 1e-3
    """Adam's learning rate after imitation; it falls to a tenth."""
    entropy: float = 0.003
    value: float = 0.5
    """Weight of the error of values."""


class SchedulingLearner:
    """One run of learning."""

    def __init__(self, episodes: ParallelEpisodes, network: nn.Module, settings: LearnerSettings, seed: int) -> None:
        """Prepare to teach a network, which takes `Seen` and returns scores and values, in these episodes."""
        self.episodes, self.network, self.settings = episodes, network, settings
        self.rng, self.generator = np.random.default_rng((7, seed)), torch.Generator().manual_seed(seed)
        self.learnt_from = 0
        """Decisions so far."""

    def imitate(self) -> float:
        """Learn the teacher's decisions; return the share of them with which the network then agrees."""
        settings, episodes = self.settings, self.episodes
        parts: list[Seen] = []
        wanted: list[Tensor] = []
        number = 0
        while number < settings.imitated:
            chosen = episodes.taught(settings.teacher)
            stop = episodes.window.shape[1] * episodes.options
            # "Stop" is rare and as important: all of these are kept.
            keep = np.flatnonzero((self.rng.random(len(chosen)) < settings.kept) | (chosen == stop))
            if keep.size:
                jobs, options, cluster, present, mask = tensors(*episodes.seen())
                parts.append((jobs[keep], options[keep], cluster[keep], present[keep], mask[keep]))
                wanted.append(torch.from_numpy(np.where(chosen == stop, STOP, chosen)[keep]))
                number += keep.size
            episodes.act(chosen)
        self.learnt_from += number

        def judged(chunk: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
            scores, _ = self.network(*joined([parts[index] for index in chunk]))
            labels = columns_of(torch.cat([wanted[index] for index in chunk]), scores)
            return functional.cross_entropy(scores, labels), (scores.argmax(1) == labels).sum()

        right = imitate(
            self.network, judged, parts=len(parts), chunks=number // 512, epochs=settings.imitation_epochs,
            rate=settings.imitation_rate, rng=self.rng,
        )  # fmt: skip
        return right / number

    def improve(self, on_update: OnUpdate = lambda *_: None) -> None:
        """Learn from own decisions; `on_update` gets the figures of each update."""
        LEARNERS[self.settings.learner](self, on_update)


LEARNERS: Final[dict[str, Callable[[SchedulingLearner, OnUpdate], None]]] = {
    "ppo": ppo.improve,
    "actor-critic": actor_critic.improve,
}
