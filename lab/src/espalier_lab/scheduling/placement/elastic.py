"""A run of an episode in which the number of workers is free: each job can have 1 to 8, and they can be moved.

A worker keeps its batch, so the formula of a step is that of `performance`. What a step is worth follows AdaScale
(Johnson et al., ICML 2020): its gain, with the noise scale of gradients in multiples of a worker's batch.
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
"""Of gradients, in multiples of the batch that the author of a job asked for."""
NETWORK_BYTES: Final = 6e9
"""A second: what a job alone has on the network that a rule expects."""


class ElasticJob(ContendingJob):
    """A job whose number of workers is free. Its outlook: it is alone on ideal nodes."""

    tried_workers = MOST_WORKERS

    def __init__(self, arrival: JobArrival, node_gpus: int) -> None:
        """Take what came; nodes have this number of GPUs."""
        super().__init__(arrival)
        self._node_gpus = node_gpus
        self.most_workers, self.pause_seconds = MOST_WORKERS, RESTART_SECONDS

    def worth(self, workers: int) -> float:
        """Return how many steps with its author's number one with this number of workers is worth."""
        noise = NOISE_SCALE * self.requested
        return adascale_gain(1.0, noise, workers) / adascale_gain(1.0, noise, self.requested)

    @property
    def speed_model(self) -> SpeedModel:
        """Its speed alone on ideal nodes."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Steps with its author's number until it is complete."""
        return self.steps_left

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which this number of workers does what is worth a step with its author's number."""
        seconds = kinds()[self.kind].compute_seconds
        if workers > self._node_gpus:
            seconds += bytes_sent(PlacedJob(self.kind, ((0, workers),))) / NETWORK_BYTES
        return seconds / self.worth(workers)

    def goodput(self, nodes: int, workers: int) -> float:
        """Return steps with its author's number a second."""
        return 1 / self.step_seconds(workers)


class WantedWorkers(NamedTuple):
    """What the rule decides, of jobs that are to have workers, in its order."""

    workers: Mapping[str, int]
    weights: Mapping[str, float]
    """How much each job counts."""


class ElasticCluster(Running):
    """One run in which the rule `soonest` decides numbers of workers whenever a job comes or ends."""

    def __init__(self, episode: PlacementEpisode) -> None:
        """Prepare; `allocations` runs it."""
        super().__init__(episode, lambda arrival: ElasticJob(arrival, episode.family.node_gpus), SoonestPolicy())

    def allocations(self) -> Generator[WantedWorkers, Mapping[str, Nodes], None]:
        """Run; each decision of the rule is answered with the nodes of each of its jobs, as many GPUs or others."""
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
