"""One job of a local run: its leader process, its files, its account."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from espalier_api.allocation import Allocation, AllocationDocument, Direction, TimeBudget
from espalier_api.documents import write_text_atomically
from espalier_api.events import (
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    JobChanged,
    Warned,
)
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import Report, TrainerPhase
from espalier_api.status import JobPhase
from espalier_operator.facts import Ended, Reclaim, Stopping, Terms
from espalier_operator.job.budget import Leader, Meter
from espalier_operator.job.ends import Failure, judge_exit
from espalier_operator.local.command import command_of, contract_variables
from espalier_operator.local.crew import Crew, Place
from espalier_operator.local.files import AllocationFile, ReportFile
from espalier_operator.local.history import History
from espalier_operator.local.layout import ALLOCATION_FILE, CHECKPOINT_FOLDER, JOB_FILE, REPORT_FILE, TRAINER_LOG
from espalier_operator.local.process import Process
from espalier_operator.local.state import JobState

PID_FILE = "trainer.pid"
_PAST = (TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED)
_MAX_RESTART_WALL_SECONDS = 60.0


class _Stamp(TypedDict):
    time: datetime
    used_seconds: float


class LocalJob:
    """Mutable: the one place where what is known of a local job lies. Decides nothing about GPUs."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        directory: Path,
        terms: Terms,
        on_event: Callable[[str, AnyEvent], None],
        stop_wall_seconds: float,
    ) -> None:
        """Make the folder; `open` takes up what is in it. Workers that are to end get `stop_wall_seconds` for it."""
        self.job, self.directory, self.terms = job, directory, terms
        self.key, self.name = job.key, job.metadata.name
        self.process: Process | None = None
        self.report: Report | None = None
        self.fresh = False
        """Whether `report` is of the running process."""
        self.meter = Meter()
        self.allocation = Allocation()
        self.phase, self.reason, self.message = JobPhase.PENDING, Reason.NO_FREE_GPU, ""
        self.submitted_at: float | None = None
        self.admitted_at: float | None = None
        self.extra = 0
        self.reclaim: Reclaim | None = None
        self.granted_at: float | None = None
        self.changed_at: float | None = None
        self.stopping: Stopping | None = None
        self.ended: Ended | None = None
        self.trained = False
        self.failures = self.restarts = self.preemptions = 0
        self.last_failure = ""
        self.exit_code: int | None = None
        self.start_at = 0.0
        """Monotonic wall time before which the leader is not started."""
        self._said: tuple[JobPhase, Reason, str] | None = None
        self.acknowledged = 0
        self._counting = False
        self._allocated_at = 0.0
        self._stale: str | None = None
        self._complaint = ""
        directory.mkdir(parents=True, exist_ok=True)
        self._allocation_file = AllocationFile(directory / ALLOCATION_FILE)
        self._reports = ReportFile(directory / REPORT_FILE, (self.key, self.name))
        self.crew = Crew(directory, self.warn, stop_wall_seconds)
        self.history = History(directory, lambda event: on_event(self.name, event))

    # ---- what it is

    @property
    def finished(self) -> bool:
        """Whether its outcome is recorded."""
        return self.phase in (JobPhase.COMPLETE, JobPhase.FAILED)

    @property
    def leader(self) -> Leader:
        """What the leader does, as far as budgets go."""
        if self.process is None or self.report_phase in _PAST:
            return Leader.ABSENT
        return Leader.STARTING if self.report_phase is TrainerPhase.STARTING else Leader.TRAINING

    @property
    def report_phase(self) -> TrainerPhase:
        """What the running leader last said it does."""
        return self.report.phase if self.fresh and self.report is not None else TrainerPhase.STARTING

    # ---- its folder

    def open(self, source: str | None, state: JobState | None) -> None:
        """Write the job into its folder, and take up what an earlier run left there."""
        text = source if source is not None else json.dumps(self.job.to_json(), indent=2) + "\n"
        write_text_atomically(self.directory / JOB_FILE, text)
        self.report = self._reports.poll()
        if state is None:
            return
        reported = self.report.used_seconds if self.report is not None else 0.0
        self.submitted_at = state.submitted_at
        self.meter = Meter(used_seconds=max(state.used_seconds, reported), gpu_seconds_used=state.gpu_seconds_used)
        self.allocation = Allocation(generation=state.generation)
        self.failures, self.restarts, self.preemptions = state.failures, state.restarts, state.preemptions
        if state.phase in (JobPhase.COMPLETE, JobPhase.FAILED):
            self.phase, self.reason, self.message = state.phase, state.reason, state.message
            self.exit_code = state.exit_code

    def set_phase(self, phase: JobPhase, reason: Reason, message: str = "") -> None:
        """Record where the job stands, with an event if that is news."""
        self.phase, self.reason, self.message = phase, reason, message
        if self._said != (phase, reason, message):
            self._said = (phase, reason, message)
            self.history.add(JobChanged(**self.stamp(), phase=phase, reason=reason, message=message))

    def warn(self, reason: str, message: str) -> None:
        """Record something that does not stop the job."""
        self.history.add(Warned(**self.stamp(), reason=reason, message=message))

    def interrupt(self) -> None:
        """Record that the run ends, if the job has not."""
        if self.ended is not None and not self.finished:
            phase = JobPhase.FAILED if self.ended.failed else JobPhase.COMPLETE
            self.set_phase(phase, self.ended.reason, self.ended.message or SENTENCES[self.ended.reason])
        elif not self.finished and self.reason not in (Reason.TOO_LARGE, Reason.SUSPENDED):
            self.set_phase(JobPhase.SUSPENDED, Reason.INTERRUPTED, SENTENCES[Reason.INTERRUPTED])

    # ---- its allocation

    def allocate(self, replicas: int, direction: Direction, reason: Reason, wall_seconds: float | None) -> None:
        """Write a new allocation; `wall_seconds` from now is its deadline."""
        now = datetime.now(UTC)
        deadline = None if wall_seconds is None else datetime.fromtimestamp(now.timestamp() + wall_seconds, UTC)
        self.allocation = Allocation(
            generation=self.allocation.generation + 1,
            replicas=replicas,
            gpus=replicas * self.terms.gpus_per_worker,
            direction=direction,
            reason=reason,
            deadline=deadline,
        )
        self._allocated_at = time.monotonic()
        self.write_allocation()
        self.history.add(AllocationChanged(**self.stamp(), allocation=self.allocation))

    def write_allocation(self) -> None:
        """Write the allocation file as things stand."""
        spec = self.job.spec
        document = AllocationDocument(
            job=self.key,
            allocation=self.allocation,
            time_budget=TimeBudget(
                budget_seconds=spec.time_budget_seconds,
                used_seconds=self.meter.used_seconds,
                gpu_seconds_used=self.meter.gpu_seconds_used,
            ),
            base_replicas=spec.min_replicas,
            stop=None if self.stopping is None else self.stopping.reason,
        )
        trouble = self._allocation_file.write(document)
        if trouble is not None:
            self.warn("AllocationNotWritten", trouble)

    # ---- its leader

    def start(self, default_command: Sequence[str], agent_url: str | None, extra: dict[str, str]) -> None:
        """Start the leader."""
        (self.directory / CHECKPOINT_FOLDER).mkdir(exist_ok=True)
        self.write_allocation()
        self._stale = self.report.incarnation if self.report is not None else None
        self.fresh = False
        self.exit_code = None
        self.process = Process(
            command_of(self.job) or default_command,
            {**os.environ, **contract_variables(self.directory, agent_url), **extra},
            self.directory / TRAINER_LOG,
            self.directory / PID_FILE,
        )

    def train_together(self, places: Sequence[Place], default_command: Sequence[str], extra: dict[str, str]) -> None:
        """Let the processes of these places run beside the leader, and no others."""
        if self.process is None and self.crew.has_ended:
            return  # the leader is first
        variables = {**contract_variables(self.directory, None), **extra}
        self.crew.look(places, command_of(self.job) or default_command, variables)

    def failed(self, message: str, restart_wall_seconds: float) -> None:
        """Count a failure of the leader and put its next start off, twice as long each time."""
        self.failures += 1
        self.last_failure = message
        if self.failures <= self.terms.backoff_limit:
            wait = restart_wall_seconds * 2 ** (self.failures - 1)
            self._start_again(message, min(wait, _MAX_RESTART_WALL_SECONDS))

    def look(self, now: float, gpus: int, allowance: float, restart_wall_seconds: float) -> bool:
        """Read the leader's files, account for the time, notice its end; return whether anything is news."""
        before = self._standing()
        self._allocation_file.retry()
        leader = self.leader
        code = self.process.poll() if self.process is not None else None
        damaged = self.history.follow()
        if damaged:
            self.warn("DamagedEvents", f"{damaged} new lines of the leader's events file are no events")
        self._read_report()
        if self.leader is Leader.TRAINING or leader is Leader.TRAINING:
            leader = Leader.TRAINING
            # One that waits again trains no more, though its last leader takes a moment to end.
            if self.admitted_at is not None and (not self.trained or self.phase is not JobPhase.RUNNING):
                self.trained = True
                if not self.finished and self.stopping is None:
                    self.set_phase(JobPhase.RUNNING, Reason.RUNNING)
        reported = self.report.used_seconds if self.fresh and self.report is not None else 0.0
        used = self.meter.used_seconds
        self.meter = self.meter.advance(now, leader, gpus, allowance, reported)
        self._counting = self.meter.used_seconds > used
        if code is not None:
            self._exited(code, restart_wall_seconds)
        return before != self._standing()

    # ---- within

    def _standing(self) -> tuple[object, ...]:
        """Return all that the planner should be woken for when it changes."""
        return (self.leader, self.acknowledged, self._counting, self.process is None, self.ended)

    def _read_report(self) -> None:
        report = self._reports.poll()
        if self._reports.complaint != self._complaint:
            self._complaint = self._reports.complaint
            if self._complaint:
                self.warn("UnreadableReport", f"{self._complaint}; going on without it")
        if report is None:
            return
        self.report = report
        self.fresh = self.process is not None and report.incarnation != self._stale
        if not self.fresh or report.acknowledged_generation <= self.acknowledged:
            return
        self.acknowledged = min(report.acknowledged_generation, self.allocation.generation)
        if self.acknowledged == self.allocation.generation:
            seconds = time.monotonic() - self._allocated_at
            self.history.add(AllocationAcknowledged(**self.stamp(), generation=self.acknowledged, seconds=seconds))

    def _exited(self, code: int, restart_wall_seconds: float) -> None:
        demanded = self.process is not None and self.process.is_ending
        self.process, self.exit_code = None, code
        verdict = judge_exit(code, self.report if self.fresh else None)
        if isinstance(verdict, Ended):
            if not self.finished and not (demanded and verdict.failed):
                self.ended = verdict
            return
        if demanded or self.finished or self.stopping is not None:
            return
        if isinstance(verdict, Failure):
            self.failed(verdict.message, restart_wall_seconds)
        else:
            self.preemptions += 1
            self._start_again(verdict.message, restart_wall_seconds)

    def _start_again(self, message: str, wait: float) -> None:
        self.restarts += 1
        self.start_at = time.monotonic() + wait
        text = f"{message}; started again in {wait:g} s"
        self.set_phase(JobPhase.STARTING, Reason.TRAINER_FAILED, text)

    def stamp(self) -> _Stamp:
        """Return what each event of the job begins with."""
        return {"time": datetime.now(UTC), "used_seconds": self.meter.used_seconds}
