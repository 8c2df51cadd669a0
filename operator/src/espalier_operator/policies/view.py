"""What a scheduling policy may know, and what it decides: the same on a cluster, a laptop and in simulation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Protocol

from espalier_operator.model.actions import ONE as ONE
from espalier_operator.model.actions import Share as Share

LEAST_DONE: Final = 1e-6
"""The part of its work from which on a job's pace counts: what is left of less is any number, even infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An unfinished job as policies see it."""

    key: str
    submitted_at: float
    min_workers: int
    """Base workers: the job does not train with fewer."""
    max_workers: int
    gpus_per_worker: int = 1
    priority: int = 0
    aged: int = 0
    """Steps of priority that it has gained by waiting."""
    recent_use: float = 0.0
    """Mean base GPUs that its queue or namespace held recently, over the weight of the queue; 0 once it runs."""
    workers: int = 0
    """Workers that it has now; 0: it waits."""
    service: float = 0.0
    """GPU-seconds that it has held so far."""
    done: float | None = None
    """The part of its work that a program has done by its report, 0 to 1; None: it reports none."""
    held_seconds: float = 0.0
    """For how long it has held GPUs since the last decision; 0 where the view is `continuous`, see `service`."""
    gpu_type: str | None = None
    """The type of GPU that it runs on; None: it waits, or types are not known."""
    yields: bool = True
    """Its base GPUs may be taken from it: its terms allow it."""

    @property
    def rest(self) -> float | None:
        """GPU-seconds that it still takes at its pace so far, by `done`; None: not reported, or too little is done."""
        if self.done is None or self.done < LEAST_DONE or self.service <= 0:
            return None
        return self.service * max(0.0, 1 - self.done) / self.done


class SpeedModel(Protocol):
    """What is known, or expected, of the speed of a job. Measured in the job, or true in a simulation."""

    @property
    def remaining_steps(self) -> float:
        """Optimizer steps until the job ends."""

    @property
    def tried_workers(self) -> int:
        """The most workers with which it has trained; beyond twice as many its speed is a guess."""

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of one optimizer step with `workers` workers."""

    def goodput(self, nodes: int, workers: int) -> float:
        """Return its progress per second, in any unit, with these workers and nodes and the best batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGrowth:
    """What a job is expected to gain by growing, if extra workers are lent to it from now on."""

    gains: tuple[float, ...]
    """Final accuracy (of a job without one, its score) gained by one decision to grow, by two, ...; compared with not
    growing from now on. Empty or not above 0: nothing."""
    seconds: tuple[float, ...]
    """For how long the extra workers are needed until that decision has been carried out; rising."""

    @property
    def rate(self) -> float:
        """Gain a second of the loan, up to the decision at which it is largest; 0: growing gains nothing."""
        rates = (gain / max(1.0, seconds) for gain, seconds in zip(self.gains, self.seconds, strict=True))
        return max(0.0, *rates, 0.0)


class Elasticity(Enum):
    """What a policy changes about a job, except when it runs."""

    FIXED = "fixed"
    """Nothing: the job has the workers that it requested, or waits; spare ones may be lent to it."""
    WORKERS = "workers"
    """The number of workers, at least one, at the batch size that the job requested."""
    WORKERS_AND_BATCH = "workers and batch"
    """The number of workers, at least one; the job chooses the best batch size for them."""


