"""Placers: rules, and a model of the cluster's performance that is learnt while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from espalier_lab.scheduling.placement.beliefs import Belief
from espalier_lab.scheduling.placement.candidates import Nodes, consolidate, emptiest, first_fit
from espalier_lab.scheduling.placement.cluster import ContendingJob, PendingGang, PlacementCluster, Running
from espalier_lab.scheduling.placement.costs import Floats, Gang, PlacementCosts
from espalier_lab.scheduling.placement.joint import together
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Performance, Truth
from espalier_lab.simulator.rounds import answer


class Placer(Protocol):
    """Chooses placements of jobs in one episode."""

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Return the index of a candidate."""


class Expecting(Protocol):
    """An expectation of the cluster's performance."""

    def performance(self, cluster: Running) -> Performance:
        """Return the current expectation."""


class PlacementRule:
    """One of the usual rules."""

    def __init__(self, place: Callable[[Occupancy, int], Nodes]) -> None:
        """Place as `place` does."""
        self._place = place

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Return the index of the rule's candidate."""
        return pending.candidates.index(self._place(cluster.occupancy, pending.job.requested))


class Random:
    """Chooses any candidate with equal probability."""

    def __init__(self, seed: int) -> None:
        """Draw from this seed."""
        self._rng = np.random.default_rng(seed)

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Return the index of a candidate."""
        return int(self._rng.integers(len(pending.candidates)))


class Oracle:
    """Knows the true performance; considers only running jobs."""

    def __init__(self, opening: float = 0.0) -> None:
        """Place with this cost of opening nodes (see `PlacementCosts`)."""
        self._opening = opening

    def performance(self, cluster: Running) -> Performance:
        """Return the true performance."""
        return Truth(cluster.episode.task_at(cluster.now))

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Return the index of the candidate that costs the fewest seconds."""
        return int(seconds_added(self.performance(cluster), cluster, pending, self._opening).argmin())


class Model:
    """Chooses the candidate that costs the fewest seconds by a belief, which measurements update."""

    def __init__(
        self, belief: Belief, *, optimism: float = 0.0, opening: float = 0.0, learns_until: float = np.inf
    ) -> None:
        """Place by `belief`; `optimism`, which promotes learning, is in standard deviations of a job's own step.

        `opening` is the cost of opening nodes (see `PlacementCosts`). Learning stops at `learns_until`, in seconds of
        the episode.
        """
        self.belief, self._optimism, self._opening, self._until = belief, optimism, opening, learns_until
        self._seen: dict[str, tuple[str, ...]] = {}

    def performance(self, cluster: Running) -> Performance:
        """Learn, and return the belief."""
        self._learn(cluster)
        return self.belief

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Learn, and return the index of a candidate."""
        self._learn(cluster)
        seconds = seconds_added(self.belief, cluster, pending, self._opening)
        if self._optimism:
            doubts = np.array([self._doubt(cluster, pending, nodes) for nodes in pending.candidates])
            seconds = seconds - self._optimism * doubts * pending.job.steps_left
        return int(seconds.argmin())

    def _learn(self, cluster: Running) -> None:
        if cluster.now >= self._until:
            return
        self.belief.pass_to(cluster.now)
        occupancy = cluster.measured_in
        for name, placed in occupancy.jobs.items():
            beside = tuple(sorted({other for node, _ in placed.nodes for other in occupancy.on_node[node]}))
            if self._seen.get(name) != beside:  # repeated measurements beside the same jobs say nothing new
                self._seen[name] = beside
                self.belief.learn(occupancy, name, placed, cluster.measured(name))

    def _doubt(self, cluster: PlacementCluster, pending: PendingGang, nodes: Nodes) -> float:
        """Return the standard deviation of a step of the job at this placement."""
        job, occupancy = pending.job, cluster.occupancy
        placed = PlacedJob(job.kind, nodes)
        occupancy.add(job.name, placed)
        doubt = self.belief.doubt(occupancy, job.name, placed)
        occupancy.remove(job.name)
        return doubt


def seconds_added(
    performance: Performance, cluster: PlacementCluster, pending: PendingGang, opening: float = 0.0
) -> Floats:
    """Return (candidates), the cost of each in seconds: of the job, and of its delays of others.

    It assumes that no other job arrives or ends meanwhile, plus `opening` times the cost to later ones
    (`PlacementCosts`).
    """
    job = pending.job
    left = {name: cluster.jobs[name].steps_left for name, _ in cluster.running()}
    gang = Gang(job.name, job.kind, job.requested, job.steps_left)
    return PlacementCosts(performance, cluster.occupancy, left, opening).added(gang, pending.candidates)


RULES: dict[str, Callable[[Occupancy, int], Nodes]] = {
    "consolidate": consolidate,
    "first-fit": first_fit,
    "emptiest": emptiest,
}


def run(cluster: PlacementCluster, placer: Placer) -> float:
    """Run an episode; return the mean completion time of its jobs, seconds."""
    answer(cluster.decisions(), lambda pending: placer.choose(cluster, pending))
    return cluster.mean_seconds


def run_together(cluster: PlacementCluster, model: Expecting) -> float:
    """Run an episode in which jobs that can start at the same time are placed jointly; return as `run`."""

    def places(jobs: Sequence[ContendingJob]) -> list[Nodes]:
        gangs = [Gang(job.name, job.kind, job.requested, job.steps_left) for job in jobs]
        left = {name: cluster.jobs[name].steps_left for name, _ in cluster.running()}
        found = together(model.performance(cluster), cluster.occupancy, left, gangs)
        return [nodes for nodes in found if nodes is not None]  # there is room for all

    answer(cluster.bursts(), places)
    return cluster.mean_seconds
