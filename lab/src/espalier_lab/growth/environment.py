"""Outcome tables as a Gymnasium environment: Lamelas's simulated environment (6.4) for anyone's learner.

Importing this module registers it:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.growth.environment:espalier/Outcomes-v0", reward="over-nothing")
    >>> observation, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(mask=info["action_mask"])
    >>> observation, reward, terminated, truncated, info = environment.step(action)

The version in the name rises with every change that affects learning here.
`gymnasium.make_vec` makes many at once as arrays: 1024 of them step 150 times as fast as one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from espalier_agent.data import lamelas_tables
from espalier_agent.tables.tree import Reward
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab import environments as environments
from espalier_lab.growth.positions import NO_INDEX, Array, Positions
from espalier_lab.illegal_actions import RAISE, checked, integer
from espalier_lab.illegal_actions import IllegalActionError as IllegalActionError

ENVIRONMENT_ID: Final = "espalier/Outcomes-v0"
NOTHING: Final = "nothing"
LARGEST_COUNT: Final = 2**31 - 1
"""Limit on observed replicas and GPUs."""


class Sampling(StrEnum):
    """The choice of the table that an episode is played on."""

    UNIFORM = "uniform"
    """Drawn for each episode, with equal probability."""
    IN_TURN = "in-turn"
    """Each in turn, beginning with the first; a reset with a seed starts again."""

    @classmethod
    def _missing_(cls, value: object) -> Sampling:
        raise ValueError(f"sampling is {value!r}; choose one of {', '.join(cls)}")


class OutcomeEnvironment(gymnasium.Env[dict[str, Array], np.int64]):
    """Decisions on growing a network: one episode is one sequence of decisions of an outcome table.

    **Actions.** i deepens growth point i; those after the points each double a group of channels, where tables have
    widenings; the last one does nothing. Actions without a point or group in the model are masked:
    `info["action_mask"]` is 1 where an action is legal and all 0 when the episode is over. An illegal action raises
    `IllegalActionError`; with `illegal="nothing"`, an integer that is not a legal action does nothing. (`check_env` and
    a plain `action_space.sample()` know no mask: use them with that, or with tables of one number of actions.)

    **Observations.** The architecture: features, mask, edges (from, to) of its layers, in execution order; the layer
    after which each growth point would insert, and how often it has grown; where tables have widenings, the layers that
    carry each group's channels, and their number; then share of time left, time budget, allocation (replicas, GPUs) and
    decisions left. Arrays are padded to the largest that the tables can reach: layers with 0, indices with -1.

    **End.** After the last decision the episode is `terminated`, never `truncated`. The budget is part of the task and
    its rest is observed: nothing can be earned after it, so a value beyond it is 0 and must not be bootstrapped, which
    `truncated` would ask of learners. The last observation shows the model as it trained to the budget's end, with no
    time and no decision left, and `info["accuracy"]` its accuracy.

    **Rewards** are named in `espalier_agent.tables.tree`.

    **Randomness** is in the choice of the table alone, which `reset(seed=...)` fixes for all episodes to come, or
    `reset(options={"table": name})` for one. `info["table"]` is the index of the table in `positions.tables`.

    **Figures.** `info["accuracy"]`, mean over the paper's six tables: 0.500 for all sequences, 0.540 for the sequence
    that is best on average, 0.559 for the best of each table.
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
        """Play on `tables`; by default the paper's six.

        Tables do not record the `allocation` under which they were collected; the given one is observed throughout.
        Raise `TableError` for a table that cannot be played and `NoTableError` if there is none.
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
        """Begin an episode; `options={"table": name}` selects its table."""
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
        """Carry out a decision; raise `IllegalActionError`, or `ResetNeeded` if no episode is running."""
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

    def action_masks(self) -> Array:
        """Return `info["action_mask"]` as booleans, for learners of sb3-contrib; all false before `reset`."""
        mask: Array = (self.positions.legal[self._at] > 0) & (self._at != NO_INDEX)
        return mask

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "action_mask": self.positions.legal[self._at].copy(),
            "table": int(self.positions.table_of[self._at]),
        }
        if self.positions.over[self._at]:
            info["accuracy"] = float(self.positions.accuracies[self._at])
        return info


def playable(tables: Sequence[OutcomeTable] | None, reward: Reward | str, allocation: Allocation | None) -> Positions:
    """Return the positions of `tables`, by default the paper's six. Raise `TypeError` for anything but tables."""
    chosen = lamelas_tables() if tables is None else tables
    if not isinstance(chosen, Sequence) or not all(isinstance(table, OutcomeTable) for table in chosen):
        raise TypeError(
            f"tables is {tables!r}; "
            "give OutcomeTables, such as those of espalier_core.types.outcomes.read_tables(Path(...))"
        )
    return Positions.of(chosen, Reward(reward), allocation or Allocation())


def observation_space(positions: Positions) -> spaces.Space[dict[str, Array]]:
    """Return the smallest space that holds every observation of these positions."""
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
    # Gymnasium types a Dict as a space of spaces, although it holds dictionaries of their elements.
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
    """Draw the number that fixes the tables of all episodes until the next seed."""
    return np.uint64(generator.integers(2**64, dtype=np.uint64))


def drawn_table(sampling: Sampling, stream: Any, episode: Any, tables: int) -> Any:
    """Return the table of an episode, or of many: arrays of streams and episode numbers, from 0, give an array.

    Uniform draws are splitmix64's (Steele, Lea and Flood 2014): a function of the episode's number, so that a thousand
    environments draw at once the same tables as each alone.
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


class OutcomeVectorEnvironment(VectorEnv[dict[str, Array], Array, Array]):
    """`num_envs` times `OutcomeEnvironment`, with the same actions, observations, end and rewards.

    Equal step by step to Gymnasium's `SyncVectorEnv` of as many of them with the same seeds: `reset(seed=s)` gives
    environment i the seed s + i, and a sequence of seeds one to each.

    **Autoreset** is `NEXT_STEP`, Gymnasium's own: the step that ends an episode returns its last observation; the next
    step ignores that environment's action, begins a new episode and is worth 0. Exclude that step from learning: its
    mask, from the step before, is all 0.
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
        """Take the number of environments, and the arguments of `OutcomeEnvironment` for all of them."""
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
        """Begin an episode in each environment; `options={"table": name}` selects the table of all of them."""
        if seed is not None or self._episodes[0] == NO_INDEX:
            self._streams = self._seeded(seed)
            self._episodes[:] = NO_INDEX
        self._begin(np.arange(self.num_envs), None if not options else options.get("table"))
        return self.positions.observe(self._at), self._infos(np.zeros(self.num_envs, dtype=np.bool_))

    def step(self, actions: Array) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """Carry out one decision in each environment; where the last step ended an episode, begin the next one.

        Raise `IllegalActionError`, naming the environment, and leave all of them unchanged.
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
        # Rewards are 0 in episodes that are over already.
        rewards = self.positions.rewards[self._at, played]
        self._at = np.where(ended, NO_INDEX, self.positions.next_states[self._at, played])
        if ended.any():
            self._begin(np.flatnonzero(ended), None)
        over = self.positions.over[self._at]
        return self.positions.observe(self._at), rewards, over, np.zeros_like(over), self._infos(over)

    def action_masks(self) -> Array:
        """Return the masks of all environments, as `OutcomeEnvironment.action_masks` does."""
        masks: Array = (self.positions.legal[self._at] > 0) & (self._at != NO_INDEX)[:, None]
        return masks

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
            # It is 0 unless an episode has just ended.
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
