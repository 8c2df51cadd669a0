"""Allocation as a Gymnasium environment, for anyone's learner."""

from __future__ import annotations

from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from espalier_lab.illegal_actions import RAISE, checked, chosen
from espalier_lab.scheduling.allocation.forms import AllocationEpisode, Form, Mask, SlotForm
from espalier_lab.scheduling.learned.description import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MOST,
    OPTION_FEATURES,
    NetworkInputs,
)
from espalier_lab.scheduling.seed_split import SeedSplit

ENVIRONMENT_ID: Final = "espalier/Allocation-v0"
STOP: Final = "stop"
MOST_EPISODES: Final = 2**31 - 1
HOUR: Final = 3600.0

Observation = dict[str, NDArray[np.float32]]


def observation_space(jobs: int, options: int) -> spaces.Dict:
    """Return the space of observations of `jobs` jobs."""
    return spaces.Dict(
        {
            "jobs": spaces.Box(-MOST, MOST, (jobs, len(JOB_FEATURES)), np.float32),
            "options": spaces.Box(-MOST, MOST, (jobs, options, len(OPTION_FEATURES)), np.float32),
            "cluster": spaces.Box(-MOST, MOST, (len(CLUSTER_FEATURES),), np.float32),
            "present": spaces.Box(0, 1, (jobs,), np.float32),
        }
    )


def observed(seen: NetworkInputs, jobs: int) -> Observation:
    """Return the observation, padded with zeros for absent jobs; leading dimensions stay."""
    return {
        "jobs": _padded(seen.jobs, jobs, seen.present.ndim - 1),
        "options": _padded(seen.options, jobs, seen.present.ndim - 1),
        "cluster": seen.cluster,
        "present": _padded(seen.present, jobs, seen.present.ndim - 1),
    }


def _padded(values: NDArray[np.float32], size: int, axis: int) -> NDArray[np.float32]:
    """Return values padded with zeros along an axis."""
    found = np.zeros((*values.shape[:axis], size, *values.shape[axis + 1 :]), np.float32)
    found[(*[slice(None)] * axis, slice(values.shape[axis]))] = values
    return found


def widened(mask: Mask, actions: int) -> NDArray[np.int8]:
    """Return a mask for this number of actions, of which "stop" is the last."""
    wide = np.zeros((*mask.shape[:-1], actions), np.int8)
    wide[..., : mask.shape[-1] - 1] = mask[..., :-1]
    wide[..., -1] = mask[..., -1]
    return wide


def episode_index(options: dict[str, Any] | None, drawing: np.random.Generator) -> int:
    """Return the number of the episode to begin: from the options of `reset`, else a drawn one."""
    chosen = (options or {}).get("episode")
    return int(drawing.integers(MOST_EPISODES)) if chosen is None else int(chosen)


class AllocationEnvironment(gymnasium.Env[Observation, np.int64]):
    """Allocation of workers to jobs: they are given one at a time, then time passes. An episode is a trace of jobs.

    **Forms.** DL2's cluster (`SlotForm`, the default): slots of 20 minutes, workers and parameter servers. Or jobs of
    the simulator with all-reduce (`WorkerForm`), where a decision is due when a job comes or ends, and every ten
    minutes.

    **Actions.** Action `job × options + option` gives the job of this row more of the option, as named in
    `form.options`; the last action is "stop": time passes until the next decision. `info["action_mask"]` is 1 for legal
    actions. Another action raises `IllegalActionError`; with `illegal="stop"`, another integer counts as "stop", or as
    the first legal action if "stop" is illegal.

    **Observations** are the inputs of learned policies: `espalier_lab.scheduling.learned.description` has the features
    of `jobs`, `options` and `cluster`; `present` is 1 for rows that hold a job.

    **Rewards** are minus the hours that all jobs together waited or ran: the return is minus the mean completion time,
    in hours, times the number of jobs.

    **End.** When all jobs are complete the episode is `terminated`, never `truncated`; `info["mean_seconds"]` is then
    the mean completion time.

    **Randomness.** `reset(seed=...)` fixes all episodes to come. `reset(options={"episode": i})` plays one of them.
    Episodes of the purposes `train`, `choose` and `judge` are disjoint.

    **Figures.** `info["mean_seconds"]` in slots of 20 minutes, mean of episodes 0 to 9 of the purpose `judge`, 96
    nodes: 38.4 by equal dominant shares, 27.2 by Optimus, 21.2 by a rule that looks ahead, 21.8 by masked PPO.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        form: Form | None = None,
        purpose: SeedSplit | str = SeedSplit.TRAIN,
        render_mode: None = None,
        illegal: str = RAISE,
    ) -> None:
        """Play episodes of this form."""
        self._stops = checked(illegal, STOP) != RAISE
        self.form, self.purpose, self.render_mode = form or SlotForm(), SeedSplit.of(purpose), render_mode
        jobs, options = self.form.jobs, len(self.form.options)
        # Gymnasium types a Dict as a space of spaces, although it holds dictionaries of their elements.
        self.observation_space = cast("spaces.Space[Observation]", observation_space(jobs, options))
        self.action_space = spaces.Discrete(jobs * options + 1)
        self._actions = jobs * options + 1
        self._run: AllocationEpisode | None = None
        self._mask: Mask = np.zeros(self._actions, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `options={"episode": i}` selects it."""
        super().reset(seed=seed)
        self._run = self.form.begin(self.purpose, episode_index(options, self.np_random))
        return self._look(self._run)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give something, or let time pass; raise `IllegalActionError`, or `ResetNeeded` if no episode is running."""
        run = self._run
        if run is None or run.over:
            raise ResetNeeded("no episode is running: call reset() before the first step and after terminated")
        mask, stop = widened(self._mask, self._actions), self._actions - 1
        instead = (stop if mask[stop] else int(mask.argmax())) if self._stops else None
        number = chosen(action, mask, instead)
        spent = run.take(number if number < stop else self._mask.shape[0] - 1)
        if run.over:
            nothing = {name: np.zeros(space.shape, np.float32) for name, space in self._spaces().items()}
            info = {"action_mask": np.zeros(self._actions, np.int8), "mean_seconds": run.mean_seconds}
            return nothing, -spent / HOUR, True, False, info
        observation, info = self._look(run)
        return observation, -spent / HOUR, False, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return `info["action_mask"]` as booleans, for learners of sb3-contrib; all false before `reset`."""
        running = self._run is not None and not self._run.over
        return widened(self._mask, self._actions).astype(np.bool_) if running else np.zeros(self._actions, np.bool_)

    def _look(self, run: AllocationEpisode) -> tuple[Observation, dict[str, Any]]:
        seen, self._mask = run.seen()
        return observed(seen, self.form.jobs), {"action_mask": widened(self._mask, self._actions)}

    def _spaces(self) -> dict[str, spaces.Box]:
        return cast("dict[str, spaces.Box]", cast("spaces.Dict", self.observation_space).spaces)
