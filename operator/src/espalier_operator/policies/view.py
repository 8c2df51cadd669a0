"""Input and output of a scheduling policy: the same on a cluster, a laptop and in simulation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Protocol

from espalier_core.types.measurements import Bid
from espalier_operator.model.actions import ONE as ONE
from espalier_operator.model.actions import Share as Share

LEAST_DONE: Final = 1e-6
"""Minimum part of its work done for which a job's rest is estimated: below, it could be any number, even infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An unfinished job as policies see it."""

    key: str
    submitted_at: float
    min_workers: int
    """Number of base workers; the job does not train with fewer."""
    max_workers: int
    gpus_per_worker: int = 1
    priority: int = 0
    aged: int = 0
    """Steps of priority gained by waiting."""
    recent_use: float = 0.0
    """Recent average of base GPUs held by its queue or namespace, divided by the queue's weight; 0 once it runs."""
    workers: int = 0
    """Current number of workers; 0: it waits."""
    service: float = 0.0
    """GPU-seconds that it has held so far."""
    done: float | None = None
    """The part of its work, 0 to 1, that a program reports done; None: it reports none."""
    held_seconds: float = 0.0
    """Seconds for which it has held GPUs since the last decision; 0 where the view is `continuous` (see `service`)."""
    gpu_type: str | None = None
    """The type of GPU that it runs on; None: it waits, or types are unknown."""
    yields: bool = True
    """Its terms allow taking its base GPUs from it."""

    @property
    def rest(self) -> float | None:
        """Remaining GPU-seconds at its pace so far, by `done`; None: not reported, or too little is done."""
        if self.done is None or self.done < LEAST_DONE or self.service <= 0:
            return None
        return self.service * max(0.0, 1 - self.done) / self.done


class SpeedModel(Protocol):
    """Known or expected speed of a job: measured in the job, or exact in a simulation."""

    @property
    def remaining_steps(self) -> float:
        """Optimizer steps until the job ends."""

    @property
    def tried_workers(self) -> int:
        """The largest number of workers with which it has trained; beyond twice as many, its speed is a guess."""

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of one optimizer step with `workers` workers."""

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the progress per second, in any unit, with these workers and nodes and the best batch size."""


class Elasticity(Enum):
    """The properties of a job that a policy changes, in addition to its run time."""

    FIXED = "fixed"
    """None: the job has the workers that it requested, or waits; spare ones may be lent to it."""
    WORKERS = "workers"
    """The number of workers, at least one, at the batch size that the job requested."""
    WORKERS_AND_BATCH = "workers and batch"
    """The number of workers, at least one; the job chooses the best batch size for them."""


class TypeSpeeds(Protocol):
    """Measured speeds of jobs on each type of GPU, with the workers that they requested."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return the optimizer steps per second of `job`, alone or sharing GPUs with `beside`; 0: it cannot train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Input of a policy's decision. All times are seconds of the clock of `now`."""

    now: float
    gpus: int
    """GPUs of all nodes that take workers."""
    jobs: tuple[Candidate, ...]
    """Unfinished jobs, in the order in which they became known."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """GPUs of each node that takes workers; empty if nodes are unknown."""
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Known nodes of the workers of each job."""
    speed_models: Mapping[str, SpeedModel] = field(default_factory=dict)
    """Speed model of each job that has one."""
    bids: Mapping[str, tuple[Bid, ...]] = field(default_factory=dict)
    """The bids of each job that has reported some."""
    gpu_types: Mapping[str, int] = field(default_factory=dict)
    """GPUs of each type, the preferred types first; empty where all are of one type."""
    speeds: TypeSpeeds | None = None
    """Speeds of all jobs by type of GPU; None where unknown."""
    continuous: bool = False
    """True on a cluster: the policy may be called at any moment, not once per round, so it must repeat a lease until
    its time has passed. Jobs do not share GPUs."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """GPU-seconds of ended jobs that are still known."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Memory of the policy's last decision; empty at first, and after a change of policy or settings."""

    @property
    def outlooks(self) -> Mapping[str, SpeedModel]:
        """`speed_models` by its old name, until 0.3."""
        warnings.warn("View.outlooks is View.speed_models now", DeprecationWarning, stacklevel=2)
        return self.speed_models


def base_share(job: Candidate, *, lend: bool = True, weight: Fraction = ONE) -> Share:
    """Return a share of a job's base workers, with all others that it can use as spare ones if `lend`."""
    spare = max(0, job.max_workers - job.min_workers) if lend else 0
    return Share(job=job.key, workers=job.min_workers, spare=spare, weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The share of each job. It is a wish: the planner decides what is possible, when, and with what notice."""

    shares: tuple[Share, ...]
    """Shares in the order in which they are served. A job without a share waits, and keeps its holdings."""
    preempts: bool = False
    """Running jobs give their base GPUs to earlier shares, if their terms allow it."""
    until: float | None = None
    """Time at which time alone may change the decision; None: never."""
    follows_progress: bool = False
    """The progress of jobs may change the decision too."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Memory for the next view; plain JSON."""
    ignored: tuple[str, ...] = ()
    """Descriptions of the parts that cannot be carried out; the planner fills it in."""
    fallback: str = ""
    """Reason for which another policy decided in its place, in words; empty: it decided itself."""


class Policy(Protocol):
    """A scheduling policy. Pure: no clock, no I/O; it returns its memory with its decision."""

    @property
    def name(self) -> str:
        """The name in settings and metrics."""

    @property
    def queue_order(self) -> str:
        """The order of admission, to follow "these jobs wait before it, ": `by priority, recent use and age`."""

    @property
    def elasticity(self) -> Elasticity:
        """The properties of a job that it changes, in addition to its run time."""

    def decide(self, view: View) -> Decision:
        """Return the share of each job."""


def remaining_steps(view: View, jobs: Sequence[Candidate], speeds: Sequence[float]) -> list[float]:
    """Return the remaining steps of each job; where unknown, the steps in the average remaining seconds of the others.

    `speeds` are the steps per second of each job, which convert between both. The rest of a program follows from the
    part of its work that it reports done, in proportion to the time that this took.
    """
    known = {job: view.speed_models[job.key].remaining_steps for job in jobs if job.key in view.speed_models}
    for job, speed in zip(jobs, speeds, strict=True):
        if job.rest is not None:
            known[job] = job.rest / max(1, job.min_workers * job.gpus_per_worker) * speed
    seconds = [known[job] / speed for job, speed in zip(jobs, speeds, strict=True) if job in known]
    average = sum(seconds) / len(seconds) if seconds else 1.0
    return [max(known.get(job, average * speed), 1e-9) for job, speed in zip(jobs, speeds, strict=True)]
