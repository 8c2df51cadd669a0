"""What is remembered of a job between two looks, and between two incarnations of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from espalier_api.allocation import Direction
from espalier_api.reasons import Reason
from espalier_operator.facts import Ended, Reclaim, Stopping, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a finished job ended."""

    reason: Reason
    failed: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the scheduler grants at a moment: `espalier_api.allocation.Allocation` on the backend's clock."""

    generation: int = 0
    replicas: int = 0
    gpus: int = 0
    direction: Direction = Direction.NONE
    reason: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job's memory. All but `ended` survives the scheduler."""

    submitted_at: float | None = None
    grant: Grant = field(default_factory=Grant)
    admitted_at: float | None = None
    """When its base GPUs were granted; None while it waits."""
    gpu_type: str | None = None
    extra: int = 0
    """Extra workers lent, those being reclaimed included until they are released."""
    extra_generation: int = 0
    """Generation of the grant that last lent some."""
    reclaim: Reclaim | None = None
    granted_at: float | None = None
    """When extra GPUs were last lent to it."""
    changed_at: float | None = None
    """When its extra GPUs last changed, up or down."""
    promised_until: float | None = None
    """Until then it counts as holding all its extra workers, even where fewer are seen."""
    stopping: Stopping | None = None
    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    counted_until: float | None = None
    """The moment up to which its budgets are counted."""
    trained: bool = False
    """It has trained since it was admitted."""
    failures: int = 0
    last_failure: str = ""
    restarts: int = 0
    preemptions: int = 0
    attempts: tuple[int, ...] = ()
    """By base worker: how often it was replaced."""
    incarnations: tuple[str, ...] = ()
    """By base worker: the incarnation that was last seen at this attempt, empty for none yet."""
    not_before: float | None = None
    """A worker that failed is not started again earlier."""
    outcome: Outcome | None = None
    ended: Ended | None = None
    """What the end of the leader means, until the planner has drawn the conclusion."""

    @property
    def active(self) -> bool:
        """Whether it holds GPUs: its budgets run."""
        return self.admitted_at is not None and self.outcome is None

    @property
    def ending(self) -> bool:
        """Whether it is about to be ended: no worker is started any more."""
        return self.ended is not None or self.stopping is not None

    def may_start(self, terms: Terms, now: float) -> bool:
        """Return whether base workers that are missing may be started at `now`."""
        waits = self.not_before is not None and now < self.not_before
        return self.active and not self.ending and not waits and self.failures <= terms.backoff_limit

    def with_workers(self, count: int) -> JobState:
        """Return the state with room for `count` base workers."""
        missing = count - len(self.attempts)
        if missing <= 0:
            return self
        attempts, incarnations = (*self.attempts, *[0] * missing), (*self.incarnations, *[""] * missing)
        return replace(self, attempts=attempts, incarnations=incarnations)

    def with_worker(self, index: int, *, attempt: int | None = None, incarnation: str) -> JobState:
        """Return the state with another incarnation of base worker `index`, or another attempt."""
        attempts, incarnations = list(self.attempts), list(self.incarnations)
        attempts[index] = attempts[index] if attempt is None else attempt
        incarnations[index] = incarnation
        return replace(self, attempts=tuple(attempts), incarnations=tuple(incarnations))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a backend waits, and for what. Seconds of its clock."""

    start_up_allowance: float = 120.0
    """A leader that sends no report is counted as training when it has run for this long."""
    promise: float = 120.0
    """Extra workers that were granted may take this long to be bound to a node."""
    restart: float = 1.0
    """Before the first restart of a worker that failed; doubles with each failure, up to `max_restart`."""
    max_restart: float = 60.0
    rejected_restart: float = 10.0
    """Before a worker that ended before it began (its node refused it) is started again."""
    report: float = 3.0
    """The last report of a leader may come this much later than its end."""
    linger: float = 60.0
    """A leader that has sent its last report may take this long to end."""
    gap: float = 30.0
    """The longest time between two looks of a scheduler that runs."""
    quiet: float = 25.0
    """A leader that trains reports every ten seconds at least, unless one step takes it longer."""

    def scaled(self, scale: float) -> Timing:
        """Return these times on a clock of `scale` seconds in a second of this one."""
        return Timing(**{name: scale * getattr(self, name) for name in self.__dataclass_fields__})
