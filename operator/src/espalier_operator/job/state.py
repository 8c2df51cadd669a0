"""What is known of a job: what is seen now, and the state that is kept between two observations and by a successor.

An `Observation` is what a backend sees of a job's base workers and of its leader's report. A `JobState` outlives the
incarnation of the scheduler that made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.clock import doubled
from espalier_operator.model import Ended, JobTerms
from espalier_operator.model.jobs import JobRecord

LAST_PHASES: Final = (TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED)
"""What a leader reports last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a worker ended."""

    code: int | None
    """Exit code (negative: the signal); None if unknown."""
    at: float | None
    external: bool
    """It was ended from outside: its pod was deleted or evicted, or the scheduler asked its process to end."""
    overran: bool = False
    """It was ended because it exceeded a limit of its template. It does not count as ended from outside."""
    message: str = ""
    by_node: bool = False
    """Its node refused it, evicted it for want of its own resources, or lost it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """One start of a base worker: a pod, or a process. Times on the backend's clock."""

    id: str
    node: str | None = None
    """The machine that it is, or was, on."""
    loan: int = 0
    """Of an extra worker: the loan that it belongs to."""
    running: bool = False
    """Its process runs, as far as is known."""
    started_at: float | None = None
    ready: bool = True
    """Of a program: its readiness probe, if it has one, has succeeded."""
    silent: bool = False
    """Its node does not report: it may run or not."""
    lost: Reason | None = None
    """Set when it counts as lost, whether or not it still runs: its node or its GPUs are gone."""
    removed: bool = False
    """It is being deleted."""
    stuck: tuple[float, str] | None = None
    """Since when its node cannot start it, and why."""
    stuck_by_node: bool = False
    """The program has no part in that."""
    end: End | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A job's base workers and its leader's report at a moment."""

    base: tuple[WorkerStart | None, ...] = ()
    """By index, those of the current attempt; None where there is none."""
    extra_bound: int = 0
    """Extra workers that have their GPUs."""
    extra_running: int = 0
    """Those of them whose processes run."""
    extra_ended: tuple[WorkerStart, ...] = ()
    """Extra workers that have ended."""
    refused: bool = False
    """A base worker cannot start: kube-scheduler finds no node for it, the API server refuses its pod, or the kubelet
    cannot start it."""
    invalid: str = ""
    """Why the API server will never take a base worker's pod; empty where it may."""
    extra_refused: bool = False
    """The same as `refused` of an extra worker; or that has scheduling gates."""
    gated: int = 0
    """Base workers with scheduling gates: they do not want their GPUs yet."""
    report: Report | None = None
    """The last report, of the current or an earlier leader."""
    reporter: str = ""
    """The incarnation that wrote it."""
    reported_at: float = 0.0
    """When it was written, on the backend's clock."""
    program: bool = False
    """The leader is a program that reports nothing: it trains once it runs and is ready."""
    unread: bool = False
    """The last lines of the program that has ended are still to be read."""

    def worker(self, index: int) -> WorkerStart | None:
        """Return base worker `index`, None where there is none."""
        return self.base[index] if index < len(self.base) else None

    @property
    def leader(self) -> WorkerStart | None:
        """The leader."""
        return self.base[0] if self.base else None

    @property
    def leader_runs(self) -> bool:
        """Whether the leader's process runs, as far as is known."""
        leader = self.leader
        return leader is not None and leader.running and leader.end is None and leader.lost is None

    @property
    def leader_is_silent(self) -> bool:
        """Whether nobody knows if the leader's process runs: its node does not report."""
        return self.leader_runs and self.leader is not None and self.leader.silent

    @property
    def fresh(self) -> bool:
        """Whether the report is of the current leader; a program says by its readiness that it trains."""
        if self.program:
            return self.phase is TrainerPhase.TRAINING
        leader = self.leader
        return leader is not None and self.report_of(leader.id) is not None

    @property
    def phase(self) -> TrainerPhase:
        """The last report of the current leader; for a program what its container tells."""
        if self.program:
            trains = self.leader is not None and self.leader.started_at is not None and self.leader.ready
            return TrainerPhase.TRAINING if trains else TrainerPhase.STARTING
        return self.report.phase if self.fresh and self.report is not None else TrainerPhase.STARTING

    @property
    def trains(self) -> bool:
        """Whether the current leader's training goes on, by its report. Another trainer waits to be ended then."""
        return not self.program and self.phase in (TrainerPhase.TRAINING, TrainerPhase.ADAPTING)

    def after(self, before: Observation) -> Observation:
        """Return the observation if `before` was the last: a leader that was ready once is past its start-up."""
        leader, earlier = self.leader, before.leader
        if leader is None or leader.ready or earlier is None or earlier.id != leader.id or not earlier.ready:
            return self
        return replace(self, base=(replace(leader, ready=True), *self.base[1:]))

    def report_of(self, incarnation: str) -> Report | None:
        """Return the last report if it is of this incarnation of the leader."""
        return self.report if self.report is not None and incarnation and self.reporter == incarnation else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the scheduler grants at a moment: `espalier_core.types.allocation.Allocation` on the backend's clock."""

    generation: int = 0
    replicas: int = 0
    gpus: int = 0
    direction: Direction = Direction.NONE
    reason: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWatch:
    """What the scheduler has seen of a leader, by its own clock: other clocks, and the leader, may be wrong."""

    incarnation: str = ""
    since: float | None = None
    """Since when it runs; None before that."""
    done_since: float | None = None
    """Since when it says that it ends; None while it does not."""
    heard: bool = False
    """It has reported."""
    out_of_reach: bool = False
    """Its node did not report at the last look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(JobRecord):
    """The state of one job.

    Its status keeps all but `ended`, `refused_since`, `unpinned`, `watch`, `incomplete` and `stopped_itself`: what a
    scheduler that starts must observe anew.
    """

    submitted_at: float | None = None
    grant: Grant = field(default_factory=Grant)
    extra_generation: int = 0
    """A number that rises with each loan; the names of its workers contain it."""
    promised_until: float | None = None
    """Until then it counts as holding all its extra workers, even where fewer are seen."""
    restarts: int = 0
    attempts: tuple[int, ...] = ()
    """By base worker: how often it was replaced."""
    incarnations: tuple[str, ...] = ()
    """By base worker: the incarnation that was last seen at this attempt, empty for none yet."""
    not_before: float | None = None
    """A worker that failed is not started again earlier."""
    unpinned: bool = field(default=False, compare=False)
    """kube-scheduler has refused the node that was chosen for a base worker. Until the job has trained it chooses."""
    unplaced: int = 0
    """How often in a row what was granted could not be used: workers were refused, or no node was found for them."""
    extra_losses: int = 0
    """How often in a row lent workers ended by themselves or were ended from outside."""
    outcome: Ended | None = None
    """How the job ended, if it has."""
    watch: LeaderWatch = field(default=LeaderWatch(), compare=False)
    """The current leader, as it was seen."""
    incomplete: bool = field(default=False, compare=False)
    """It has not trained since it was admitted, and one of its base workers does not run: its budgets stand still."""
    stopped_itself: bool = False
    """A leader of this job has ended as if it had been stopped, and nobody stopped it: start-ups count from now on."""

    @property
    def essence(self) -> JobState:
        """The state without the figures that time alone changes."""
        return replace(self, used_seconds=0.0, gpu_seconds_used=0.0, counted_until=None)

    @property
    def active(self) -> bool:
        """Whether it holds GPUs, so that its budgets run."""
        return self.admitted_at is not None and self.outcome is None

    @property
    def ending(self) -> bool:
        """Whether it is about to end: no more workers are started."""
        return self.ended is not None or self.stopping is not None

    def announced(self, terms: JobTerms) -> int:
        """Return the extra workers that the leader knows of: those that ran."""
        return max(0, self.grant.replicas - terms.min_replicas)

    def granting(
        self, replicas: int, direction: Direction, reason: str, terms: JobTerms, deadline: float | None = None
    ) -> JobState:
        """Return the state with the next generation of the allocation."""
        grant = Grant(
            generation=self.grant.generation + 1,
            replicas=replicas,
            gpus=replicas * terms.gpus_per_worker,
            direction=direction,
            reason=reason,
            deadline=deadline,
        )
        return replace(self, grant=grant)

    def completed(self, terms: JobTerms) -> tuple[int, ...]:
        """Return those of the base workers that `terms` asks for that are completed."""
        return tuple(index for index in self.completed_workers if index < terms.min_replicas)

    def needed(self, terms: JobTerms) -> JobTerms:
        """Return `terms` with those workers only that still need GPUs."""
        done = len(self.completed(terms))
        if not done:
            return terms
        return replace(terms, min_replicas=terms.min_replicas - done, max_replicas=terms.max_replicas - done)

    def may_start(self, terms: JobTerms, now: float) -> bool:
        """Return whether base workers that are missing may be started at `now`."""
        waits = self.not_before is not None and now < self.not_before
        return self.active and not self.ending and not waits and self.failures <= terms.backoff_limit

    def watch_of(self, incarnation: str) -> LeaderWatch:
        """Return what was seen of this leader; nothing where it is not the one that was watched last."""
        return self.watch if self.watch.incarnation == incarnation else LeaderWatch(incarnation=incarnation)

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
    """A leader without reports counts as training once it has run for this long."""
    promise: float = 120.0
    """Maximum time from the grant of extra workers until they are bound to a node."""
    restart: float = 1.0
    """Before the first restart of a worker that failed; doubles with each failure, up to `max_restart`."""
    max_restart: float = 60.0
    rejected_restart: float = 10.0
    """Before a worker that ended before it began (its node refused it) is started again."""
    refusal: float = 20.0
    """Maximum time from the grant of extra workers until they are given up that somebody refuses."""
    report: float = 3.0
    """Maximum delay of a leader's last report after its end."""
    leave: float = 3.0
    """Maximum time from a leader's last report until it ends that is not counted: libraries take a while to unload."""
    linger: float = 60.0
    """Maximum time from a leader's last report until it ends."""
    hold: float = 60.0
    """After a job could not use what it was granted, until it is granted GPUs again; doubles each time in a row, up to
    `max_hold`."""
    max_hold: float = 3600.0
    gap: float = 30.0
    """Maximum time between two observations by a running scheduler."""
    quiet: float = 25.0
    """A leader that trains reports at least every ten seconds, unless one step takes longer."""

    def held(self, times: int) -> float:
        """Return for how long nothing is granted after this number of failed attempts in a row."""
        return doubled(self.hold, times, self.max_hold)

    def scaled(self, scale: float) -> Timing:
        """Return these times for a clock that advances `scale` seconds in one second of this one."""
        return Timing(**{name: scale * getattr(self, name) for name in self.__dataclass_fields__})
