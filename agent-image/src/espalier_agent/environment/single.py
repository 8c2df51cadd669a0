"""The environment that plays one episode at a time."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from espalier_agent.data import lamelas_tables
from espalier_agent.tables.positions import NO_INDEX, Array, Positions
from espalier_agent.tables.rewards import Reward
from espalier_core.illegal_actions import RAISE, IllegalActionError, checked, integer
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable

ENVIRONMENT_ID: Final = "espalier/Outcomes-v0"

NOTHING: Final = "nothing"
LARGEST_COUNT: Final = 2**31 - 1
"""Bound on replicas and GPUs observed."""


class Sampling(StrEnum):
    """Which table an episode is played on."""

    UNIFORM = "uniform"
    """Drawn for each episode, with equal probability."""
    IN_TURN = "in-turn"
    """Each in turn, beginning with the first; a reset with a seed starts again."""

    @classmethod
    def _missing_(cls, value: object) -> Sampling:
        raise ValueError(f"sampling is {value!r}; choose one of {', '.join(cls)}")


class OutcomeEnvironment(gymnasium.Env[dict[str, Array], np.int64]):
    """Adapt a model under a time budget: one episode is one sequence of decisions of an outcome table.

    **Actions.** i deepens growth point i; those after the points each double a group of channels, where tables have
    widenings; the last one does nothing. What a model has no point or group for is masked: `info["action_mask"]` is 1
    where an action is legal and all 0 when the episode is over. An illegal action raises `IllegalActionError`; with
    `illegal="nothing"`, an integer that is no legal action does nothing. (`check_env` and a plain
    `action_space.sample()` know no mask: they go with that, or with tables of one number of actions.)

    **Observations.** The architecture: features, mask, edges (from, to) of its layers, in execution order; after
    which layer each growth point would insert and how often it has grown; where tables have widenings, which layers
    carry each group's channels and how many these are; then share of time left, time budget, allocation (replicas,
    GPUs) and decisions left. Arrays are padded to the largest that the tables can reach: layers with 0, indices with
    -1.

    **End.** After the last decision the episode is `terminated`, never `truncated`. The budget is part of the task
    and its rest is observed: nothing can be earned after it, so a value beyond it is 0 and must not be bootstrapped,
    which `truncated` would ask of learners. The last observation shows the model as it trained to the budget's end,
    with no time and no decision left, and `info["accuracy"]` what it reached.

    **Rewards** are those of `espalier_agent.tables.rewards`, by name.

    **Randomness** is in the choice of the table alone, which `reset(seed=...)` fixes for all episodes to come, or
    `reset(options={"table": name})` for one. `info["table"]` is the index of the table in `positions.tables`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        tables: Sequence[OutcomeTable] | None = None,
        reward: Reward | str = Reward.PAPER,
        sampling: Sampling | str = Sampling.UNIFORM,
        allocation: Allocation | None = None,
        render_mode: None = None,
        illegal: str = RAISE,
    ) -> None:
        """Play on `tables`, the paper's six without any.

        Tables do not say under which `allocation` they were collected; what is given here is observed throughout.
        Raises `TableError` for a table that cannot be played and `NoTableError` where there is none.
        """
        self._raises = checked(illegal, NOTHING) == RAISE
        self.positions = playable(tables, reward, allocation)
        self.sampling = Sampling(sampling)
        self.observation_space = observation_space(self.positions)
        self.action_space = spaces.Discrete(self.positions.next_states.shape[1])
        self.render_mode = render_mode
        self._at = NO_INDEX
        self._stream = np.uint64(0)
        self._episode = NO_INDEX

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode; `options={"table": name}` says on which table."""
        super().reset(seed=seed)
        if seed is not None or self._episode == NO_INDEX:
            self._stream = new_stream(self.np_random)
            self._episode = NO_INDEX
        self._episode += 1
        if options and "table" in options:
            table = self.positions.beginning(options["table"])
        else:
            table = int(drawn_table(self.sampling, self._stream, self._episode, len(self.positions.tables)))
        self._at = int(self.positions.first[table])
        return self.positions.observe(self._at), self._info()

    def step(self, action: np.int64 | int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Carry out a decision; raises `IllegalActionError`, and `ResetNeeded` where no episode is running."""
        if self._at == NO_INDEX or self.positions.over[self._at]:
            raise ResetNeeded("no episode is running: call reset() before the first step and after terminated")
        mask, number = self.positions.legal[self._at], integer(action)
        if number is None or not 0 <= number < len(mask) or not mask[number]:
            if self._raises or number is None:
                raise illegal_at(self.positions, self._at, action)
            number = len(mask) - 1
        reward = float(self.positions.rewards[self._at, number])
        self._at = int(self.positions.next_states[self._at, number])
        return self.positions.observe(self._at), reward, bool(self.positions.over[self._at]), False, self._info()

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "action_mask": self.positions.legal[self._at].copy(),
            "table": int(self.positions.table_of[self._at]),
        }
        if self.positions.over[self._at]:
            info["accuracy"] = float(self.positions.accuracies[self._at])
        return info


