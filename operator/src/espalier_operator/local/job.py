"""One job of a local run: its state, its leader's process, its files."""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from espalier_api.allocation import Allocation
from espalier_api.causes import cause_in
from espalier_api.documents import write_text_atomically
from espalier_api.events import (
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    JobChanged,
    ProgressRead,
    Warned,
)
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.measurements import Measurements, has_new_configuration, merged
from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import Report
from espalier_api.signal import allocation_document
from espalier_api.status import JobPhase
from espalier_operator.actions import Action, Admit, Fail, Finish, ReleaseExtra, Requeue
from espalier_operator.facts import Ended, JobFacts, Stopping, Terms
from espalier_operator.job import ends, progress, transitions
from espalier_operator.job.budget import Leader
from espalier_operator.job.conditions import phase_of
from espalier_operator.job.observation import End, Incarnation, Observation
from espalier_operator.job.state import JobState, Timing
from espalier_operator.job.status import Wall, allocation_of, memory_of
from espalier_operator.job.view import facts_of
from espalier_operator.local.files import AllocationFile, ReportFile, size, tail
from espalier_operator.local.history import History
from espalier_operator.local.layout import (
    ALLOCATION_FILE,
    CHECKPOINT_FOLDER,
    JOB_FILE,
    REPORT_FILE,
    TRAINER_LOG,
    command_of,
    contract_variables,
    program_variables,
)
from espalier_operator.local.process import Process
from espalier_operator.local.progress import LocalProgress
from espalier_operator.local.state import KeptJob, begins_again, begun_again, digest, resumed
from espalier_operator.local.workers import Workers, WorkerSpec

PID_FILE = "trainer.pid"
PROGRESS_WALL_SECONDS = 1.0
"""Between two events about the progress of a program."""
Starter = Callable[..., Process]
"""Starts a process: `Process`, or a replacement in tests."""


class _Stamp(TypedDict):
    time: datetime
    used_seconds: float


