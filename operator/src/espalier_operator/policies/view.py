"""What a scheduling policy may know, and what it decides: the same on a cluster, a laptop and in simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Protocol

ONE: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An unfinished job as policies see it."""

    key: str
    submitted_at: float
    min_workers: int
    """Fewer do not train: base workers."""
    max_workers: int
    gpus_per_worker: int = 1
    priority: int = 0
    aged: int = 0
    """By how many steps of priority its waiting has raised it."""
    recent_use: float = 0.0
    """Base GPUs that its queue or namespace held lately on average, over the weight of the queue; 0 once it runs."""
    workers: int = 0
    """Those that it has now; 0: it waits."""
    service: float = 0.0
    """GPU-seconds that it has held so far."""
    done: float | None = None
    """The part of its work that a program says it has done, 0 to 1; None: it does not say."""
    held_seconds: float = 0.0
    """For how long it has held GPUs since the last decision; 0 where the view is `continuous`, see `service`."""
    gpu_type: str | None = None
    """The type of GPU that it runs on; None: it waits, or types are not known."""
    yields: bool = True
    """Its base GPUs may be taken from it: its terms allow it."""

    @property
    def rest(self) -> float | None:
        """GPU-seconds that it still takes at its pace so far, by what it says it has done; None: it does not say."""
        if self.done is None or self.done <= 0 or self.service <= 0:
            return None
        return self.service * max(0.0, 1 - self.done) / self.done


class Outlook(Protocol):
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
class Prospect:
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
    """What a policy changes of a job, besides when it runs."""

    FIXED = "fixed"
    """Nothing: it has the workers that it asked for, or waits; spare ones may be lent to it."""
    WORKERS = "workers"
    """Its workers, from one on, at the batch size that it asked for."""
    WORKERS_AND_BATCH = "workers and batch"
    """Its workers, from one on; the job chooses the best batch size for them."""


class Speeds(Protocol):
    """How fast jobs train on each type of GPU, with the workers that they asked for. Measured."""

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
    """The GPUs of each node that takes workers; empty where nobody says."""
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By job, the node of each of its workers, as far as it is known."""
    outlooks: Mapping[str, Outlook] = field(default_factory=dict)
    """By job, where something is known."""
    prospects: Mapping[str, Prospect] = field(default_factory=dict)
    """By job, where its trainer or agent has said what growing would gain."""
    gpu_types: Mapping[str, int] = field(default_factory=dict)
    """GPUs of each type, the preferred types first; empty where they are all alike."""
    speeds: Speeds | None = None
    """By type of GPU, of all jobs; None where nothing is known."""
    continuous: bool = False
    """The policy may be asked at any moment, and not once a round: what it gives for a time, it must give again until
    then. Jobs do not share GPUs. So it is on a cluster."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """Jobs that have ended and are not forgotten yet, and the GPU-seconds that they took."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What the policy's last decision asked to keep; empty at first, and after the scheduler was restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a job should have."""

    job: str
    workers: int
    """All of them. With fewer than its base workers the job waits."""
    spare: int = 0
    """More than that, while no share needs their GPUs."""
    weight: Fraction = ONE
    """Spare GPUs are shared in proportion to it: the smallest number of GPUs over the weight is raised first."""
    gpu_type: str | None = None
    """The type of its GPUs, until the decision's `until`; None: any."""
    nodes: tuple[str, ...] = ()
    """A wish: the node of each of its workers, base workers first; empty: any. It holds for workers that are still to
    be made, if it can be met as a whole: those that run stay where they are."""
    beside: str | None = None
    """An earlier share's job, whose GPUs it uses too; None: it has its own."""


def base_share(job: Candidate, *, lend: bool = True, weight: Fraction = ONE) -> Share:
    """Return the base workers of a job, and all others that it can use as spare ones, if spare GPUs are to be lent."""
    spare = max(0, job.max_workers - job.min_workers) if lend else 0
    return Share(job=job.key, workers=job.min_workers, spare=spare, weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Who should have what. It is a wish: the planner decides what is possible, when, and with what notice."""

    shares: tuple[Share, ...]
    """In the order in which they are served. A job without a share waits, and keeps what it holds."""
    preempts: bool = False
    """A running job yields its base GPUs to an earlier share, if its terms allow it."""
    until: float | None = None
    """The passing of time alone may change the decision then; None: it does not."""
    follows_progress: bool = False
    """The progress of jobs may change the decision too."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """For the next view; plain JSON."""
    ignored: tuple[str, ...] = ()
    """What of it cannot be, in words; the planner fills it in."""


class Policy(Protocol):
    """Who should have which GPUs. Pure: no clock, no I/O; what it must remember it returns with its decision."""

    @property
    def name(self) -> str:
        """What settings and metrics call it."""

    @property
    def queue_order(self) -> str:
        """The order of admission, to follow "these jobs wait before it, ": `by priority, recent use and age`."""

    @property
    def elasticity(self) -> Elasticity:
        """What it changes of a job, besides when it runs."""

    def decide(self, view: View) -> Decision:
        """Return what each job should have."""
