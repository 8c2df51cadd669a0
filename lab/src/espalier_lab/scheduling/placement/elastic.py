"""A run of an episode with a free number of workers: each job can have 1 to 8, and they can be moved.

A worker keeps its batch, so `performance` has the formula of a step. The value of a step follows AdaScale (Johnson et
al., ICML 2020): its gain, with the noise scale of gradients in multiples of a worker's batch.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from espalier_core.estimates.goodput import adascale_gain
from espalier_lab.scheduling.placement.candidates import Nodes
from espalier_lab.scheduling.placement.cluster import ContendingJob, Running
from espalier_lab.scheduling.placement.occupancy import PlacedJob
from espalier_lab.scheduling.placement.performance import bytes_sent
from espalier_lab.scheduling.placement.tasks import JobArrival, PlacementEpisode, kinds
from espalier_lab.simulator.jobs import RESTART_SECONDS
from espalier_operator.policies.marginal import SoonestPolicy, weights_of
from espalier_operator.policies.view import SpeedModel, View

MOST_WORKERS: Final = 8
NOISE_SCALE: Final = 8.0
"""Noise scale of gradients, in multiples of the batch that the author of a job asked for."""
NETWORK_BYTES: Final = 6e9
"""Bytes per second that a rule expects for a job alone on the network."""


class ElasticJob(ContendingJob):
    """A job with a free number of workers. Its expected speed is that of a job alone on ideal nodes."""

    tried_workers = MOST_WORKERS

    def __init__(self, arrival: JobArrival, node_gpus: int) -> None:
        """Create the job of an arrival; nodes have this number of GPUs."""
        super().__init__(arrival)
        self._node_gpus = node_gpus
        self.most_workers, self.pause_seconds = MOST_WORKERS, RESTART_SECONDS

    def worth(self, workers: int) -> float:
        """Return the value of a step with this number of workers, in steps with its author's number."""
        noise = NOISE_SCALE * self.requested
        return adascale_gain(1.0, noise, workers) / adascale_gain(1.0, noise, self.requested)

    @property
    def speed_model(self) -> SpeedModel:
        """Its speed alone on ideal nodes."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Remaining steps, with its author's number of workers."""
        return self.steps_left

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which this number of workers makes the progress of a step with its author's number."""
        seconds = kinds()[self.kind].compute_seconds
        if workers > self._node_gpus:
            seconds += bytes_sent(PlacedJob(self.kind, ((0, workers),))) / NETWORK_BYTES
        return seconds / self.worth(workers)

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the progress per second in steps with its author's number."""
        return 1 / self.step_seconds(workers)


class WantedWorkers(NamedTuple):
    """The rule's decision about jobs that get workers, in its order."""

    workers: Mapping[str, int]
    weights: Mapping[str, float]
    """Weight of each job."""


class ElasticCluster(Running):
    """One run in which the rule `soonest` decides numbers of workers whenever a job arrives or ends."""

    def __init__(self, episode: PlacementEpisode) -> None:
        """Prepare the run; `allocations` executes it."""
        super().__init__(episode, lambda arrival: ElasticJob(arrival, episode.family.node_gpus), SoonestPolicy())

    def allocations(self) -> Generator[WantedWorkers, Mapping[str, Nodes], None]:
        """Run; answer each decision of the rule with the nodes of each of its jobs, with as many GPUs or others."""
        return self._play(self._share_out)

    def _share_out(self, view: View) -> Generator[WantedWorkers, Mapping[str, Nodes], None]:
        shares = SoonestPolicy().decide(view).shares
        wanted = WantedWorkers({share.job: share.workers for share in shares if share.workers}, weights_of(view))
        places = yield wanted
        for name, placed in self.running():
            if places.get(name) != placed.nodes:
                self._take_off(name)
        for name, nodes in places.items():
            if name not in self.occupancy.jobs:
                self._put(self.jobs[name], nodes)
