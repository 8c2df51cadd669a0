"""Placement by reinforcement learning without a model: imitation of a rule, then RL²."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from espalier_lab.scheduling.learners import ppo
from espalier_lab.scheduling.learners.learner import LearnerSettings, SchedulingLearner
from espalier_lab.scheduling.learners.recurrent import remembering
from espalier_lab.scheduling.learners.rollout import tensors
from espalier_lab.scheduling.placement.recurrent import RecallingEpisodes, RecurrentActor
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

SETTINGS: Final = LearnerSettings(
    teacher="emptiest", imitated=4_000, kept=1.0, steps=60, decisions=38_400, minibatch=240, epochs=4, trace=0.95
)
_APART: Final = 1_000_000
"""Number of training episodes that belong to each seed."""


def learn_remembering(
    seed: int,
    settings: LearnerSettings = SETTINGS,
    family: Family | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> RecurrentActor:
    """Return a network that learnt by RL² (see `placement.recurrent`): by PPO, from as many decisions.

    It learns from whole episodes, so imitation and the steps between updates cover whole episodes, too.
    """
    torch.set_num_threads(1)
    family = family or Family()
    actor = RecurrentActor(family.nodes // family.rack_nodes, family.rack_nodes, seed)
    side_by_side = settings.episodes * family.jobs
    imitated = max(1, settings.imitated // side_by_side) * side_by_side
    settings = replace(settings, steps=family.jobs, imitated=imitated)
    episodes = RecallingEpisodes(itertools.count(seed * _APART), settings.episodes, SeedSplit.TRAIN, family=family)
    learner = SchedulingLearner(episodes, actor, settings, seed)
    progress(f"imitation of {settings.teacher}: {100 * learner.imitate():.0f} % of its decisions are the network's too")

    def on_update(turn: int, figures: dict[str, float]) -> None:
        if turn % 20 == 19:
            recent = [seconds for jobs in episodes.ended[-100:] for seconds in jobs]
            progress(
                f"{learner.learnt_from:,} decisions: {sum(recent) / max(1, len(recent)):,.0f} s a job while it explores"
            )

    ppo.improve(learner, on_update)
    return actor


@torch.no_grad()
def frozen(
    actor: RecurrentActor, episodes: int, purpose: SeedSplit, *, shift: bool, family: Family | None = None
) -> list[list[float]]:
    """Return the completion times in seconds of the jobs of each episode, in order of arrival.

    The best score decides, and weights do not change.
    """
    # All episodes have equally many jobs, each placed once, so they end at the same time.
    played = RecallingEpisodes(itertools.count(), episodes, purpose, shift=shift, family=family)
    with remembering(actor, episodes):
        while not played.ended:
            scores, _ = actor(*tensors(*played.seen()))
            played.act(scores.argmax(1).numpy())
    return played.ended
