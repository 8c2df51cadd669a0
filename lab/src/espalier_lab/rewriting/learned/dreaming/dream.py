"""A world model in the place of the real environment."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from espalier_core.illegal_actions import RAISE, checked
from espalier_lab.rewriting.engine.search import HORIZON
from espalier_lab.rewriting.learned.dreaming.blocks import mask_of
from espalier_lab.rewriting.learned.dreaming.mind import Known, Mind, mind_space
from espalier_lab.rewriting.learned.dreaming.world import World
from espalier_lab.rewriting.learned.environment import FORBIDDEN, LOCATIONS, PENALIZE, STOP, Action, chosen, masks_of
from espalier_lab.rewriting.learned.seen import GraphObservation


class Dream(gymnasium.Env[Known, Action]):
    """Episodes that a world model makes up: same actions, rewards and masks as `RewritesEnvironment`, no graphs.

    **Observations** are z_t and h, see `mind.MIND_SIZE`. z_{t+1} is drawn from the mixture of the memory at the
    temperature; the reward is the one that is expected. A rule holds at a location, and the episode ends, where the
    memory takes it for more probable than not (as Ha and Schmidhuber 2018 do for the end). Stopping always holds. A
    dream that does not end is truncated after the `horizon`.

    The real environment is asked for nothing but the graph that each episode begins with.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        world: World,
        start: GraphObservation,
        *,
        temperature: float = 1.0,
        horizon: int = HORIZON,
        seed: int = 0,
        illegal: str = RAISE,
    ) -> None:
        """Dream of a graph. Raises `ValueError` for a temperature that is not positive."""
        self.illegal = checked(illegal, PENALIZE)
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; give a positive number, 1 for what was learnt")
        self.world, self.temperature, self.horizon = world, temperature, horizon
        self._start, self._start_mask = world.vision.latents([start])[0], mask_of(start).bool()
        self._generator = torch.Generator().manual_seed(seed)
        self.observation_space = mind_space()
        # Gymnasium types discrete actions as int64 arrays of any shape.
        self.action_space = cast("spaces.Space[Action]", spaces.MultiDiscrete([STOP + 1, LOCATIONS]))
        self._running, self._mask = False, self._start_mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Known, dict[str, Any]]:
        """Begin with the graph; a seed decides all that is drawn from now on."""
        super().reset(seed=seed)
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
        self._mind, self._mask = Mind(self.world, self._start), self._start_mask
        self._steps, self._running = 0, True
        return self._mind.known(), self._info()

    def step(self, action: Action) -> tuple[Known, float, bool, bool, dict[str, Any]]:
        """Dream of a rewrite, or of stopping; raises as `RewritesEnvironment.step`."""
        if not self._running:
            raise ResetNeeded("no episode is running: call reset() before the first step and after the last")
        found = chosen(action, self._legal(), self.illegal)
        self._steps += 1
        reward, ended = FORBIDDEN, False
        if found is not None:
            foretold = self._mind.foretold(np.asarray(found, np.int64))
            self._mind.latent = foretold.latents.at(self.temperature).sample(self._generator)[0, 0]
            self._mask = foretold.masks[0, 0] > 0
            reward, ended = float(foretold.rewards) * self.world.unit, bool(foretold.ends > 0)
        truncated = not ended and self._steps >= self.horizon
        self._running = not (ended or truncated)
        return self._mind.known(), reward, ended, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        mask = self._legal()
        return {"action_mask": mask * self._running, "rule_mask": mask.max(axis=1), "location_mask": mask}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return what `RewritesEnvironment.action_masks` does."""
        return masks_of(self._legal() * self._running)

    def _legal(self) -> NDArray[np.int8]:
        mask = np.zeros((STOP + 1, LOCATIONS), np.int8)
        mask[:STOP] = self._mask.numpy()
        mask[STOP, 0] = 1
        return mask
