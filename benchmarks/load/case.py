"""What one case of the benchmark is, and what is put into its cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load import objects

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one case is."""

    nodes: int
    jobs: int
    events: int
    """GPUs that are freed one after the other; none are where jobs have to wait for GPUs."""
    spacing: float = 0.5
    """Mean seconds from one to the next; each is drawn from half to one and a half of it."""
    report_seconds: float = 10.0
    """How often a leader reports while nothing happens; 0: never."""
    seed: int = 0
    idle_pods: int = 0
    """Other people's pods without GPUs, evenly over the nodes."""
    operator_cores: frozenset[int] = frozenset()
    """The cores of the operator; none: those of the benchmark."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * objects.GPUS_OF_A_NODE


@dataclass(frozen=True, slots=True)
class Layout:
    """What is put into the cluster."""

    jobs: list[Raw]
    foreign: list[Raw]
    """Other people's pods: they hold all GPUs that the jobs' base workers do not need."""
    single: list[str]
    """Names of those that hold one GPU: some are deleted to free it."""
    idle: list[Raw]
    """Other people's pods without GPUs."""

    @property
    def foreign_gpus(self) -> int:
        """GPUs that other people's pods hold."""
        return sum(objects.gpus_of(pod) for pod in self.foreign)


def layout_of(case: Case) -> Layout:
    """Return what is put into the cluster; `ValueError` where it is too small for the events."""
    jobs = objects.jobs(case.jobs, case.seed)
    base, size = sum(job["spec"]["minReplicas"] for job in jobs), objects.GPUS_OF_A_NODE
    idle = [objects.idle(number, objects.node_name(number % case.nodes)) for number in range(case.idle_pods)]
    if base >= case.gpus:
        return Layout(jobs, [], [], idle)
    held = case.gpus - base
    singles = held % size
    while singles < case.events and singles + size <= held:
        singles += size
    if singles < case.events or (case.jobs - case.events) * objects.MOST_EXTRA < case.events:
        raise ValueError(f"{case.events} events are too many for {case.nodes} nodes and {case.jobs} jobs; give fewer")
    foreign, place = [], base  # GPUs are numbered through all nodes; the first ones are left to the jobs
    for number, gpus in enumerate([1] * singles + [size] * ((held - singles) // size)):
        foreign.append(objects.foreign(f"foreign-{number:06}", objects.node_name(place // size), gpus))
        place += gpus
    return Layout(jobs, foreign, [pod["metadata"]["name"] for pod in foreign[:singles]], idle)
