"""The real environment, with the interface of a dream for the controller."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np

from espalier_lab.rewriting.learned.dreaming.mind import Known, Mind, mind_space
from espalier_lab.rewriting.learned.dreaming.world import World
from espalier_lab.rewriting.learned.environment import Action, RewritesEnvironment
from espalier_lab.rewriting.learned.seen import GraphObservation


class Awake(gymnasium.Wrapper[Any, Action, Any, Action]):
    """Real steps, masks and rewards; z_t is observed, and h remembers observations and actions."""

    def __init__(self, environment: RewritesEnvironment, world: World) -> None:
        """Wrap an environment."""
        super().__init__(environment)
        self._real, self.world = environment, world
        self.observation_space = mind_space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Known, dict[str, Any]]:
        """Begin with the graph of the original model."""
        observation, info = self._real.reset(seed=seed, options=options)
        self._mind = Mind(self.world, self.world.vision.latents([GraphObservation.of(observation, info)])[0])
        return self._mind.known(), info

    def step(self, action: Action) -> tuple[Known, float, bool, bool, dict[str, Any]]:
        """Carry out a rewrite, or stop."""
        observation, reward, terminated, truncated, info = self._real.step(action)
        self._mind.foretold(np.asarray(action, np.int64))
        self._mind.latent = self.world.vision.latents([GraphObservation.of(observation, info)])[0]
        return self._mind.known(), float(reward), terminated, truncated, info

    def __copy__(self) -> Awake:
        """Return one that plays its own episodes."""
        return Awake(copy.copy(self._real), self.world)
