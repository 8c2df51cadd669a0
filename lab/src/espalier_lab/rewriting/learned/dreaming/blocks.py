"""Actions and masks as numbers, and episodes of different lengths as one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from espalier_lab.rewriting.learned.environment import LOCATIONS, STOP
from espalier_lab.rewriting.learned.rollout import RewriteEpisode
from espalier_lab.rewriting.learned.seen import GraphObservation

ACTION_SIZE: Final = STOP + 1 + LOCATIONS
"""Size of an encoded action: its rule and its location, one-hot."""


def coded(actions: Tensor) -> Tensor:
    """Return actions (..., 2) as numbers (..., `ACTION_SIZE`)."""
    rules, places = one_hot(actions[..., 0], STOP + 1), one_hot(actions[..., 1], LOCATIONS)
    return torch.cat([rules, places], dim=-1).float()


def mask_of(seen: GraphObservation) -> Tensor:
    """Return 1 where a rule applies: (`STOP`, `LOCATIONS`)."""
    mask = torch.zeros(STOP, LOCATIONS)
    mask[seen.rules, seen.places] = 1
    return mask


@dataclass(frozen=True, slots=True)
class EpisodeBlock:
    """E episodes of at most T steps; zeros after the end of each."""

    actions: Tensor
    """(E, T, `ACTION_SIZE`)."""
    rewards: Tensor
    """(E, T)."""
    masks: Tensor
    """(E, T, `STOP`, `LOCATIONS`): the places where rules apply after each step."""
    ends: Tensor
    """(E, T): 1 where a step ended its episode."""
    played: Tensor
    """(E, T), boolean: the steps that were played."""

    @staticmethod
    def of(episodes: Sequence[RewriteEpisode[GraphObservation]]) -> EpisodeBlock:
        """Combine episodes; none may be empty."""
        lengths = torch.tensor([len(one.actions) for one in episodes])
        steps = torch.arange(int(lengths.max()))
        return EpisodeBlock(
            actions=_padded([coded(_pairs(one)) for one in episodes]),
            rewards=_padded([torch.tensor(one.rewards) for one in episodes]),
            masks=_padded([torch.stack([mask_of(seen) for seen in (*one.seen[1:], one.last)]) for one in episodes]),
            ends=(steps == lengths[:, None] - 1).float(),
            played=steps < lengths[:, None],
        )


def _pairs(episode: RewriteEpisode[GraphObservation]) -> Tensor:
    pairs = [seen.action(number) for seen, number in zip(episode.seen, episode.actions, strict=True)]
    return torch.from_numpy(np.stack(pairs))


def _padded(parts: list[Tensor]) -> Tensor:
    return pad_sequence(parts, batch_first=True)
