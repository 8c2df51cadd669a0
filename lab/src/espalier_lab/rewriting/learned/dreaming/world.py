"""A world model, learnt from recorded episodes: first V, then M."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.nn.utils.rnn import pad_sequence

from espalier_lab.learners.rollouts import descend
from espalier_lab.rewriting.learned.dreaming.blocks import EpisodeBlock, mask_of
from espalier_lab.rewriting.learned.dreaming.memory import Memory
from espalier_lab.rewriting.learned.dreaming.vision import LATENT, Vision
from espalier_lab.rewriting.learned.rollout import RewriteEpisode
from espalier_lab.rewriting.learned.seen import Batch, GraphObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """Hyperparameters of a world model."""

    seeing: int = 15
    """Number of passes of V over all graphs."""
    graphs: int = 64
    """Number of graphs in a minibatch of V."""
    remembering: int = 60
    """Number of passes of M over all episodes."""
    episodes: int = 16
    """Number of episodes in a minibatch of M."""
    rate: float = 3e-3
    """Adam's learning rate; it falls to a tenth."""
    gradient_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class World:
    """A learnt vision and memory, which do not change any more."""

    vision: Vision
    memory: Memory
    unit: float
    """Unit of the rewards that the memory predicts."""

    def latents(self, episodes: Sequence[RewriteEpisode[GraphObservation]]) -> Tensor:
        """Return z of all graphs of E episodes, zeros after the last: (E, T + 1, `LATENT`)."""
        lengths = [len(one.seen) + 1 for one in episodes]
        found = self.vision.latents([seen for one in episodes for seen in (*one.seen, one.last)])
        return pad_sequence(list(torch.split(found, lengths)), batch_first=True)


Heard = Callable[[str, int, float], None]
"""Receives the part ("vision", "memory"), its passes so far, and the mean loss of the last one."""


def learn_world(
    episodes: Sequence[RewriteEpisode[GraphObservation]],
    settings: WorldSettings,
    seed: int,
    heard: Heard = lambda part, passes, loss: None,
) -> World:
    """Learn a world model; the same episodes and seed give the same one.

    Raise `ValueError` for fewer than two graphs with a decision, as numbers are scaled by their spread over graphs, and
    `espalier_agent.learners.learning.LearningError` if a loss is not finite.
    """
    if (graphs := sum(len(one.seen) for one in episodes)) < 2:
        raise ValueError(f"episodes: {graphs} graphs were recorded; record at least two")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        block = EpisodeBlock.of(episodes)
        spread = float(block.rewards[block.played].std(correction=0))
        world = World(Vision(), Memory(), max(spread, 1e-6))
        _see(world, episodes, block, settings, heard)
        world.vision.eval().requires_grad_(requires_grad=False)
        _remember(world, world.latents(episodes), block, settings, heard)
        world.memory.eval().requires_grad_(requires_grad=False)
    return world


def _see(
    world: World,
    episodes: Sequence[RewriteEpisode[GraphObservation]],
    block: EpisodeBlock,
    settings: WorldSettings,
    heard: Heard,
) -> None:
    graphs = [seen for one in episodes for seen in one.seen]
    actions, rewards = block.actions[block.played], block.rewards[block.played] / world.unit
    masks = torch.stack([mask_of(seen) for seen in graphs])
    _begin_at(world.vision.masks, masks)

    def loss(chunk: Tensor) -> Tensor:
        batch = Batch.of([graphs[one] for one in chunk.tolist()])
        logits, whole, reward = world.vision.predicted(world.vision(batch), actions[chunk])
        wrong = binary_cross_entropy_with_logits(logits, masks[chunk], reduction="sum") / len(chunk)
        return wrong + mse_loss(whole, batch.whole) + mse_loss(reward, rewards[chunk])

    for passes, value in _descended(world.vision, loss, len(graphs), settings.graphs, settings.seeing, settings):
        heard("vision", passes, value)


def _remember(world: World, latents: Tensor, block: EpisodeBlock, settings: WorldSettings, heard: Heard) -> None:
    _begin_at(world.memory.masks, block.masks[block.played])

    def loss(chunk: Tensor) -> Tensor:
        played = block.played[chunk]
        foretold, _ = world.memory(latents[chunk, :-1], block.actions[chunk])
        likely = foretold.latents.log_prob(latents[chunk, 1:])[played].mean()
        wrong = binary_cross_entropy_with_logits(
            foretold.masks[played], block.masks[chunk][played], reduction="sum"
        ) / played.sum()  # fmt: skip
        end = binary_cross_entropy_with_logits(foretold.ends[played], block.ends[chunk][played])
        error = mse_loss(foretold.rewards[played], block.rewards[chunk][played] / world.unit)
        # Density per number of z, so that all parts have a similar size.
        total: Tensor = wrong + end + error - likely / LATENT
        return total

    count = len(block.played)
    for passes, value in _descended(world.memory, loss, count, settings.episodes, settings.remembering, settings):
        heard("memory", passes, value)


def _begin_at(head: nn.Linear, masks: Tensor) -> None:
    """Initialise a head with the frequencies of rules: at most places they never apply, which takes long to learn."""
    with torch.no_grad():
        head.bias.copy_(torch.logit(masks.mean(0).flatten(), eps=1e-4))


def _descended(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    count: int,
    minibatch: int,
    passes: int,
    settings: WorldSettings,
) -> Iterator[tuple[int, float]]:
    """Descend in passes over `count` rows; yield the number of passes and the mean loss after each."""
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate, fused=True)
    # Nearly equal sizes: a last minibatch of one graph would have no variance for scaling.
    chunks = math.ceil(count / minibatch)
    for done in range(passes):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * (1 - 0.9 * done / passes)
        total = 0.0
        for chunk in torch.tensor_split(torch.randperm(count), chunks):
            value = loss(chunk)
            descend(optimizer, value, network, settings.gradient_norm, done)
            total += float(value.detach()) * len(chunk)
        yield done + 1, total / count