class LocalJob:
    """A job's state, updated from its process and its files. Makes no decisions about GPUs."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        directory: Path,
        terms: Terms,
        timing: Timing,
        wall: Wall,
        on_event: Callable[[str, AnyEvent], None],
        stop_wall_seconds: float,
        start: Starter = Process,
    ) -> None:
        """Make the folder; `open` resumes from its contents.

        `wall` converts times of the scheduler's clock to times of day. Workers have `stop_wall_seconds` to end.
        """
        self.job, self.directory, self.terms = job, directory, terms
        self.key, self.name = job.key, job.metadata.name
        self._timing, self._wall, self._start = timing, wall, start
        self.state = JobState()
        self.seen = Observation()
        self.process: Process | None = None
        self.report: Report | None = None
        self.measurements = Measurements()
        """What its trainers measured, over all attempts."""
        self.leader = Leader.ABSENT
        """What the leader does, as far as it matters for budgets."""
        self.allocation = Allocation()
        """The document that was written last."""
        self.phase, self.reason, self.message = JobPhase.PENDING, Reason.NO_FREE_GPU, ""
        self.exit_code: int | None = None
        self._incarnation: Incarnation | None = None
        self._attempt = 0
        """The attempt of `_incarnation`."""
        self._earlier: str | None = None
        """The name of the leader in the report before `_incarnation`."""
        self._fresh = False
        """Whether `report` is of `_incarnation`."""
        self._reported_at = 0.0
        self._acknowledged = 0
        self._allocated_at = 0.0
        self._said: tuple[JobPhase, Reason, str] | None = None
        self._complaint = ""
        self._log_began = 0
        """Bytes of the trainer's log that earlier leaders have written."""
        directory.mkdir(parents=True, exist_ok=True)
        self._allocation_file = AllocationFile(directory / ALLOCATION_FILE)
        self._reports = ReportFile(directory / REPORT_FILE, (self.key, self.name))
        program = job.spec.program
        self.progress = LocalProgress(None if program is None else program.progress, directory / TRAINER_LOG)
        """Of a program."""
        self._untold = False
        """Whether a value was read that no event has reported yet."""
        self._told_at = -math.inf
        self.workers = Workers(directory, self.warn, stop_wall_seconds, start)
        self.history = History(directory, lambda event: on_event(self.name, event))

    @property
    def finished(self) -> bool:
        """Whether its outcome is recorded."""
        return self.state.outcome is not None

    @property
    def has_processes(self) -> bool:
        """Whether each of its workers is a process; otherwise there is one, which stands for all."""
        return self.terms.program or self.job.spec.training.elastic_batch is not None

    # ---- its folder

    def open(self, source: str | None, kept: KeptJob | None) -> None:
        """Write the job into its folder, and resume from what an earlier run left there."""
        text = source if source is not None else json.dumps(self.job.to_json(), indent=2) + "\n"
        write_text_atomically(self.directory / JOB_FILE, text)
        if kept is not None and begins_again(kept, self.directory):
            kept = begun_again(kept)
            (self.directory / REPORT_FILE).unlink(missing_ok=True)  # a leader would go on from the time that it says
        self.report = self._reports.poll()
        if self.report is not None:
            self.measurements = self.report.measurements
        if kept is None:
            return
        ended = kept.state.outcome
        if ended is not None and ended.failed:
            self.warn(
                "TakenUpAgain", f"it had failed ({ended.reason}: {ended.message}); it continues from its checkpoint"
            )
        self.state = resumed(kept.state, self.terms)
        self.allocation = Allocation(generation=self.state.grant.generation)
        outcome = self.state.outcome
        if outcome is not None:
            self.phase = JobPhase.COMPLETE
            self.reason, self.message, self.exit_code = outcome.reason, outcome.message, kept.exit_code

    def kept(self) -> KeptJob:
        """Return the part of it that is kept on disk."""
        return KeptJob(job=self.key, spec_digest=digest(self.job), state=self.state, exit_code=self.exit_code)

    def stamp(self) -> _Stamp:
        """Return the common fields of the job's events."""
        return {"time": datetime.now(UTC), "used_seconds": self.state.used_seconds}

    def warn(self, reason: str, message: str) -> None:
        """Record a warning that does not stop the job."""
        self.history.add(Warned(**self.stamp(), reason=reason, message=message))

    # ---- what is decided about it

    def facts(self, now: float) -> JobFacts:
        """Return the facts that the planner reads."""
        measured, done = self.measurements, self.progress.reading.fraction
        return facts_of(self.key, self.state, self.seen, self.terms, now, self._timing, measured=measured, done=done)

    def act(self, action: Action, now: float) -> None:
        """Apply a decision and publish it; budgets are counted up to now first, with the GPUs held until now."""
        before = progress.look(self.state, self.seen, self.terms, now, self._timing)
        self.state = transitions.after(before, action, self.terms, now, self._timing)
        match action:
            case Admit():
                self._stands(now, action.reason)
            case Requeue():
                self._stands(now, action.reason, SENTENCES[action.reason])
            case Finish() | Fail() if self.state.outcome is not None:
                self._stands(now, self.state.outcome.reason, self.state.outcome.message)
            case ReleaseExtra(forced=True):
                self.warn(action.reason, SENTENCES[action.reason])
        self.seen = self._observe()
        self.state = progress.look(self.state, self.seen, self.terms, now, self._timing)
        if self.finished:
            return  # its leader, if there is one, is being ended: further grants do not matter
        if self.state.grant != before.grant:
            self._allocated_at = time.monotonic()
            self.allocation = allocation_of(self.state.grant, self._wall)
            self.write_allocation()
            self.history.add(AllocationChanged(**self.stamp(), allocation=self.allocation))
        elif self.state.stopping != before.stopping:
            self.write_allocation()

    def submit(self, now: float) -> None:
        """Make it visible to the planner from now on."""
        self.state = replace(self.state, submitted_at=now)

    def waits(self, reason: Reason, now: float) -> None:
        """Record why it gets no GPUs, if it has none."""
        if self.state.admitted_at is None and not self.finished:
            self._stands(now, reason, SENTENCES[reason])

    def lose(self, reason: Reason) -> None:
        """Kill the leader: its GPUs are gone."""
        if self.process is not None and self._incarnation is not None:
            self._incarnation = replace(self._incarnation, lost=reason)
            self.process.kill()

    def interrupt(self, now: float) -> None:
        """Count no further end as a failure: the run is about to end all processes."""
        if self.state.active and self.state.stopping is None:
            self.state = replace(self.state, stopping=Stopping(reason=Reason.INTERRUPTED, deadline=now))

    def close(self, now: float) -> None:
        """Record that the run ends, if the job has not."""
        ended = self.state.ended
        if ended is not None and not self.finished:
            kind = Fail if ended.failed else Finish
            self.act(kind(job=self.key, reason=ended.reason, message=ended.message), now)
        elif not self.finished and self.reason not in (Reason.TOO_LARGE, Reason.SUSPENDED):
            self._record_phase(JobPhase.SUSPENDED, Reason.INTERRUPTED, SENTENCES[Reason.INTERRUPTED])

    def write_allocation(self) -> None:
        """Write the current allocation to its file."""
        memory = memory_of(self.state, self.terms, self._wall).model_copy(update={"allocation": self.allocation})
        trouble = self._allocation_file.write(allocation_document(self.job, memory))
        if trouble is not None:
            self.warn("AllocationNotWritten", trouble)

    # ---- its processes

    def may_start(self, now: float) -> bool:
        """Return whether its leader may be started."""
        return self.process is None and self.state.may_start(self.terms, now)

    def start(self, now: float, default_command: Sequence[str], agent_url: str | None, extra: dict[str, str]) -> None:
        """Start the leader, or record why it cannot be started."""
        (self.directory / CHECKPOINT_FOLDER).mkdir(exist_ok=True)
        self.write_allocation()
        self._earlier = self.report.incarnation if self.report is not None else None
        self._fresh, self.exit_code = False, None
        self.progress.begin()
        self._log_began = size(self.directory / TRAINER_LOG)
        try:
            self.process = self._start(
                command_of(self.job) or default_command,
                {
                    **os.environ,
                    **contract_variables(self.directory, agent_url),
                    **program_variables(self.job),
                    **extra,
                },
                self.directory / TRAINER_LOG,
                self.directory / PID_FILE,
            )
        except (FileNotFoundError, PermissionError) as error:
            ended = Ended(reason=Reason.TRAINER_FAILED, failed=True, message=f"cannot be started: {error}")
            self.state = replace(self.state, ended=ended)
        except OSError as error:
            before, message = self.state, f"cannot be started: {error}"
            self.state = ends.failed(before, 0, message, self.terms, now, self._timing)
            self._record_restart(before, now)
        else:
            self._attempt = self.state.attempts[0]
            self._incarnation = Incarnation(id=uuid.uuid4().hex, running=True, started_at=now)

    def end_program(self) -> None:
        """End a program that is to stop: nobody but SIGTERM tells it."""
        if self.process is not None and self.job.spec.template is not None:
            self.process.terminate(self.job.spec.template.spec.grace_seconds)

    def train_together(
        self, wanted: Sequence[WorkerSpec], default_command: Sequence[str], extra: dict[str, str], now: float
    ) -> None:
        """Let the processes of these workers run in addition to the leader, and no others."""
        if self.process is None and self.workers.has_ended:
            return  # the leader is first
        variables = {**contract_variables(self.directory, None), **program_variables(self.job), **extra}
        may_start = self.state.may_start(self.terms, now)
        self.workers.look(wanted, command_of(self.job) or default_command, variables, now, may_start)

    # ---- looking

    def look(self, now: float) -> bool:
        """Read the leader's files, account for the time, notice its end; return whether anything is news."""
        before, standing, measured = self.state, self._standing(), self.measurements
        self._allocation_file.retry()
        code = self.process.poll() if self.process is not None else None
        damaged = self.history.follow()
        if damaged:
            self.warn("DamagedEvents", f"{damaged} new lines of the leader's events file are not events")
        self._read_report(now)
        self._read_progress(ended=code is not None)
        if code is not None and self._incarnation is not None:
            self.process, self.exit_code = None, code
            said = "" if code == 0 else cause_in(tail(self.directory / TRAINER_LOG, self._log_began))
            end = End(code=code, at=now, external=False, message=said)
            self._incarnation = replace(self._incarnation, running=False, end=end)
        self.seen = self._observe()
        self.state = progress.look(before, self.seen, self.terms, now, self._timing)
        if self.state.attempts != before.attempts:
            self._record_restart(before, now)
            self.seen = self._observe()
        self.leader = progress.leader_of(self.state, self.seen, now, self._timing)
        goes_on = self.state.active and self.state.stopping is None
        if goes_on and self.leader is Leader.TRAINING and self.phase not in (JobPhase.RUNNING, JobPhase.EVALUATING):
            self._stands(now, Reason.RUNNING)
        return standing != self._standing() or has_new_configuration(measured, self.measurements)

    # ---- within

    def _observe(self) -> Observation:
        attempts = self.state.attempts
        current = self._incarnation if attempts and self._attempt == attempts[0] else None
        return Observation(
            base=(current, *map(self.workers.incarnation, range(1, len(attempts)), attempts[1:])),
            extra_bound=self.state.extra,  # they have their GPUs before these are granted
            extra_running=self.state.extra,
            report=self.report,
            reporter=self._incarnation.id if self._fresh and self._incarnation is not None else "",
            reported_at=self._reported_at,
            program=self.terms.program,
        )

    def _standing(self) -> tuple[Any, ...]:
        """Return the values whose changes must wake the planner."""
        essence = replace(self.state, used_seconds=0.0, gpu_seconds_used=0.0, counted_until=None)
        return (self.leader, self._acknowledged, self.process is None, essence)

    def _read_report(self, now: float) -> None:
        report = self._reports.poll()
        if self._reports.complaint != self._complaint:
            self._complaint = self._reports.complaint
            if self._complaint:
                self.warn("UnreadableReport", f"{self._complaint}; continuing without it")
        if report is None:
            return
        self.report, self._reported_at = report, now
        self.measurements = merged(self.measurements, report.measurements)
        self._fresh = self.process is not None and report.incarnation != self._earlier
        generation = self.allocation.generation
        if self._fresh and self._acknowledged < min(report.acknowledged_generation, generation):
            self._acknowledged = min(report.acknowledged_generation, generation)
            if self._acknowledged == generation:
                seconds = time.monotonic() - self._allocated_at
                self.history.add(AllocationAcknowledged(**self.stamp(), generation=generation, seconds=seconds))

    def _read_progress(self, *, ended: bool) -> None:
        """Read the progress of a program, and tell it: rarely, and at its end."""
        self._untold |= self.progress.poll(ended)
        now = time.monotonic()
        if self._untold and (ended or now >= self._told_at + PROGRESS_WALL_SECONDS):
            self._untold, self._told_at, reading = False, now, self.progress.reading
            self.history.add(
                ProgressRead(
                    **self.stamp(),
                    step=reading.step,
                    epoch=reading.epoch,
                    done=reading.fraction,
                    metrics=reading.figures,
                )
            )

    def _record_restart(self, before: JobState, now: float) -> None:
        """Record that the leader must be restarted, unless its GPUs are gone: then the planner decides."""
        lost = self._incarnation is not None and self._incarnation.lost is not None
        leads = self.state.restarts > before.restarts
        fails = before.failures < self.state.failures <= self.terms.backoff_limit
        if lost or not (leads or fails):
            return
        wait = 0.0 if self.state.not_before is None else self.state.not_before - now
        seconds = (self._wall(now + wait) - self._wall(now)).total_seconds()
        text = f"{self.state.last_failure}; started again in {seconds:.3g} s"
        if leads:
            self._record_phase(JobPhase.STARTING, Reason.TRAINER_FAILED, text)
        else:
            self.warn("WorkerFailed", text)

    def _stands(self, now: float, reason: Reason, message: str = "") -> None:
        self._record_phase(phase_of(self.facts(now), self.state.outcome), reason, message)

    def _record_phase(self, phase: JobPhase, reason: Reason, message: str) -> None:
        """Record the job's phase and reason, with an event if they changed."""
        self.phase, self.reason, self.message = phase, reason, message
        if self._said != (phase, reason, message):
            self._said = (phase, reason, message)
            self.history.add(JobChanged(**self.stamp(), phase=phase, reason=reason, message=message))
