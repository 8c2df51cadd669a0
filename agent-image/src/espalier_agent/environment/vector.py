"""Many environments over outcome tables at once, as arrays: 1024 of them step 150 times as fast as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from espalier_agent.environment.single import (
    NOTHING,
    Sampling,
    drawn_table,
    illegal_at,
    new_stream,
    observation_space,
    playable,
)
from espalier_agent.tables.positions import NO_INDEX, Array
from espalier_agent.tables.rewards import Reward
from espalier_core.illegal_actions import RAISE, IllegalActionError, checked
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable


class OutcomeVectorEnvironment(VectorEnv[dict[str, Array], Array, Array]):
    """`num_envs` times `OutcomeEnvironment`; what it says about actions, observations, end and rewards holds here.

    Equal step by step to Gymnasium's `SyncVectorEnv` of as many of them with the same seeds: `reset(seed=s)` gives
    environment i the seed s + i, and a sequence of seeds one to each.

    **Autoreset** is `NEXT_STEP`, Gymnasium's own: the step that ends an episode returns its last observation; the
    next step ignores that environment's action, begins a new episode and is worth 0. Leave that step out of what
    is learnt from: its mask, from the step before, is all 0.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        tables: Sequence[OutcomeTable] | None = None,
        reward: Reward | str = Reward.PAPER,
        sampling: Sampling | str = Sampling.UNIFORM,
        allocation: Allocation | None = None,
        render_mode: None = None,
        illegal: str = RAISE,
    ) -> None:
        """Take the number of environments, and for all of them what `OutcomeEnvironment` takes."""
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; give at least 1")
        self._raises = checked(illegal, NOTHING) == RAISE
        self.positions = playable(tables, reward, allocation)
        self.sampling = Sampling(sampling)
        self.num_envs = num_envs
        self.single_observation_space = observation_space(self.positions)
        self.single_action_space = spaces.Discrete(self.positions.next_states.shape[1])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = render_mode
        self._at = np.full(num_envs, NO_INDEX, dtype=np.int64)
        self._streams = np.zeros(num_envs, dtype=np.uint64)
        self._episodes = np.full(num_envs, NO_INDEX, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode in each environment; `options={"table": name}` says on which table in all of them."""
        if seed is not None or self._episodes[0] == NO_INDEX:
            self._streams = self._seeded(seed)
            self._episodes[:] = NO_INDEX
        self._begin(np.arange(self.num_envs), None if not options else options.get("table"))
        return self.positions.observe(self._at), self._infos(np.zeros(self.num_envs, dtype=np.bool_))

    def step(self, actions: Array) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """Carry out one decision in each environment; where the last step ended an episode, begin the next one.

        Raises `IllegalActionError`, naming the environment, and leaves all of them where they were.
        """
        if self._at[0] == NO_INDEX:
            raise ResetNeeded("no episode is running: call reset() before the first step")
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or not np.issubdtype(chosen.dtype, np.integer):
            raise IllegalActionError(
                f"actions have shape {chosen.shape} and type {chosen.dtype}; give {self.num_envs} integers"
            )
        ended = self.positions.over[self._at]
        wrong = (chosen < 0) | (chosen >= self.positions.legal.shape[1])
        played = np.where(ended | wrong, 0, chosen)
        wrong |= self.positions.legal[self._at, played] == 0
        if not self._raises:
            played = np.where(wrong, self.positions.legal.shape[1] - 1, played)
        elif np.any(wrong & ~ended):
            first = int(np.flatnonzero(wrong & ~ended)[0])
            raise illegal_at(self.positions, int(self._at[first]), chosen[first], f"environment {first}: ")
        # Rewards are 0 where an episode is over already.
        rewards = self.positions.rewards[self._at, played]
        self._at = np.where(ended, NO_INDEX, self.positions.next_states[self._at, played])
        if ended.any():
            self._begin(np.flatnonzero(ended), None)
        over = self.positions.over[self._at]
        return self.positions.observe(self._at), rewards, over, np.zeros_like(over), self._infos(over)

    def _begin(self, places: Array, table: str | None) -> None:
        self._episodes[places] += 1
        if table is None:
            begun = drawn_table(
                self.sampling, self._streams[places], self._episodes[places], len(self.positions.tables)
            )
        else:
            begun = np.full(len(places), self.positions.beginning(table))
        self._at[places] = self.positions.first[begun]

    def _infos(self, over: Array) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {
            "action_mask": self.positions.legal[self._at],
            "_action_mask": everywhere,
            "table": self.positions.table_of[self._at],
            "_table": everywhere.copy(),
        }
        if over.any():
            # It is 0 where no episode has just ended.
            infos |= {"accuracy": self.positions.accuracies[self._at], "_accuracy": over.copy()}
        return infos

    def _seeded(self, seed: int | Sequence[int] | None) -> Array:
        """Return the stream of each environment."""
        if isinstance(seed, int):
            self._np_random, self._np_random_seed = seeding.np_random(seed)
            seeds: Sequence[int | None] = range(seed, seed + self.num_envs)
        elif seed is None:
            seeds = [None] * self.num_envs
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds are given for {self.num_envs} environments; give one to each")
        return np.array([new_stream(seeding.np_random(each)[0]) for each in seeds], dtype=np.uint64)
