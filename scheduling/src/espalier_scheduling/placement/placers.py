"""Ways of placing: rules, and a model of the cluster's performance that is learnt while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from espalier_operator.simulation.rounds import answer
from espalier_scheduling.placement.beliefs import Belief
from espalier_scheduling.placement.candidates import Nodes, consolidate, emptiest, first_fit
from espalier_scheduling.placement.cluster import Cluster, ContendingJob, Pending
from espalier_scheduling.placement.costs import Gang
from espalier_scheduling.placement.joint import together
from espalier_scheduling.placement.occupancy import Occupancy, Placed
from espalier_scheduling.placement.performance import Performance, Truth, step_time


class Placer(Protocol):
    """Where jobs are placed, in one episode."""

    def choose(self, cluster: Cluster, pending: Pending) -> int:
        """Return the index of a candidate."""


class Expecting(Protocol):
    """What expects a performance of the cluster."""

    def performance(self, cluster: Cluster) -> Performance:
        """Return what is expected now."""


class Rule:
    """One of the usual rules."""

    def __init__(self, place: Callable[[Occupancy, int], Nodes]) -> None:
        """Place as `place` does."""
        self._place = place

    def choose(self, cluster: Cluster, pending: Pending) -> int:
        """Return the index of the rule's candidate."""
        return pending.candidates.index(self._place(cluster.occupancy, pending.job.requested))


class Random:
    """Any candidate, each as likely."""

    def __init__(self, seed: int) -> None:
        """Draw by this seed."""
        self._rng = np.random.default_rng(seed)

    def choose(self, cluster: Cluster, pending: Pending) -> int:
        """Return the index of a candidate."""
        return int(self._rng.integers(len(pending.candidates)))


class Oracle:
    """Knows the true performance; looks no further than the jobs that run."""

    def performance(self, cluster: Cluster) -> Performance:
        """Return the true one."""
        return Truth(cluster.episode.task_at(cluster.now))

    def choose(self, cluster: Cluster, pending: Pending) -> int:
        """Return the index of the candidate that costs the fewest seconds."""
        truth = self.performance(cluster)
        return int(np.argmin([cost(truth, cluster, pending, nodes) for nodes in pending.candidates]))


class Model:
    """The candidate that costs the fewest seconds by a belief, which what is measured updates."""

    def __init__(self, belief: Belief, *, optimism: float = 0.0, learns_until: float = np.inf) -> None:
        """Place by `belief`; `optimism` is in standard deviations of a job's own step, for the sake of learning.

        From `learns_until` on, seconds of the episode, nothing is learnt any more.
        """
        self.belief, self._optimism, self._until = belief, optimism, learns_until
        self._seen: dict[str, tuple[str, ...]] = {}

    def performance(self, cluster: Cluster) -> Performance:
        """Learn, and return the belief."""
        self._learn(cluster)
        return self.belief

    def choose(self, cluster: Cluster, pending: Pending) -> int:
        """Learn, and return the index of a candidate."""
        self._learn(cluster)
        return int(np.argmin([self._cost(cluster, pending, nodes) for nodes in pending.candidates]))

    def _learn(self, cluster: Cluster) -> None:
        if cluster.now >= self._until:
            return
        self.belief.pass_to(cluster.now)
        occupancy = cluster.occupancy
        for name, placed in cluster.running():
            job = cluster.jobs[name]
            if not job.workers:  # it was placed in this round, and nothing was measured yet
                continue
            beside = tuple(sorted({other for node, _ in placed.nodes for other in occupancy.on_node[node]}))
            if self._seen.get(name) != beside:  # what is measured again beside the same jobs says nothing new
                self._seen[name] = beside
                self.belief.learn(occupancy, name, placed, cluster.measured(name))

    def _cost(self, cluster: Cluster, pending: Pending, nodes: Nodes) -> float:
        seconds = cost(self.belief, cluster, pending, nodes)
        if not self._optimism:
            return seconds
        job, occupancy = pending.job, cluster.occupancy
        placed = Placed(job.kind, nodes)
        occupancy.add(job.name, placed)
        doubt = self.belief.doubt(occupancy, job.name, placed)
        occupancy.remove(job.name)
        return seconds - self._optimism * doubt * job.steps_left


def cost(performance: Performance, cluster: Cluster, pending: Pending, nodes: Nodes) -> float:
    """Return the seconds that a placement costs: those of the job, and those by which it delays others.

    As if nobody else came or ended meanwhile.
    """
    job, jobs = pending.job, cluster.jobs
    placed = Placed(job.kind, nodes)
    return seconds_added(performance, cluster.occupancy, job.name, placed, lambda name: jobs[name].steps_left)


def seconds_added(
    performance: Performance, occupancy: Occupancy, name: str, placed: Placed, steps_left: Callable[[str], float]
) -> float:
    """Return the seconds that a job takes if it is placed so, and those by which it delays others.

    `steps_left` says how many steps a job still takes, by its name.
    """
    others = occupancy.neighbours(placed)
    before = {other: step_time(performance, occupancy, other, theirs).total for other, theirs in others.items()}
    occupancy.add(name, placed)
    total = steps_left(name) * step_time(performance, occupancy, name, placed).total
    for other, theirs in others.items():
        after = step_time(performance, occupancy, other, theirs).total
        total += steps_left(other) * (after - before[other])
    occupancy.remove(name)
    return total


RULES: dict[str, Callable[[Occupancy, int], Nodes]] = {
    "consolidate": consolidate,
    "first-fit": first_fit,
    "emptiest": emptiest,
}


def run(cluster: Cluster, placer: Placer) -> float:
    """Run an episode; return the mean completion time of its jobs, seconds."""
    answer(cluster.decisions(), lambda pending: placer.choose(cluster, pending))
    return cluster.mean_seconds


def run_together(cluster: Cluster, model: Expecting) -> float:
    """Run an episode in which jobs that can start at the same time are placed together; return as `run`."""

    def places(jobs: Sequence[ContendingJob]) -> list[Nodes]:
        gangs = [Gang(job.name, job.kind, job.requested, job.steps_left) for job in jobs]
        left = {name: cluster.jobs[name].steps_left for name, _ in cluster.running()}
        found = together(model.performance(cluster), cluster.occupancy, left, gangs)
        return [nodes for nodes in found if nodes is not None]  # there is room for all

    answer(cluster.bursts(), places)
    return cluster.mean_seconds
