"""Placement of jobs with a free number of workers: rules, and a model that may also change the number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from espalier_lab.scheduling.placement.candidates import Nodes, candidates
from espalier_lab.scheduling.placement.configurations import Configurations, Counts, Weighed, counts, nodes_of
from espalier_lab.scheduling.placement.elastic import MOST_WORKERS, ElasticCluster, ElasticJob, WantedWorkers
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.placers import Expecting
from espalier_lab.simulator.rounds import answer

MOST_SWEEPS: Final = 20
"""Maximum number of sweeps of a decision: each considers all changes, and changes a job at most once."""
_WORTH: Final = 1e-6
"""Minimum reduction of the loss by a change; less is rounding."""


class Sharing(Protocol):
    """Chooses the nodes of jobs in one episode."""

    def places(self, cluster: ElasticCluster, wanted: WantedWorkers) -> Mapping[str, Nodes]:
        """Return the nodes of each job that gets workers."""


class ByRule:
    """Keeps the rule's numbers, placed by a rule; jobs with an unchanged number stay."""

    def __init__(self, place: Callable[[Occupancy, int], Nodes]) -> None:
        """Place as `place` does."""
        self._place = place

    def places(self, cluster: ElasticCluster, wanted: WantedWorkers) -> Mapping[str, Nodes]:
        """Return the nodes of each job."""
        taken = kept(cluster, wanted)
        for name, workers in wanted.workers.items():
            if name not in taken.jobs:
                taken.add(name, PlacedJob(cluster.jobs[name].kind, self._place(taken, workers)))
        return {name: placed.nodes for name, placed in taken.jobs.items()}


class ByModel:
    """Places the rule's numbers, which the model may change if `together`, on the nodes that it expects to be best."""

    def __init__(self, model: Expecting, *, together: bool) -> None:
        """Decide by the expectation of `model`."""
        self._model, self._together = model, together

    def places(self, cluster: ElasticCluster, wanted: WantedWorkers) -> Mapping[str, Nodes]:
        """Return the nodes of each job."""
        performance, occupancy = self._model.performance(cluster), cluster.occupancy
        names, jobs = list(wanted.workers), list[Weighed]()
        for name in names:
            job, now = cluster.jobs[name], occupancy.jobs.get(name)
            assert isinstance(job, ElasticJob)  # noqa: S101  (the run has no others)
            jobs.append(Weighed(job, wanted.weights[name], () if now is None else now.nodes))
        search = _SharingSearch(Configurations(performance, occupancy, jobs), occupancy)
        search.begin(kept(cluster, wanted), names, jobs, list(wanted.workers.values()))
        search.improve(together=self._together)
        return {name: nodes_of(row) for name, row in zip(names, search.now, strict=True)}


def kept(cluster: ElasticCluster, wanted: WantedWorkers) -> Occupancy:
    """Return the cluster with only the jobs whose number of workers stays."""
    now = cluster.occupancy
    stay = ((name, placed) for name, placed in now.jobs.items() if wanted.workers.get(name) == placed.gpus)
    return Occupancy(len(now.free), now.node_gpus, now.rack_nodes, stay)


class _SharingSearch:
    """Changes a configuration as long as its loss falls."""

    def __init__(self, configurations: Configurations, cluster: Occupancy) -> None:
        self._values, self._cluster = configurations, cluster
        self._size = cluster.node_gpus
        self.now = np.zeros(configurations.shape, np.int64)

    def begin(self, stay: Occupancy, names: Sequence[str], jobs: Sequence[Weighed], workers: Sequence[int]) -> None:
        """Place each job that does not stay where the loss is smallest beside those before it."""
        for row, name in enumerate(names):
            if name in stay.jobs:
                self.now[row] = counts(stay.jobs[name].nodes, self._values.shape[1])
        for row, name in enumerate(names):
            if name not in stay.jobs:
                choices = list(self._moved(row, candidates(stay, workers[row])))
                self.now = choices[int(self._values.losses(np.array(choices)).argmin())]
                stay.add(name, PlacedJob(jobs[row].job.kind, nodes_of(self.now[row])))

    def improve(self, *, together: bool) -> None:
        """Make changes, the best ones first, until none helps."""
        for _ in range(MOST_SWEEPS):
            choices = [*self._placed_again(), *self._exchanged(), *(self._resized() if together else ())]
            if not self._changed(np.array(choices)):
                return

    def _changed(self, choices: Counts) -> bool:
        """Make the changes that lower the loss, at most one per job; return whether there are some."""
        before, touched = self.now, np.zeros(len(self.now), bool)
        losses, loss = self._values.losses(choices), float(self._values.losses(before[None])[0])
        better = np.flatnonzero(losses < loss - _WORTH)
        for place in better[np.argsort(losses[better])]:
            change = choices[place] - before
            rows, after = change.any(1), self.now + change
            if (touched & rows).any() or (after.sum(0) > self._size).any():
                continue
            then = float(self._values.losses(after[None])[0])
            if then < loss - _WORTH:  # it may help alone, but not beside earlier changes
                self.now, loss = after, then
                touched |= rows
        return bool(touched.any())

    def _moved(self, row: int, places: Sequence[Nodes]) -> Iterator[Counts]:
        for nodes in places:
            found = self.now.copy()
            found[row] = counts(nodes, found.shape[1])
            yield found

    def _placed_again(self) -> Iterator[Counts]:
        """Yield each job on each candidate."""
        now, cluster = self.now, self._cluster
        empty = Occupancy(now.shape[1], cluster.node_gpus, cluster.rack_nodes)
        free = self._size - now.sum(0)
        for row in range(len(now)):
            empty.free = [int(gpus) for gpus in free + now[row]]
            yield from self._moved(row, candidates(empty, int(now[row].sum())))

    def _exchanged(self) -> Iterator[Counts]:
        """Yield each pair of jobs with the same number of workers on each other's nodes."""
        workers = self.now.sum(1)
        for one in range(len(workers)):
            for two in range(one + 1, len(workers)):
                if workers[one] == workers[two]:
                    found = self.now.copy()
                    found[[one, two]] = found[[two, one]]
                    yield found

    def _resized(self) -> Iterator[Counts]:
        """Yield each job with one more or one fewer worker, and each pair in which one gives the other a GPU."""
        now, workers, free = self.now, self.now.sum(1), self._size - self.now.sum(0)
        growing = np.flatnonzero(workers < MOST_WORKERS)
        shrinking = [(row, node) for row in np.flatnonzero(workers > 1) for node in np.flatnonzero(now[row])]
        for row in growing:
            for node in np.flatnonzero(free):
                yield _changed(now, (row, node, 1))
        for one, node in shrinking:
            yield _changed(now, (one, node, -1))
            for row in growing:
                if row != one:
                    yield _changed(now, (one, node, -1), (row, node, 1))


def _changed(now: Counts, *changes: tuple[np.intp, np.intp, int]) -> Counts:
    found = now.copy()
    for row, node, gpus in changes:
        found[row, node] += gpus
    return found


def run_elastic(cluster: ElasticCluster, sharing: Sharing) -> float:
    """Run an episode; return the mean completion time of its jobs, seconds."""
    answer(cluster.allocations(), lambda wanted: sharing.places(cluster, wanted))
    return cluster.mean_seconds
