"""The loop of learners that remember what happened, and learn from what they draw from it."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import TYPE_CHECKING, Final, TypeVar

from espalier_lab.scheduling.learners.rollout import Rollout, collect

if TYPE_CHECKING:
    from espalier_lab.scheduling.learners.learner import SchedulingLearner
    from espalier_lab.scheduling.learners.registry import OnUpdate

MINIBATCH: Final = 256
RememberedT = TypeVar("RememberedT")


def replayed(
    learner: SchedulingLearner,
    on_update: OnUpdate,
    memory: MutableSequence[RememberedT],
    remembered: Callable[[Rollout, int], RememberedT],
    update: Callable[[list[RememberedT]], dict[str, float]],
    updates: int,
) -> None:
    """Learn from the network's own decisions: after each rollout `updates` times, from a minibatch of the memory.

    `memory` is of steps of all episodes, which `remembered` makes of a rollout and a step; `update` returns figures.
    """
    settings, size = learner.settings, learner.settings.episodes * learner.settings.steps
    drawn = max(1, MINIBATCH // settings.episodes)
    for turn in range(max(1, settings.decisions // size)):
        rollout = collect(
            learner.episodes, learner.network, settings.steps, learner.generator, discount=settings.discount
        )
        learner.learnt_from += size
        memory.extend(remembered(rollout, step) for step in range(settings.steps))
        figures = {"lost": rollout.lost}
        for _ in range(updates):
            picked = learner.rng.integers(len(memory), size=drawn)
            figures |= update([memory[index] for index in picked])
        on_update(turn, figures)