def playable(tables: Sequence[OutcomeTable] | None, reward: Reward | str, allocation: Allocation | None) -> Positions:
    """Return the positions of `tables`, the paper's six without any. Raises `TypeError` for what are no tables."""
    chosen = lamelas_tables() if tables is None else tables
    if not isinstance(chosen, Sequence) or not all(isinstance(table, OutcomeTable) for table in chosen):
        raise TypeError(
            f"tables is {tables!r}; "
            "give OutcomeTables, such as those of espalier_core.types.outcomes.read_tables(Path(...))"
        )
    return Positions.of(chosen, Reward(reward), allocation or Allocation())


def observation_space(positions: Positions) -> spaces.Space[dict[str, Array]]:
    """Return the space that holds every observation of these positions, and no dimension more than they need."""
    seen = positions.by_architecture
    layers, edges, points = seen["layers"], seen["edges"], seen["growth_points"]
    largest = float(np.ceil(np.abs(layers).max()))
    most = layers.shape[1]
    budget, left = (positions.by_position[name].max() for name in ("time_budget_s", "decisions_left"))
    groups: dict[str, spaces.Space[Any]] = {}
    if "carriers" in seen:
        groups["carriers"] = spaces.MultiBinary(list(seen["carriers"].shape[1:]))
        groups["channels"] = spaces.Box(0, LARGEST_COUNT, seen["channels"].shape[1:], np.int64)
    space = spaces.Dict(
        groups
        | {
            "layers": spaces.Box(-largest, largest, layers.shape[1:], np.float32),
            "layer_mask": spaces.MultiBinary(most),
            "edges": spaces.Box(NO_INDEX, most - 1, edges.shape[1:], np.int64),
            "growth_points": spaces.Box(NO_INDEX, most - 1, points.shape[1:], np.int64),
            "grown": spaces.Box(0, LARGEST_COUNT, points.shape[1:], np.int64),
            "time_left_share": spaces.Box(0, 1, (1,), np.float32),
            "time_budget_s": spaces.Box(0, float(budget), (1,), np.float32),
            "decisions_left": spaces.Box(0, int(left), (1,), np.int64),
            "allocation": spaces.Box(0, LARGEST_COUNT, (2,), np.int64),
        }
    )
    # Gymnasium types a Dict as a space of spaces, where it holds dictionaries of their elements.
    return cast("spaces.Space[dict[str, Array]]", space)


def illegal_at(positions: Positions, at: int, action: object, where: str = "") -> IllegalActionError:
    """Return the error for an action that is not legal at a position."""
    mask = positions.legal[at]
    return IllegalActionError(
        f"{where}action {action} is not legal on table {positions.tables[positions.table_of[at]]}; legal: "
        f"{', '.join(map(str, np.flatnonzero(mask)))} (action_mask {mask.tolist()}); "
        "choose among the actions whose info['action_mask'] is 1"
    )


def new_stream(generator: np.random.Generator) -> np.uint64:
    """Draw what fixes the tables of all episodes until the next seed."""
    return np.uint64(generator.integers(2**64, dtype=np.uint64))


def drawn_table(sampling: Sampling, stream: Any, episode: Any, tables: int) -> Any:
    """Return the table of an episode, or of many: arrays of streams and episode numbers, from 0, give an array.

    Uniform draws are splitmix64's (Steele, Lea and Flood 2014): a function of the episode's number, so that a
    thousand environments draw at once what each would draw alone.
    """
    if sampling is Sampling.IN_TURN:
        return np.asarray(episode) % tables
    with np.errstate(over="ignore"):  # 64-bit arithmetic wraps around here.
        mixed = np.asarray(stream, dtype=np.uint64) + np.asarray(episode + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(tables)).astype(np.int64)
