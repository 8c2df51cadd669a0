"""`espalier/Placement-v0` as parallel episodes for learning: `learners.rollout.ParallelEpisodes`.

Decisions are about one job, at the head of the queue, whose options are the candidates; "stop" is never allowed. A loss
is the time for which jobs were present, minus their work in seconds alone on ideal nodes. A slot has 900 s, the minimum
duration of half of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import NetworkInputs
from espalier_lab.scheduling.learners.passed import Chosen, Floats, Passed
from espalier_lab.scheduling.placement.candidates import MOST
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.environment import Observation, PlacementEnvironment
from espalier_lab.scheduling.placement.placers import RULES
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

SLOT_SECONDS: Final = 900.0


class PlacementEpisodes:
    """Episodes with these numbers, one after the other on each cluster, with this number of clusters at a time."""

    options = MOST

    def __init__(
        self,
        numbers: Iterator[int],
        count: int,
        purpose: SeedSplit,
        *,
        shift: bool = False,
        family: Family | None = None,
    ) -> None:
        """Begin."""
        self._numbers = numbers
        self._environments = [PlacementEnvironment(family, purpose, shift) for _ in range(count)]
        self.window = np.zeros((count, 1), np.int64)
        self.present = np.ones((count, 1), bool)
        self.opened: Floats = np.zeros((count, 1))
        self.ended: list[list[float]] = []
        """Completion times in seconds of the jobs of each finished episode, in order of arrival."""
        self._observed: list[Observation] = []
        self._mask = np.zeros((count, MOST + 1), bool)
        self._told = np.zeros((count, 3))
        """For each episode: the time, the seconds of jobs' presence, and the seconds of their work, so far."""
        for row in range(count):
            self._observed.append(self._begin(row))

    def _begin(self, row: int) -> Observation:
        observation, info = self._environments[row].reset(options={"episode": next(self._numbers)})
        self._mask[row, :-1] = info["action_mask"] > 0
        self._told[row] = self._so_far(row)
        return observation

    def _cluster(self, row: int) -> PlacementCluster:
        cluster = self._environments[row].cluster
        assert cluster is not None  # noqa: S101  (set by reset)
        return cluster

    def _so_far(self, row: int) -> tuple[float, float, float]:
        cluster = self._cluster(row)
        return cluster.now, cluster.job_seconds, _done(cluster)

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the job as a row of jobs, candidates as its options, and nodes as the cluster."""
        columns = {name: np.stack([each[name] for each in self._observed]) for name in self._observed[0]}
        seen = NetworkInputs(
            jobs=columns["job"][:, None],
            options=columns["candidates"][:, None],
            cluster=columns["nodes"],
            present=np.ones((len(self._observed), 1), np.float32),
        )
        return seen, self._mask.copy()

    def speed_parts(self) -> Floats:
        """Return zeros: only the passing time has a cost."""
        return np.zeros((len(self._observed), 1))

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Place the jobs, and begin new episodes where one is over."""
        count = len(self._environments)
        differences, ended = np.zeros((count, 3)), np.zeros((count, 1), bool)
        for row, (environment, action) in enumerate(zip(self._environments, chosen, strict=True)):
            observation, _, over, _, info = environment.step(int(action))
            found = np.array(self._so_far(row))
            differences[row], self._told[row] = found - self._told[row], found
            self._mask[row, :-1] = info["action_mask"] > 0
            if over:
                ended[row] = True
                self.ended.append(self._cluster(row).completion_seconds)
                observation = self._begin(row)
            self._observed[row] = observation
        passed, spent, done = (differences / SLOT_SECONDS).T
        return np.arange(count), Passed(spent[:, None], (spent - done)[:, None], ended, passed)

    def taught(self, teacher: str) -> Chosen:
        """Return the candidate chosen by a rule."""
        return np.array([_by_rule(environment, teacher) for environment in self._environments])


def _by_rule(environment: PlacementEnvironment, teacher: str) -> int:
    pending, cluster = environment.pending, environment.cluster
    assert pending is not None and cluster is not None  # noqa: S101, PT018  (an episode is running)
    return pending.candidates.index(RULES[teacher](cluster.occupancy, pending.job.requested))


def _done(cluster: PlacementCluster) -> float:
    """Return the seconds of work done by jobs, in seconds alone, up to a constant."""
    return -sum(job.seconds_alone() for job in cluster.jobs.values())
