"""The accuracy of a world model's predictions on episodes that it was not learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier_lab.rewriting.learned.dreaming.blocks import EpisodeBlock
from espalier_lab.rewriting.learned.dreaming.world import World
from espalier_lab.rewriting.learned.rollout import RewriteEpisode
from espalier_lab.rewriting.learned.seen import GraphObservation


@dataclass(frozen=True, slots=True)
class Judged:
    """Shares over all steps; 1 is best."""

    rewards: float
    """Share of the variance of the rewards that is predicted (R²); negative if the mean reward would predict better."""
    masks: float
    """Share of steps after which all places of all rules are predicted."""
    offered: float
    """Overlap of the rewrites in the predicted and in the real mask (Jaccard's index)."""
    ends: float
    """Share of steps with a correct prediction of the end of the episode."""


def judged(world: World, episodes: Sequence[RewriteEpisode[GraphObservation]], *, dreaming: bool) -> Judged:
    """Predict the steps of recorded actions, each from the real z_t, or if `dreaming` from the predicted z."""
    block, latents = EpisodeBlock.of(episodes), world.latents(episodes)
    masks, rewards, ends = [], [], []
    latent, state = latents[:, :1], None
    with torch.no_grad():
        for step in range(block.played.shape[1]):
            foretold, state = world.memory(latent, block.actions[:, step : step + 1], state)
            latent = foretold.latents.mode() if dreaming else latents[:, step + 1 : step + 2]
            masks.append(foretold.masks > 0)
            rewards.append(foretold.rewards * world.unit)
            ends.append(foretold.ends > 0)
    played = block.played
    mask, real = torch.cat(masks, 1)[played], block.masks[played].bool()
    reward, earned = torch.cat(rewards, 1)[played], block.rewards[played]
    end: Tensor = torch.cat(ends, 1)[played] == block.ends[played].bool()
    error, spread = ((reward - earned) ** 2).mean(), earned.var(correction=0)
    return Judged(
        rewards=1 - float(error / spread.clamp_min(1e-12)),
        masks=float((mask == real).flatten(1).all(1).float().mean()),
        offered=float((mask & real).sum() / (mask | real).sum().clamp_min(1)),
        ends=float(end.float().mean()),
    )
