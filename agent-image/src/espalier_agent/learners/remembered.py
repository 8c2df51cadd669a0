"""What of a history is learnt from, without what is held out for `promote`, and what the lineage says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier_agent.history.episodes import Episode, Gathered, Tried, episodes_digest, split
from espalier_agent.policies.policy import LearntHistory


class Holding(Protocol):
    """A configuration that says what is held out."""

    @property
    def held_out_share(self) -> float:
        """Of the jobs."""

    @property
    def held_out_seed(self) -> int:
        """Of the share."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is learnt from."""

    episodes: Sequence[Episode]
    tried: Sequence[Tried]
    held_out: int
    """Episodes that are held out, without trials."""
    lineage: LearntHistory


def remembered(
    history: Gathered,
    config: Holding,
    files: tuple[str, ...],
    usable: Callable[[Sequence[Episode]], Sequence[Episode]] = lambda episodes: episodes,
) -> Remembered:
    """Return what is learnt from a history: of what is not held out, the `usable` episodes, and all trials.

    `files` are the names that the lineage gives to the history.
    """
    learnt, held_out = split(history.episodes, config.held_out_share, config.held_out_seed)
    tried, held_out_trials = split(history.tried, config.held_out_share, config.held_out_seed)
    episodes = usable(learnt)
    lineage = LearntHistory(
        files=files,
        sha256=episodes_digest(episodes, tried),
        decisions=sum(len(one.decisions) for one in episodes),
        episodes=len(episodes),
        trials=len(tried),
        held_out_share=config.held_out_share,
        held_out_seed=config.held_out_seed,
        held_out_episodes=len(held_out) + len(held_out_trials),
    )
    return Remembered(episodes, tried, len(held_out), lineage)
