"""DL2's cluster as a vectorised environment: parallel episodes in arrays, about ten times as fast as single ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from espalier_lab.illegal_actions import RAISE, IllegalActionError, checked, chosen
from espalier_lab.scheduling.allocation.environment import (
    HOUR,
    STOP,
    Observation,
    episode_index,
    observation_space,
    observed,
    widened,
)
from espalier_lab.scheduling.allocation.forms import SlotForm
from espalier_lab.scheduling.allocation.rules import act
from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.allocation.traces import Trace, draw
from espalier_lab.scheduling.seed_split import SeedSplit


class SideBySide(gymnasium.vector.VectorEnv[Observation, NDArray[np.int64], Any]):
    """Parallel episodes of `AllocationEnvironment` in DL2's cluster.

    Arrays begin with the dimension of episodes; everything else is the same. An episode that is over restarts with the
    next step, which ignores its action (`AutoresetMode.NEXT_STEP`).
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int = 16, nodes: int = 96, purpose: SeedSplit | str = SeedSplit.TRAIN, illegal: str = RAISE
    ) -> None:
        """Play `num_envs` episodes at a time."""
        self._stops = checked(illegal, STOP) != RAISE
        form = SlotForm(nodes)
        self.num_envs, self.nodes, self.purpose = num_envs, nodes, SeedSplit.of(purpose)
        self._jobs, self._options = form.jobs, len(form.options)
        self.single_observation_space = observation_space(self._jobs, self._options)
        self.single_action_space = spaces.Discrete(self._jobs * self._options + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._slots = Slots(source(), nodes, [draw(source(), self.purpose, index) for index in range(num_envs)])
        self._ended = np.zeros(num_envs, bool)
        self._legal = widened(np.ones((num_envs, 1), bool), self._jobs * self._options + 1)
        """The last mask of choices."""
        self._width = 0
        """The number of "stop" in the last observation."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin all episodes; a list of seeds counts as its first.

        `options={"episode": i}` begins that one everywhere; later ones are drawn.
        """
        super().reset(seed=seed[0] if isinstance(seed, list) else seed, options=options)
        for row in range(self.num_envs):
            self._slots.begin(row, self._draw(options))
        self._ended[:] = False
        return self._look()

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Give something, or let time pass, in each episode.

        Raise `IllegalActionError`, naming the environment, and leave all of them unchanged.
        """
        slots, given = self._slots, np.asarray(actions)
        if given.shape != (self.num_envs,) or not np.issubdtype(given.dtype, np.integer):
            raise IllegalActionError(
                f"actions have shape {given.shape} and type {given.dtype}; give {self.num_envs} integers"
            )
        rewards, began = np.zeros(self.num_envs), self._ended.copy()
        last = self._legal.shape[1] - 1
        known = (given >= 0) & (given <= last)
        legal = known & (self._legal[np.arange(self.num_envs), np.where(known, given, last)] > 0)
        if not self._stops:
            for row in np.flatnonzero(~legal & ~began):
                chosen(given[row], self._legal[row], where=f"environment {row}: ")
        rows, passed = act(slots, np.where(legal & (given < last), given, self._width), ~began)
        rewards[rows] = -passed.spent.sum(1) * slots.source.slot_seconds / HOUR
        for row in np.flatnonzero(began):
            slots.begin(int(row), self._draw())
        self._ended = slots.over.copy()
        observation, info = self._look()
        if self._ended.any():
            means = [slots.completion_slots(row).mean() for row in range(self.num_envs)]
            info["mean_seconds"] = np.array(means) * slots.source.slot_seconds
            info["_mean_seconds"] = self._ended.copy()
        return observation, rewards, self._ended.copy(), np.zeros(self.num_envs, bool), info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return `info["action_mask"]` as booleans; the mask of an episode that is over does not matter."""
        return self._legal.astype(np.bool_)

    def _draw(self, options: dict[str, Any] | None = None) -> Trace:
        return draw(source(), self.purpose, episode_index(options, self.np_random))

    def _look(self) -> tuple[Observation, dict[str, Any]]:
        seen, mask = self._slots.seen(self._slots.window)
        self._legal, self._width = widened(mask, self._jobs * self._options + 1), mask.shape[1] - 1
        return observed(seen, self._jobs), {"action_mask": self._legal.copy()}
