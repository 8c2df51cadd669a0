"""Placement by reinforcement learning without a model: imitation of a rule, then PPO, SAC or RL²; PPO in an episode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from espalier_lab.scheduling.learners import ppo, sac
from espalier_lab.scheduling.learners.learner import LearnerSettings, SchedulingLearner
from espalier_lab.scheduling.learners.recurrent import remembering
from espalier_lab.scheduling.learners.registry import Improve, OnUpdate
from espalier_lab.scheduling.learners.rollout import tensors
from espalier_lab.scheduling.placement.actor import Actor
from espalier_lab.scheduling.placement.episodes import PlacementEpisodes
from espalier_lab.scheduling.placement.recurrent import RecallingEpisodes, RecurrentActor
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

SETTINGS: Final = LearnerSettings(
    teacher="emptiest", imitated=4_000, kept=1.0, steps=60, decisions=38_400, minibatch=240, epochs=4, trace=0.95
)
Placing = Actor | RecurrentActor
TURNS: Final = 4
"""Updates in an episode in which learning goes on."""
_APART: Final = 1_000_000
"""Episodes to train on that belong to each seed."""


def learn_placement(
    seed: int,
    settings: LearnerSettings = SETTINGS,
    family: Family | None = None,
    progress: Callable[[str], object] = lambda _: None,
    *,
    sac_entropy: float | None = None,
) -> Actor:
    """Return a network that learnt on clusters drawn from `family`; torch is held to one thread.

    By the learner of the settings; with `sac_entropy` by SAC, see `learners.sac`.
    """
    family = family or Family()
    actor = Actor(*_racks(family), seed)

    def improve(learner: SchedulingLearner, on_update: OnUpdate) -> None:
        if sac_entropy is None:
            learner.improve(on_update)
        else:
            sac.improve(learner, actor, on_update, sac_entropy)

    _learn(actor, improve, seed, settings, family, progress)
    return actor


def learn_remembering(
    seed: int,
    settings: LearnerSettings = SETTINGS,
    family: Family | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> RecurrentActor:
    """Return a network that learnt by RL² (see `placement.recurrent`): by PPO, from as many decisions.

    Its episodes are learnt from whole, so what is imitated and the steps between updates are whole episodes, too.
    """
    family = family or Family()
    actor = RecurrentActor(*_racks(family), seed)
    side_by_side = settings.episodes * family.jobs
    imitated = max(1, settings.imitated // side_by_side) * side_by_side
    _learn(actor, ppo.improve, seed, replace(settings, steps=family.jobs, imitated=imitated), family, progress)
    return actor


def _racks(family: Family) -> tuple[int, int]:
    return family.nodes // family.rack_nodes, family.rack_nodes


def _learn(
    actor: Placing,
    improve: Improve,
    seed: int,
    settings: LearnerSettings,
    family: Family,
    progress: Callable[[str], object],
) -> None:
    torch.set_num_threads(1)
    episodes = _shown(actor)(itertools.count(seed * _APART), settings.episodes, SeedSplit.TRAIN, family=family)
    learner = SchedulingLearner(episodes, actor, settings, seed)
    progress(f"imitation of {settings.teacher}: {100 * learner.imitate():.0f} % of its decisions are the network's too")

    def on_update(turn: int, figures: dict[str, float]) -> None:
        if turn % 20 == 19:
            recent = [seconds for jobs in episodes.ended[-100:] for seconds in jobs]
            progress(
                f"{learner.learnt_from:,} decisions: {sum(recent) / max(1, len(recent)):,.0f} s a job while it explores"
            )

    improve(learner, on_update)


def _shown(actor: Placing) -> type[PlacementEpisodes]:
    """Return the episodes that show what this network reads."""
    return RecallingEpisodes if isinstance(actor, RecurrentActor) else PlacementEpisodes


@torch.no_grad()
def frozen(
    actor: Placing, episodes: int, purpose: SeedSplit, *, shift: bool, family: Family | None = None
) -> list[list[float]]:
    """Return the completion times of the jobs of each episode, seconds, in the order in which jobs came.

    The best score decides, and weights do not change.
    """
    # All have as many jobs, each of which is placed once: so they are over at the same time.
    played = _shown(actor)(itertools.count(), episodes, purpose, shift=shift, family=family)
    with remembering(actor, episodes):
        while not played.ended:
            scores, _ = actor(*tensors(*played.seen()))
            played.act(scores.argmax(1).numpy())
    return played.ended


def fine_tuned(
    actor: Actor,
    episodes: int,
    purpose: SeedSplit,
    settings: LearnerSettings = SETTINGS,
    *,
    shift: bool,
    family: Family | None = None,
) -> list[list[float]]:
    """Return the same where PPO goes on in each episode, from the learnt network on, and decides by probabilities."""
    jobs = (family or Family()).jobs
    own = replace(settings, episodes=1, steps=jobs // TURNS, decisions=jobs, minibatch=jobs // TURNS)
    found: list[list[float]] = []
    for number in range(episodes):
        played = PlacementEpisodes(itertools.count(number), 1, purpose, shift=shift, family=family)
        SchedulingLearner(played, copy.deepcopy(actor), own, number).improve()
        found.append(played.ended[0])
    return found
