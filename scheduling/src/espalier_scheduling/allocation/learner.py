"""Learns to allocate in DL2's cluster: imitation of a rule, then masked PPO (Schulman et al., arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from espalier_scheduling.allocation.rollout import STOP, Episodes, Rollout, Seen, collect, joined, tensors
from espalier_scheduling.allocation.rules import RULES
from espalier_scheduling.allocation.slots import OPTIONS, Slots
from espalier_scheduling.allocation.traces import Trace
from espalier_scheduling.learned.twin import Twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How is learnt. Chosen on traces of the purpose `choose`."""

    teacher: str = "optimus-by-share"
    """The rule that is imitated first, one of `RULES`."""
    imitated: int = 20_000
    """Decisions of the teacher that are learnt from."""
    kept: float = 0.25
    """The part of the teacher's decisions that is kept: those of one slot are alike."""
    imitation_epochs: int = 4
    episodes: int = 16
    """Side by side."""
    steps: int = 256
    """Decisions of each episode between two updates."""
    decisions: int = 160_000
    """Of PPO."""
    discount: float = 0.9
    """A slot."""
    trace: float = 0.97
    """GAE's lambda, a decision."""
    others: float = 1.0
    """What a decision changes for other jobs counts so much beside what it changes for its own job."""
    clip: float = 0.2
    epochs: int = 2
    minibatch: int = 1024
    rate: float = 1e-3
    """Adam's learning rate; it falls to a tenth."""
    entropy: float = 0.003
    value: float = 0.5
    """The weight of the error of values."""


class Learner:
    """One run of learning."""

    def __init__(
        self, make: Callable[[list[Trace]], Slots], traces: Iterator[Trace], settings: Settings, seed: int
    ) -> None:
        """Prepare: `make` makes episodes of traces, which come from `traces`."""
        self.settings = settings
        self._rng, self._generator = np.random.default_rng((7, seed)), torch.Generator().manual_seed(seed)
        self.twin = Twin(OPTIONS, seed=seed)
        self.episodes = Episodes(make, traces, settings.episodes)
        self.learnt_from = 0
        """Decisions so far."""

    def imitate(self) -> float:
        """Learn the teacher's decisions; return the part of them that the network then takes too."""
        settings, slots, teach = self.settings, self.episodes.slots, RULES[self.settings.teacher]
        parts: list[Seen] = []
        wanted: list[Tensor] = []
        number = 0
        while number < settings.imitated:
            chosen = teach(slots)
            stop = slots.window.shape[1] * OPTIONS
            # "Stop" is rare and matters as much: all of them are kept.
            keep = np.flatnonzero((self._rng.random(len(chosen)) < settings.kept) | (chosen == stop))
            if keep.size:
                jobs, options, cluster, present, mask = tensors(*slots.seen(slots.window))
                parts.append((jobs[keep], options[keep], cluster[keep], present[keep], mask[keep]))
                wanted.append(torch.from_numpy(np.where(chosen == stop, STOP, chosen)[keep]))
                number += keep.size
            self.episodes.act(chosen)
        self.learnt_from += number
        optimizer = torch.optim.Adam(self.twin.parameters(), lr=settings.rate)
        right = 0.0
        for _ in range(settings.imitation_epochs):
            right = 0.0
            for chunk in np.array_split(self._rng.permutation(len(parts)), max(1, number // 512)):
                scores, _ = self.twin(*joined([parts[index] for index in chunk]))
                labels = _columns(torch.cat([wanted[index] for index in chunk]), scores)
                loss = functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                right += float((scores.argmax(1) == labels).sum())
        return right / number

    def improve(self, told: Callable[[int, dict[str, float]], None] = lambda *_: None) -> None:
        """Learn by PPO; `told` hears the figures of each update."""
        settings = self.settings
        optimizer = torch.optim.Adam(self.twin.parameters(), lr=settings.rate, eps=1e-5)
        size = settings.episodes * settings.steps
        turns = max(1, settings.decisions // size)
        for turn in range(turns):
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * (1 - 0.9 * turn / turns)
            rollout = collect(
                self.episodes,
                self.twin,
                settings.steps,
                self._generator,
                discount=settings.discount,
                trace=settings.trace,
                others=settings.others,
            )
            self.learnt_from += size
            figures = {"lost": rollout.lost}
            for _ in range(settings.epochs):
                order = self._rng.permutation(settings.steps)
                for chunk in np.array_split(order, max(1, size // settings.minibatch)):
                    figures |= self._update(optimizer, rollout, chunk)
            told(turn, figures)

    def _update(self, optimizer: torch.optim.Optimizer, rollout: Rollout, chunk: NDArray[np.int64]) -> dict[str, float]:
        settings = self.settings
        batch = joined([rollout.seen[index] for index in chunk])
        scores, values = self.twin(*batch)
        every = torch.log_softmax(scores, 1)
        logs = every.gather(1, _columns(rollout.actions[chunk].flatten(), scores)[:, None])[:, 0]
        ratio = (logs - rollout.logs[chunk].flatten()).exp()
        advantage = rollout.advantages[chunk].flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain = torch.min(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage).mean()
        entropy = -(every.exp() * every.clamp(min=-50)).sum(1).mean()
        width = values.shape[1]
        target = torch.cat(
            [functional.pad(each, (0, width - each.shape[1])) for each in map(rollout.returns.__getitem__, chunk)]
        )
        error = (((values - target) ** 2) * batch[3]).sum() / batch[3].sum()
        loss = -gain - settings.entropy * entropy + settings.value * error
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.twin.parameters(), 0.5)
        optimizer.step()
        return {
            "entropy": float(entropy.detach()),
            "error": float(error.detach()),
            "moved": float((ratio - 1).abs().mean().detach()),
        }


def _columns(actions: Tensor, scores: Tensor) -> Tensor:
    """Return the columns of actions: "stop" is the last."""
    return torch.where(actions == STOP, scores.shape[1] - 1, actions)
