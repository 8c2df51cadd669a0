"""The learners by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from espalier_lab.scheduling.learners import actor_critic, ppo

if TYPE_CHECKING:
    from espalier_lab.scheduling.learners.learner import SchedulingLearner

OnUpdate = Callable[[int, dict[str, float]], None]
"""Hears the number of each update, and its figures."""
Improve = Callable[["SchedulingLearner", OnUpdate], None]

LEARNERS: Final[dict[str, Improve]] = {
    "ppo": ppo.improve,
    "actor-critic": actor_critic.improve,
}