class TypeSpeeds(Protocol):
    """How fast jobs train on each type of GPU, with the workers that they requested. Measured."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return the optimizer steps per second of `job`, alone or on the GPUs of `beside` too; 0: it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a policy decides from. All times are seconds of the clock of `now`."""

    now: float
    gpus: int
    """Of all nodes that take workers."""
    jobs: tuple[Candidate, ...]
    """Unfinished ones, in the order in which they came to be known."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """The GPUs of each node that takes workers; empty if nodes are not known."""
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By job, the node of each of its workers, as far as it is known."""
    speed_models: Mapping[str, SpeedModel] = field(default_factory=dict)
    """By job, where something is known."""
    expected_growths: Mapping[str, ExpectedGrowth] = field(default_factory=dict)
    """By job, where its trainer or agent has reported what growing would gain."""
    gpu_types: Mapping[str, int] = field(default_factory=dict)
    """GPUs of each type, the preferred types first; empty where they are all alike."""
    speeds: TypeSpeeds | None = None
    """By type of GPU, of all jobs; None where nothing is known."""
    continuous: bool = False
    """True on a cluster: the policy may be asked at any moment, not once per round, so it must repeat what it gives for
    a time until that time has passed. Jobs do not share GPUs."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """Jobs that have ended and are not forgotten yet, and the GPU-seconds that they took."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What the policy's last decision asked to keep; empty at first, and with another policy or other settings."""

    @property
    def outlooks(self) -> Mapping[str, SpeedModel]:
        """`speed_models` by its old name, until 0.3."""
        warnings.warn("View.outlooks is View.speed_models now", DeprecationWarning, stacklevel=2)
        return self.speed_models

    @property
    def prospects(self) -> Mapping[str, ExpectedGrowth]:
        """`expected_growths` by its old name, until 0.3."""
        warnings.warn("View.prospects is View.expected_growths now", DeprecationWarning, stacklevel=2)
        return self.expected_growths


def base_share(job: Candidate, *, lend: bool = True, weight: Fraction = ONE) -> Share:
    """Return the base workers of a job, and all others that it can use as spare ones, if spare GPUs are to be lent."""
    spare = max(0, job.max_workers - job.min_workers) if lend else 0
    return Share(job=job.key, workers=job.min_workers, spare=spare, weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What each job should have. It is a wish: the planner decides what is possible, when, and with what notice."""

    shares: tuple[Share, ...]
    """In the order in which they are served. A job without a share waits, and keeps what it holds."""
    preempts: bool = False
    """A running job gives its base GPUs to an earlier share, if its terms allow it."""
    until: float | None = None
    """When time alone may change the decision; None: never."""
    follows_progress: bool = False
    """The progress of jobs may change the decision too."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """For the next view; plain JSON."""
    ignored: tuple[str, ...] = ()
    """The parts of it that cannot be carried out, in words; the planner fills it in."""
    fallback: str = ""
    """Why the rule of another policy decided in its place, in words; empty: it decided itself."""


class Policy(Protocol):
    """Which job should have which GPUs. Pure: no clock, no I/O; it returns what it must remember with its decision."""

    @property
    def name(self) -> str:
        """Its name in settings and metrics."""

    @property
    def queue_order(self) -> str:
        """The order of admission, to follow "these jobs wait before it, ": `by priority, recent use and age`."""

    @property
    def elasticity(self) -> Elasticity:
        """What it changes about a job, except when it runs."""

    def decide(self, view: View) -> Decision:
        """Return what each job should have."""


def remaining_steps(view: View, jobs: Sequence[Candidate], speeds: Sequence[float]) -> list[float]:
    """Return the steps that each job has left; where that is not known, as many seconds' as the others on average.

    `speeds` are the steps a second of each, which turn one into the other. A program says what part of its work it has
    done; its rest is as many seconds as that took, in proportion.
    """
    known = {job: view.speed_models[job.key].remaining_steps for job in jobs if job.key in view.speed_models}
    for job, speed in zip(jobs, speeds, strict=True):
        if job.rest is not None:
            known[job] = job.rest / max(1, job.min_workers * job.gpus_per_worker) * speed
    seconds = [known[job] / speed for job, speed in zip(jobs, speeds, strict=True) if job in known]
    average = sum(seconds) / len(seconds) if seconds else 1.0
    return [max(known.get(job, average * speed), 1e-9) for job, speed in zip(jobs, speeds, strict=True)]
