"""Speed of jobs that share nodes and network: one formula, for the truth and for beliefs.

A step takes

    compute × max over the job's nodes [slowness × (1 + Σ interference × share)] + 2 (k − 1) / k × bytes / bandwidth

where the sum is over the other jobs on the node, the share is their part of its GPUs, k is the number of workers (a
ring all-reduce: Patarasuk and Yuan, 2009), and the bandwidth is the network card's, or the rack's uplink's if the job
is in several racks and that is slower, shared equally by the jobs that use it. Within a node the exchange takes no
time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.tasks import PlacementTask, kinds


class Performance(Protocol):
    """Parameters of the speed of jobs on a cluster."""

    def slowness(self, node: int) -> float:
        """Return the factor on the duration of a step relative to an ideal node."""

    def interference(self, kind: int, other: int) -> float:
        """Return the relative slowdown of `kind` if `other` has all GPUs of its node."""

    def nic_bytes(self) -> float:
        """Return the bytes per second through a network card."""

    def uplink_bytes(self) -> float:
        """Return the bytes per second through the uplink of a rack."""


class Truth(NamedTuple):
    """The performance of a task."""

    task: PlacementTask

    def slowness(self, node: int) -> float:
        """Return the factor on the duration of a step relative to an ideal node."""
        return float(self.task.slowness[node])

    def interference(self, kind: int, other: int) -> float:
        """Return the relative slowdown of `kind` if `other` has all GPUs of its node."""
        return float(self.task.interference[kind, other])

    def nic_bytes(self) -> float:
        """Return the bytes per second through a network card."""
        return self.task.nic_bytes

    def uplink_bytes(self) -> float:
        """Return the bytes per second through the uplink of a rack."""
        return self.task.uplink_bytes


class PlacedStepTime(NamedTuple):
    """Seconds of a step, as measured by a trainer."""

    compute: float
    exchange: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.exchange


class Slowdown(NamedTuple):
    """The worst slowdown of a job, and its node."""

    ratio: float
    """Seconds of a step without exchange, relative to an ideal node."""
    node: int
    extra: float
    """The part of 1 + Σ interference × share caused by others."""


class GradientExchange(NamedTuple):
    """The bottleneck of an exchange of gradients."""

    seconds: float
    sharers: int
    """Jobs that share the slowest link."""
    uplink: bool
    """Whether it is a rack's uplink; else a network card."""


def step_time(performance: Performance, occupancy: Occupancy, name: str, placed: PlacedJob) -> PlacedStepTime:
    """Return the seconds of a step of a job that is in `occupancy` under its name."""
    compute = kinds()[placed.kind].compute_seconds * slowdown(performance, occupancy, name, placed).ratio
    link = exchange(performance, occupancy, placed)
    return PlacedStepTime(compute, 0.0 if link is None else link.seconds)


def slowdown(performance: Performance, occupancy: Occupancy, name: str, placed: PlacedJob) -> Slowdown:
    """Return the slowdown of a job by the worst of its nodes."""
    worst = Slowdown(0.0, -1, 0.0)
    kind, size = placed.kind, occupancy.node_gpus
    for node, _ in placed.nodes:
        extra = 0.0
        for other, (theirs, count) in occupancy.on_node[node].items():
            if other != name:
                extra += performance.interference(kind, theirs) * count / size
        ratio = performance.slowness(node) * (1 + extra)
        if ratio > worst.ratio:
            worst = Slowdown(ratio, node, extra)
    return worst


def exchange(performance: Performance, occupancy: Occupancy, placed: PlacedJob) -> GradientExchange | None:
    """Return the exchange of gradients; None for a job on one node."""
    if len(placed.nodes) == 1:
        return None
    sent = bytes_sent(placed)
    sharers = max(occupancy.exchanging_on[node] for node, _ in placed.nodes)
    slowest = GradientExchange(sent * sharers / performance.nic_bytes(), sharers, uplink=False)
    racks = occupancy.racks(placed)
    if len(racks) > 1:
        sharers = max(occupancy.exchanging_of[rack] for rack in racks)
        seconds = sent * sharers / performance.uplink_bytes()
        if seconds > slowest.seconds:
            slowest = GradientExchange(seconds, sharers, uplink=True)
    return slowest


def bytes_sent(placed: PlacedJob) -> float:
    """Return the bytes that each worker sends in a ring all-reduce."""
    workers = placed.gpus
    return 2 * (workers - 1) / workers * kinds()[placed.kind].gradient_bytes
