"""One job of a local run: its state, its leader's process, its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier_core.files.documents import write_text_atomically
from espalier_core.types.allocation import Allocation
from espalier_core.types.events import AllocationAcknowledged, AllocationChanged, AnyEvent, ProgressRead
from espalier_core.types.job import AdaptiveTrainingJob, allocation_document
from espalier_core.types.measurements import has_new_configuration
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.status import JobPhase
from espalier_operator.job import ends, progress, transitions
from espalier_operator.job.conditions import phase_of
from espalier_operator.job.progress import Leader
from espalier_operator.job.state import JobState, Observation, Timing
from espalier_operator.job.view import Wall, allocation_of, facts_of, memory_of
from espalier_operator.local.files import (
    CHECKPOINT_FOLDER,
    JOB_FILE,
    REPORT_FILE,
    TRAINER_LOG,
    HistoryFile,
    LeaderFiles,
    SchedulerJournal,
    command_of,
    contract_variables,
    program_variables,
)
from espalier_operator.local.process import Process
from espalier_operator.local.progress import LocalProgress
from espalier_operator.local.settings import KeptJob, begins_again, begun_again, digest, resumed
from espalier_operator.local.workers import LeaderProcess, LocalWorkers, Starter, WorkerSpec
from espalier_operator.model import Ended, JobFacts, JobTerms, Stopping
from espalier_operator.model.actions import Action, Admit, Fail, Finish, ReleaseExtra, Requeue


class LocalJob:
    """A job's state, updated from its process and its files. Makes no decisions about GPUs."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        directory: Path,
        terms: JobTerms,
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
        self._timing, self._wall = timing, wall
        self.state = JobState()
        self.seen = Observation()
        self.leader = Leader.ABSENT
        """The leader's activity for the budgets."""
        directory.mkdir(parents=True, exist_ok=True)
        self.journal = SchedulerJournal(
            HistoryFile(directory, lambda event: on_event(self.name, event)), self._used_seconds
        )
        self.leader_files = LeaderFiles(directory, (self.key, self.name), self.journal.warn)
        self.leading = LeaderProcess(directory, start)
        program = job.spec.program
        self.progress = LocalProgress(None if program is None else program.progress, directory / TRAINER_LOG)
        """Progress of a program."""
        self.workers = LocalWorkers(directory, self.journal.warn, stop_wall_seconds, start)

    def _used_seconds(self) -> float:
        return self.state.used_seconds

    @property
    def finished(self) -> bool:
        """Whether its outcome is recorded."""
        return self.state.outcome is not None

    @property
    def process(self) -> Process | None:
        """The leader's process, while it runs."""
        return self.leading.process

    @property
    def has_processes(self) -> bool:
        """Whether each of its workers is a process; otherwise one process stands for all."""
        return self.terms.program or self.job.spec.training.elastic_batch is not None

    # ---- its folder

    def open(self, source: str | None, kept: KeptJob | None) -> None:
        """Write the job into its folder, and resume from what an earlier run left there."""
        text = source if source is not None else json.dumps(self.job.to_json(), indent=2) + "\n"
        write_text_atomically(self.directory / JOB_FILE, text)
        goes_on = "it continues from its checkpoint"
        if kept is not None and begins_again(kept, self.directory):
            kept, goes_on = begun_again(kept), "it left no checkpoint, and starts from the beginning"
            (self.directory / REPORT_FILE).unlink(missing_ok=True)  # a leader would go on from its used time
        self.leader_files.resume()
        if kept is None:
            return
        ended = kept.state.outcome
        if ended is not None and ended.failed:
            self.journal.warn("TakenUpAgain", f"it had failed ({ended.reason}: {ended.message}); {goes_on}")
        self.state = resumed(kept.state, self.terms, self.leader_files.report)
        self.leader_files.allocation = Allocation(generation=self.state.grant.generation)
        outcome = self.state.outcome
        if outcome is not None:
            self.journal.phase, self.leading.exit_code = JobPhase.COMPLETE, kept.exit_code
            self.journal.reason, self.journal.message = outcome.reason, outcome.message

    def kept(self) -> KeptJob:
        """Return the part of the job that is kept on disk."""
        return KeptJob(job=self.key, spec_digest=digest(self.job), state=self.state, exit_code=self.leading.exit_code)

    # ---- decisions

    def facts(self, now: float) -> JobFacts:
        """Return the facts that the planner reads."""
        measured, done = self.leader_files.measurements, self.progress.reading.fraction
        return facts_of(self.key, self.state, self.seen, self.terms, now, self._timing, measured=measured, done=done)

    def act(self, action: Action, now: float) -> None:
        """Apply a decision and publish it, after counting budgets up to now with the GPUs held so far."""
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
                self.journal.warn(action.reason, SENTENCES[action.reason])
        self.seen = self._observe()
        self.state = progress.look(self.state, self.seen, self.terms, now, self._timing)
        if self.finished:
            return  # its leader, if any, is being ended: further grants do not matter
        if self.state.grant != before.grant:
            self.leader_files.grant(allocation_of(self.state.grant, self._wall))
            self.write_allocation()
            self.journal.add(AllocationChanged(**self.journal.stamp(), allocation=self.leader_files.allocation))
        elif self.state.stopping != before.stopping:
            self.write_allocation()

    def submit(self, now: float) -> None:
        """Make the job visible to the planner from now on."""
        self.state = replace(self.state, submitted_at=now)

    def waits(self, reason: Reason, now: float) -> None:
        """Record the reason for which the job gets no GPUs, if it has none."""
        if self.state.admitted_at is None and not self.finished:
            self._stands(now, reason, SENTENCES[reason])

    def interrupt(self, now: float) -> None:
        """Record that the run is about to end all processes, so that no end counts as a failure."""
        if self.state.active and self.state.stopping is None:
            self.state = replace(self.state, stopping=Stopping(reason=Reason.INTERRUPTED, deadline=now))

    def close(self, now: float) -> None:
        """Record the end of the job, or that the run ended before it."""
        self.progress.close()
        ended = self.state.ended
        if ended is not None and not self.finished:
            kind = Fail if ended.failed else Finish
            self.act(kind(job=self.key, reason=ended.reason, message=ended.message), now)
        elif not self.finished and self.journal.reason not in (Reason.TOO_LARGE, Reason.SUSPENDED):
            self.journal.stands(JobPhase.SUSPENDED, Reason.INTERRUPTED, SENTENCES[Reason.INTERRUPTED])

    def write_allocation(self) -> None:
        """Write the current allocation to its file."""
        written = {"allocation": self.leader_files.allocation}
        memory = memory_of(self.state, self.terms, self._wall).model_copy(update=written)
        self.leader_files.write(allocation_document(self.job, memory))

    # ---- processes

    def may_start(self, now: float) -> bool:
        """Return whether the leader may be started."""
        return self.process is None and self.state.may_start(self.terms, now)

    def start(self, now: float, default_command: Sequence[str], agent_url: str | None, extra: dict[str, str]) -> None:
        """Start the leader, or record why it cannot be started."""
        (self.directory / CHECKPOINT_FOLDER).mkdir(exist_ok=True)
        self.write_allocation()
        self.leader_files.leader_starts()
        posting = self.progress.begin() if self.terms.program else {}
        command = command_of(self.job) or default_command
        variables = {**posting, **self._variables(agent_url, extra)}
        try:
            self.leading.start(command, variables, self.state.attempts[0], now)
        except (FileNotFoundError, PermissionError) as error:
            ended = Ended(reason=Reason.TRAINER_FAILED, failed=True, message=f"cannot be started: {error}")
            self.state = replace(self.state, ended=ended)
        except OSError as error:
            before, message = self.state, f"cannot be started: {error}"
            self.state = ends.failed(before, 0, message, self.terms, now, self._timing)
            self._record_restart(before, now)

    def train_together(
        self, wanted: Sequence[WorkerSpec], default_command: Sequence[str], extra: dict[str, str], now: float
    ) -> None:
        """Run the processes of these workers in addition to the leader, and no others."""
        if self.process is None and self.workers.has_ended:
            return  # the leader is first
        command, variables = command_of(self.job) or default_command, self._variables(None, extra)
        self.workers.look(wanted, command, variables, now, self.state.may_start(self.terms, now))

    def _variables(self, agent_url: str | None, extra: dict[str, str]) -> dict[str, str]:
        return {**contract_variables(self.directory, agent_url), **program_variables(self.job), **extra}

    # ---- observation

    def look(self, now: float) -> bool:
        """Read the leader's files, count the time, and record its end; return whether the planner must run."""
        before, standing, measured = self.state, self._standing(), self.leader_files.measurements
        self.leader_files.retry()
        code = self.leading.poll()
        damaged = self.journal.history.follow()
        if damaged:
            self.journal.warn("DamagedEvents", f"{damaged} new lines of the leader's events file are not events")
        if (seconds := self.leader_files.read(now, runs=self.process is not None)) is not None:
            generation = self.leader_files.acknowledged
            self.journal.add(AllocationAcknowledged(**self.journal.stamp(), generation=generation, seconds=seconds))
        if (reading := self.progress.poll(code is not None)) is not None:
            step, epoch, done, metrics = reading.step, reading.epoch, reading.fraction, reading.figures
            self.journal.add(ProgressRead(**self.journal.stamp(), step=step, epoch=epoch, done=done, metrics=metrics))
        if code is not None:
            self.leading.ended(code, now)
        self.seen = self._observe()
        self.state = progress.look(before, self.seen, self.terms, now, self._timing)
        if self.state.attempts != before.attempts:
            self._record_restart(before, now)
            self.seen = self._observe()
        self.leader = progress.leader_of(self.state, self.seen, now, self._timing)
        goes_on = self.state.active and self.state.stopping is None
        if (
            goes_on
            and self.leader is Leader.TRAINING
            and self.journal.phase not in (JobPhase.RUNNING, JobPhase.EVALUATING)
        ):
            self._stands(now, Reason.RUNNING)
        return standing != self._standing() or has_new_configuration(measured, self.leader_files.measurements)

    # ---- within

    def _observe(self) -> Observation:
        attempts, leader_files = self.state.attempts, self.leader_files
        current = self.leading.of(attempts[0]) if attempts else None
        return Observation(
            base=(
                current,
                *(map(self.workers.incarnation, range(1, len(attempts)), attempts[1:]) if self.has_processes else ()),
            ),
            extra_bound=self.state.extra,  # extra workers have their GPUs before the grant
            extra_running=self.state.extra,
            report=leader_files.report,
            reporter=self.leading.id if leader_files.is_fresh else "",
            reported_at=leader_files.reported_at,
            program=self.terms.program,
        )

    def _standing(self) -> tuple[Any, ...]:
        """Return the values whose changes wake the planner."""
        return (self.leader, self.leader_files.acknowledged, self.process is None, self.state.essence)

    def _record_restart(self, before: JobState, now: float) -> None:
        """Record that the leader must be restarted, unless its GPUs are gone: then the planner decides."""
        leads = self.state.restarts > before.restarts
        fails = before.failures < self.state.failures <= self.terms.backoff_limit
        if self.leading.is_lost or not (leads or fails):
            return
        wait = 0.0 if self.state.not_before is None else self.state.not_before - now
        seconds = (self._wall(now + wait) - self._wall(now)).total_seconds()
        text = f"{self.state.last_failure}; started again in {seconds:.3g} s"
        if leads:
            self.journal.stands(JobPhase.STARTING, Reason.TRAINER_FAILED, text)
        else:
            self.journal.warn("WorkerFailed", text)

    def _stands(self, now: float, reason: Reason, message: str = "") -> None:
        self.journal.stands(phase_of(self.facts(now), self.state.outcome), reason, message)
