"""Placement by reinforcement learning without a model: imitation of a rule, then PPO or SAC; PPO on in an episode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from espalier_scheduling.learners import sac
from espalier_scheduling.learners.learner import Learner, Settings
from espalier_scheduling.learners.rollout import tensors
from espalier_scheduling.placement.actor import Actor
from espalier_scheduling.placement.episodes import PlacementEpisodes
from espalier_scheduling.placement.tasks import Family
from espalier_scheduling.purposes import Purpose

SETTINGS: Final = Settings(
    teacher="emptiest", imitated=4_000, kept=1.0, steps=60, decisions=38_400, minibatch=240, epochs=4, trace=0.95
)
TURNS: Final = 4
"""Updates in an episode in which learning goes on."""
_APART: Final = 1_000_000
"""Episodes to train on that belong to each seed."""


def learn_placement(
    seed: int,
    settings: Settings = SETTINGS,
    family: Family | None = None,
    told: Callable[[str], object] = lambda _: None,
    *,
    sac_entropy: float | None = None,
) -> Actor:
    """Return a network that learnt on clusters drawn from `family`; torch is held to one thread.

    By the learner of the settings; with `sac_entropy` by SAC, see `learners.sac`.
    """
    torch.set_num_threads(1)
    family = family or Family()
    actor = Actor(family.nodes // family.rack_nodes, family.rack_nodes, seed)
    numbers = itertools.count(seed * _APART)
    episodes = PlacementEpisodes(numbers, settings.episodes, Purpose.TRAIN, family=family)
    learner = Learner(episodes, actor, settings, seed)
    told(f"imitation of {settings.teacher}: {100 * learner.imitate():.0f} % of its decisions are the network's too")

    def progress(turn: int, figures: dict[str, float]) -> None:
        if turn % 20 == 19:
            recent = episodes.ended[-100:]
            told(
                f"{learner.learnt_from:,} decisions: {sum(recent) / max(1, len(recent)):,.0f} s a job while it explores"
            )

    if sac_entropy is None:
        learner.improve(progress)
    else:
        sac.improve(learner, actor, progress, sac_entropy)
    return actor


@torch.no_grad()
def frozen(actor: Actor, episodes: int, purpose: Purpose, *, shift: bool, family: Family | None = None) -> list[float]:
    """Return the mean completion time of each episode, seconds: the best score decides, and nothing is learnt."""
    # All have as many jobs, each of which is placed once: so they are over at the same time.
    played = PlacementEpisodes(itertools.count(), episodes, purpose, shift=shift, family=family)
    while not played.ended:
        scores, _ = actor(*tensors(*played.seen()))
        played.act(scores.argmax(1).numpy())
    return played.ended


def fine_tuned(
    actor: Actor,
    episodes: int,
    purpose: Purpose,
    settings: Settings = SETTINGS,
    *,
    shift: bool,
    family: Family | None = None,
) -> list[float]:
    """Return the same where PPO goes on in each episode, from the learnt network on, and decides by probabilities."""
    jobs = (family or Family()).jobs
    own = replace(settings, episodes=1, steps=jobs // TURNS, decisions=jobs, minibatch=jobs // TURNS)
    found: list[float] = []
    for number in range(episodes):
        played = PlacementEpisodes(itertools.count(number), 1, purpose, shift=shift, family=family)
        Learner(played, copy.deepcopy(actor), own, number).improve()
        found.append(played.ended[0])
    return found
