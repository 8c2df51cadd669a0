"""Observation and recorded state of a job.

An `Observation` is a backend's view of a job's base workers and its leader's report. A `JobState` is kept between
observations and outlives the incarnation of the scheduler that made it.
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
"""Phases of a leader's last report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a worker."""

    code: int | None
    """Exit code (negative: the signal); None if unknown."""
    at: float | None
    external: bool
    """It was ended from outside: its pod was deleted or evicted, or the scheduler asked its process to end."""
    overran: bool = False
    """It was ended because it exceeded a limit of its template; that does not count as ended from outside."""
    message: str = ""
    by_node: bool = False
    """Its node refused it, evicted it for lack of resources, or lost it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """One start of a base worker: a pod, or a process. Times on the backend's clock."""

    id: str
    node: str | None = None
    """The machine it runs or ran on."""
    loan: int = 0
    """The loan that an extra worker belongs to."""
    running: bool = False
    """Its process runs, as far as is known."""
    started_at: float | None = None
    ready: bool = True
    """For a program: its readiness probe, if any, has succeeded."""
    silent: bool = False
    """Its node does not report, so that it may run or not."""
    lost: Reason | None = None
    """The reason for which it counts as lost, whether or not it still runs: its node or its GPUs are gone."""
    removed: bool = False
    """It is being deleted."""
    stuck: tuple[float, str] | None = None
    """The time since which its node cannot start it, and the cause."""
    stuck_by_node: bool = False
    """The program has no part in its being stuck."""
    end: End | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A job's base workers and its leader's report at a moment."""

    base: tuple[WorkerStart | None, ...] = ()
    """Workers of the current attempt by index; None where there is none."""
    extra_bound: int = 0
    """Number of extra workers that have their GPUs."""
    extra_running: int = 0
    """Number of extra workers whose processes run."""
    extra_ended: tuple[WorkerStart, ...] = ()
    """Extra workers that have ended."""
    refused: bool = False
    """A base worker cannot start: kube-scheduler finds no node for it, the API server refuses its pod, or the kubelet
    cannot start it."""
    invalid: str = ""
    """The fault for which the API server will never accept a base worker's pod; empty where it may."""
    extra_refused: bool = False
    """As `refused`, for an extra worker; or it has scheduling gates."""
    gated: int = 0
    """Number of base workers with scheduling gates, which do not want their GPUs yet."""
    report: Report | None = None
    """The last report of the current or an earlier leader."""
    reporter: str = ""
    """The incarnation that wrote the report."""
    reported_at: float = 0.0
    """Time of the report, on the backend's clock."""
    program: bool = False
    """The leader is a program that reports nothing: it trains once it runs and is ready."""
    unread: bool = False
    """The last lines of the ended program have not been read yet."""

    def worker(self, index: int) -> WorkerStart | None:
        """Return base worker `index`; None where there is none."""
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
        """Whether the leader's process may run unseen, as its node does not report."""
        return self.leader_runs and self.leader is not None and self.leader.silent

    @property
    def fresh(self) -> bool:
        """Whether the report is by the current leader; for a program, whether it is ready and so trains."""
        if self.program:
            return self.phase is TrainerPhase.TRAINING
        leader = self.leader
        return leader is not None and self.report_of(leader.id) is not None

    @property
    def phase(self) -> TrainerPhase:
        """The phase last reported by the current leader; for a program, the phase derived from its container."""
        if self.program:
            trains = self.leader is not None and self.leader.started_at is not None and self.leader.ready
            return TrainerPhase.TRAINING if trains else TrainerPhase.STARTING
        return self.report.phase if self.fresh and self.report is not None else TrainerPhase.STARTING

    @property
    def trains(self) -> bool:
        """Whether the current leader's training goes on, by its report: another trainer must not end by itself then."""
        return not self.program and self.phase in (TrainerPhase.TRAINING, TrainerPhase.ADAPTING)

    def after(self, before: Observation) -> Observation:
        """Return the observation that follows `before`: a leader that was ready once stays past its start-up."""
        leader, earlier = self.leader, before.leader
        if leader is None or leader.ready or earlier is None or earlier.id != leader.id or not earlier.ready:
            return self
        return replace(self, base=(replace(leader, ready=True), *self.base[1:]))

    def report_of(self, incarnation: str) -> Report | None:
        """Return the last report if this incarnation of the leader wrote it."""
        return self.report if self.report is not None and incarnation and self.reporter == incarnation else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The scheduler's current grant: `espalier_core.types.allocation.Allocation` on the backend's clock."""

    generation: int = 0
    replicas: int = 0
    gpus: int = 0
    direction: Direction = Direction.NONE
    reason: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWatch:
    """The scheduler's observations of a leader, by its own clock: other clocks, and the leader, may be wrong."""

    incarnation: str = ""
    since: float | None = None
    """Time since which it runs; None before that."""
    done_since: float | None = None
    """Time since which it reports its end; None while it does not."""
    heard: bool = False
    """It has reported."""
    out_of_reach: bool = False
    """Its node did not report at the last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(JobRecord):
    """The state of one job.

    Its status keeps all but `ended`, `refused_since`, `unpinned`, `watch`, `incomplete` and `stopped_itself`, which a
    scheduler observes anew when it starts.
    """

    submitted_at: float | None = None
    grant: Grant = field(default_factory=Grant)
    extra_generation: int = 0
    """A number that rises with each loan; the names of its workers contain it."""
    promised_until: float | None = None
    """Time until which it counts as holding all its extra workers, even where fewer are seen."""
    restarts: int = 0
    attempts: tuple[int, ...] = ()
    """Number of replacements of each base worker."""
    incarnations: tuple[str, ...] = ()
    """The last seen incarnation of each base worker at this attempt; empty for none yet."""
    not_before: float | None = None
    """Time before which a failed worker is not started again."""
    unpinned: bool = field(default=False, compare=False)
    """kube-scheduler has refused the node chosen for a base worker, and chooses itself until the job has trained."""
    unplaced: int = 0
    """Number of grants in a row that could not be used: workers were refused, or no node was found for them."""
    extra_losses: int = 0
    """Number of loans in a row whose workers ended by themselves or were ended from outside."""
    outcome: Ended | None = None
    """The outcome of the job; None before its end."""
    watch: LeaderWatch = field(default=LeaderWatch(), compare=False)
    """The observed history of the current leader."""
    incomplete: bool = field(default=False, compare=False)
    """It has not trained since it was admitted, and one of its base workers does not run: its budgets stand still."""
    stopped_itself: bool = False
    """A leader ended as if stopped, without a request: from now on start-ups count towards the budget."""

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
        """Return the number of extra workers announced to the leader, which is those that ran."""
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
        """Return the completed workers among the base workers of `terms`."""
        return tuple(index for index in self.completed_workers if index < terms.min_replicas)

    def needed(self, terms: JobTerms) -> JobTerms:
        """Return `terms` with only the workers that still need GPUs."""
        done = len(self.completed(terms))
        if not done:
            return terms
        return replace(terms, min_replicas=terms.min_replicas - done, max_replicas=terms.max_replicas - done)

    def may_start(self, terms: JobTerms, now: float) -> bool:
        """Return whether missing base workers may be started at `now`."""
        waits = self.not_before is not None and now < self.not_before
        return self.active and not self.ending and not waits and self.failures <= terms.backoff_limit

    def watch_of(self, incarnation: str) -> LeaderWatch:
        """Return the watch of this leader; an empty one if another leader was watched last."""
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
    """Waiting times of a backend, in seconds of its clock."""

    start_up_allowance: float = 120.0
    """Run time after which a leader without reports counts as training."""
    promise: float = 120.0
    """Maximum time from the grant of extra workers until they are bound to a node."""
    restart: float = 1.0
    """Delay before the first restart of a failed worker; doubles with each failure, up to `max_restart`."""
    max_restart: float = 60.0
    rejected_restart: float = 10.0
    """Delay before the restart of a worker that ended before it began (its node refused it)."""
    refusal: float = 20.0
    """Maximum time from the grant of extra workers until they are given up if they are refused."""
    report: float = 3.0
    """Maximum delay of a leader's last report after its end."""
    leave: float = 3.0
    """Uncounted time from a leader's last report until its end: libraries take a while to unload."""
    linger: float = 60.0
    """Maximum time from a leader's last report until it ends."""
    hold: float = 60.0
    """Delay before a job that could not use its grant is granted GPUs again; doubles each time in a row, up to
    `max_hold`."""
    max_hold: float = 3600.0
    gap: float = 30.0
    """Maximum time between two observations by a running scheduler."""
    quiet: float = 25.0
    """Maximum age of a training leader's report: it reports every ten seconds, unless one step takes longer."""

    def held(self, times: int) -> float:
        """Return the delay of the next grant after `times` failed attempts in a row."""
        return doubled(self.hold, times, self.max_hold)

    def scaled(self, scale: float) -> Timing:
        """Return these times for a clock that advances `scale` seconds per second of this one."""
        return Timing(**{name: scale * getattr(self, name) for name in self.__dataclass_fields__})
