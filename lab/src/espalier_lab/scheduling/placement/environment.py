"""Worker placement as a Gymnasium environment, for anyone's learner."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from espalier_lab.illegal_actions import RAISE, checked, chosen
from espalier_lab.scheduling.placement.candidates import MOST
from espalier_lab.scheduling.placement.cluster import PendingGang, PlacementCluster
from espalier_lab.scheduling.placement.tasks import KINDS, Family, PlacementEpisode, episode, kinds
from espalier_lab.scheduling.seed_split import SeedSplit

ENVIRONMENT_ID: Final = "espalier/Placement-v0"
_MOST_EPISODES: Final = 2**31 - 1
_HOUR: Final = 3600.0
_MOST: Final = 1000.0
"""Bound on observed values."""

Observation = dict[str, NDArray[np.float32]]


class PlacementEnvironment(gymnasium.Env[Observation, np.int64]):
    """Choice of nodes for a job's workers, with hidden speeds of nodes: an episode is a cluster and its jobs.

    **Actions.** Action i runs the job at the head of the queue on candidate i: `info["action_mask"]` is 1 where there
    is one, and `info["candidates"]` has the nodes of each. The first ones come from the usual rules (consolidate, first
    fit, emptiest). Actions beyond them are illegal and raise `IllegalActionError`; with `illegal="wrap"` they wrap
    around to the first candidate, for learners without masks. Anything but an action still raises it.

    **Observations.** `job`: its kind (one of `KINDS`, one-hot), its GPUs over those of a node, and its hours alone.
    `nodes`, for each node: the share of its GPUs that is free, and the share of each kind of jobs; then its trainers'
    measurements, without noise, weighted by their share: the relative slowdown of a step without the exchange of
    gradients, and the seconds of the exchange. `candidates`: the share of each node's GPUs that each takes.

    **Rewards** are minus the hours that all jobs together waited or ran since the last decision: the return is minus
    the mean completion time, in hours, times the number of jobs.

    **End.** When all jobs are complete the episode is `terminated`, never `truncated`.

    **Randomness.** `reset(seed=...)` fixes all episodes to come. `reset(options={"episode": i})` plays one of them.
    Episodes of the purposes `train`, `choose` and `judge` are disjoint.

    **Figures.** `info["mean_seconds"]`, mean of episodes 0 to 39 of the purpose `judge`: 1,667 s by the best rule
    (`emptiest`), 1,639 by PPO, 1,402 by a model that learns online, 1,329 by one with full knowledge.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        family: Family | None = None,
        purpose: SeedSplit | str = SeedSplit.TRAIN,
        shift: bool = False,
        render_mode: None = None,
        illegal: str = RAISE,
    ) -> None:
        """Draw episodes from `family`; with `shift`, cluster and workload change in the middle of each."""
        self._wraps = checked(illegal, "wrap") != RAISE
        self.family = family or Family()
        self.purpose = SeedSplit.of(purpose)
        self.shift, self.render_mode = shift, render_mode
        nodes = self.family.nodes
        space = spaces.Dict(
            {
                "job": spaces.Box(0, _MOST, (KINDS + 2,), np.float32),
                "nodes": spaces.Box(0, _MOST, (nodes, 1 + KINDS + 2), np.float32),
                "candidates": spaces.Box(0, 1, (MOST, nodes), np.float32),
            }
        )
        # Gymnasium types a Dict as a space of spaces, although it holds dictionaries of their elements.
        self.observation_space = cast("spaces.Space[Observation]", space)
        self.action_space = spaces.Discrete(MOST)
        self._run: Generator[PendingGang, int, None] | None = None
        self.pending: PendingGang | None = None
        """The job that must be placed now."""
        self._counted = 0.0
        self.cluster: PlacementCluster | None = None
        """The run of the current episode."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `options={"episode": i}` selects it."""
        super().reset(seed=seed)
        chosen = (options or {}).get("episode")
        index = int(self.np_random.integers(_MOST_EPISODES)) if chosen is None else int(chosen)
        drawn: PlacementEpisode = episode(self.family, self.purpose, index, shift=self.shift)
        self.cluster = PlacementCluster(drawn)
        self._run, self._counted = self.cluster.decisions(), 0.0
        self.pending = next(self._run)
        return self._observe(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place a job; raise `IllegalActionError`, or `ResetNeeded` if no episode is running."""
        if self._run is None or self.pending is None or self.cluster is None:
            raise ResetNeeded("no episode is running: call reset() before the first step and after terminated")
        candidates = len(self.pending.candidates)
        wrapped = int(action) % candidates if self._wraps and self.action_space.contains(action) else None
        number = chosen(action, [1] * candidates, wrapped)
        try:
            self.pending = self._run.send(number)
        except StopIteration:
            self.pending = None
        passed = self.cluster.job_seconds - self._counted
        self._counted = self.cluster.job_seconds
        return self._observe(), -passed / _HOUR, self.pending is None, False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return `info["action_mask"]` as booleans, for learners of sb3-contrib; all false before `reset`."""
        return np.arange(MOST) < (0 if self.pending is None else len(self.pending.candidates))

    def _observe(self) -> Observation:
        cluster, family = self.cluster, self.family
        assert cluster is not None  # noqa: S101  (set by reset)
        size = family.node_gpus
        nodes = np.zeros((family.nodes, 1 + KINDS + 2), np.float32)
        nodes[:, 0] = np.asarray(cluster.occupancy.free, np.float32) / size
        for name, placed in cluster.running():
            # A job placed in this round has no measurement yet: it still has the time of a job alone.
            measured = cluster.jobs[name].step_time
            slower = measured.compute / kinds()[placed.kind].compute_seconds - 1
            for node, count in placed.nodes:
                nodes[node, 1 + placed.kind] += count / size
                nodes[node, -2] += slower * count / size
                nodes[node, -1] += measured.exchange * count / size
        seen = {
            "job": np.zeros(KINDS + 2, np.float32),
            "nodes": np.minimum(nodes, _MOST),
            "candidates": np.zeros((MOST, family.nodes), np.float32),
        }
        if self.pending is not None:
            pending = self.pending.job
            seen["job"][pending.kind] = 1
            seen["job"][-2:] = pending.requested / size, pending.seconds_alone() / _HOUR
            for index, candidate in enumerate(self.pending.candidates):
                for node, count in candidate:
                    seen["candidates"][index, node] = count / size
        return seen

    def _info(self) -> dict[str, Any]:
        mask = np.zeros(MOST, np.int8)
        if self.pending is None:
            assert self.cluster is not None  # noqa: S101  (set by reset)
            return {"action_mask": mask, "candidates": (), "mean_seconds": self.cluster.mean_seconds}
        mask[: len(self.pending.candidates)] = 1
        return {"action_mask": mask, "candidates": self.pending.candidates}
