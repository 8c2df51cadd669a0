"""What a backend sees of a job's base workers and of its leader's report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase

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
class Incarnation:
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

    base: tuple[Incarnation | None, ...] = ()
    """By index, those of the current attempt; None where there is none."""
    extra_bound: int = 0
    """Extra workers that have their GPUs."""
    extra_running: int = 0
    """Those of them whose processes run."""
    extra_ended: tuple[Incarnation, ...] = ()
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

    def worker(self, index: int) -> Incarnation | None:
        """Return base worker `index`, None where there is none."""
        return self.base[index] if index < len(self.base) else None

    @property
    def leader(self) -> Incarnation | None:
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
