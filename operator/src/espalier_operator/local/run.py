"""A local run from start to end, and its views for callers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier_core.files.documents import write_document
from espalier_core.types.allocation import Allocation
from espalier_core.types.events import AnyEvent, GPUsChanged
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import JobPhase
from espalier_operator.clock import ScaledClock
from espalier_operator.job.progress import Leader
from espalier_operator.local.backend import LocalBackend, opened
from espalier_operator.local.files import EVENTS_FILE, REPORT_FILE, STATE_FILE, TRAINER_LOG
from espalier_operator.local.job import LocalJob
from espalier_operator.local.process import AGENT_PID_FILE, Agent, Process, end_orphan, told_of
from espalier_operator.local.settings import LocalSettings, RunState, run_lock
from espalier_operator.local.workers import LEADER_PID_FILE, PID_FILES, Gpus, Starter
from espalier_operator.loop import SchedulerLoop
from espalier_operator.model import Rules
from espalier_operator.model.actions import Plan
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.remote import asked_here
from espalier_operator.policies.settings import configured

logger = logging.getLogger(__name__)
_SAVE_WALL_SECONDS = 1.0
_QUIET_WALL_SECONDS = 0.25
"""Interval of checks for changes by time alone, without any news."""
_NEVER = (Reason.TOO_LARGE, Reason.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """Current view of one job."""

    name: str
    phase: JobPhase
    reason: Reason
    """Reason of its phase, or of getting no more GPUs."""
    allocation: Allocation
    gpus: int
    """GPUs held by its workers, including those being reclaimed, which `allocation` no longer counts."""
    used_seconds: float
    doing: TrainerPhase | None = None
    """The phase reported by its leader; None before its first report."""
    step: int = 0
    """Reported optimizer steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Current view of the run."""

    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOutcome:
    """The end of a job, or its state when the run was stopped."""

    job: str
    """Name of the job."""
    phase: JobPhase
    """`Complete` and `Failed` are ends; with any other phase, the same run resumes the job."""
    reason: Reason
    message: str
    exit_code: int | None
    """Exit code of the last leader; negative: the signal that ended it."""
    used_seconds: float
    gpu_seconds_used: float
    restarts: int
    failures: int
    preemptions: int
    report: Report | None
    """The leader's last report."""


def view_run(jobs: Iterable[LocalJob], gpus: Gpus, reasons: Mapping[str, Reason]) -> RunView:
    """Return the view; `reasons` are the last plan's refusals by job key."""
    views = tuple(
        JobView(
            name=job.name,
            phase=job.journal.phase,
            reason=reasons.get(job.key, job.journal.reason),
            allocation=job.leader_files.allocation,
            gpus=gpus.held(job.key),
            used_seconds=job.state.used_seconds,
            doing=None
            if job.leader_files.report is None or not job.leader_files.is_fresh
            else job.leader_files.report.phase,
            step=0 if job.leader_files.report is None else job.leader_files.report.step,
        )
        for job in jobs
    )
    return RunView(jobs=views)


def outcome_of(job: LocalJob) -> LocalOutcome:
    """Return the outcome of `job` at the end of a run."""
    return LocalOutcome(
        job=job.name,
        phase=job.journal.phase,
        reason=job.journal.reason,
        message=job.journal.message,
        exit_code=job.leading.exit_code,
        used_seconds=job.state.used_seconds,
        gpu_seconds_used=job.state.gpu_seconds_used,
        restarts=job.state.restarts,
        failures=job.state.failures,
        preemptions=job.state.preemptions,
        report=job.leader_files.report,
    )


async def run_local(
    jobs: Sequence[AdaptiveTrainingJob],
    settings: LocalSettings,
    on_event: Callable[[str, AnyEvent], None],
    stop: asyncio.Event,
    on_tick: Callable[[RunView], None] | None = None,
) -> dict[str, LocalOutcome]:
    """Run `jobs` to their ends, or until `stop` is set, and return their outcomes by job name.

    `on_event(job name, event)` gets every event of `history.jsonl` as it happens; `on_tick` gets a view of the run
    with any news, and several times a second. Both are called in the event loop and must be quick. After `stop`,
    everything ends in less than 5 s, and the same call resumes the run. Raises `LocalRunError` if a later call has
    other arguments.
    """
    return await LocalRun(jobs, settings, on_event, on_tick).run(stop)


async def end_orphans(folders: Collection[Path], stop_wall_seconds: float) -> None:
    """End processes left by a killed run, by the pid files in `folders`."""
    files = [folder / name for folder in folders for name in (LEADER_PID_FILE, AGENT_PID_FILE)]
    files += [file for folder in folders for file in folder.glob(PID_FILES)]
    found = await asyncio.gather(*(end_orphan(file, stop_wall_seconds) for file in files))
    for file, was_there in zip(files, found, strict=True):
        if was_there:
            logger.warning("%s: ended a process left by an earlier run", file)
        file.unlink(missing_ok=True)  # pid files of workers have another name each time


class LocalRun:
    """One run: the loop, the processes, the files."""

    def __init__(
        self,
        jobs: Sequence[AdaptiveTrainingJob],
        settings: LocalSettings,
        on_event: Callable[[str, AnyEvent], None],
        on_tick: Callable[[RunView], None] | None = None,
        start: Starter = Process,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the folder and resume from its contents; nothing runs before `run`."""
        self._settings, self._on_tick = settings, on_tick
        found = opened(jobs, settings, on_event, lambda seconds: self._clock.time_of_day(seconds), start)
        self._jobs, self._gpus, self._timeline = found.jobs, found.gpus, found.timeline
        self._clock = ScaledClock(settings.time_scale, found.clock_seconds, monotonic)
        usual, scale = Rules(), settings.time_scale
        rules = Rules(
            policy=settings.policy,
            stop_grace_seconds=usual.stop_grace_seconds * scale,
            evaluation_seconds=usual.evaluation_seconds * scale,
            startup_seconds=usual.startup_seconds * scale,
        )
        self._backend = LocalBackend(
            self._jobs,
            self._gpus,
            self._timeline,
            self._clock,
            rules,
            settings,
            look=self._look_and_save,
            on_planned=self._planned,
        )
        self.policy_memory = PolicyMemory(rules.policy, found.policy_memory)
        chosen, asking = asked_here(configured(rules.policy))
        self._loop = SchedulerLoop(
            self._backend, chosen, self._clock, wall=monotonic, memory=self.policy_memory, asking=asking
        )
        self._agent = self._make_agent()
        self._reasons: dict[str, Reason] = {}
        self._over, self._news = asyncio.Event(), asyncio.Event()
        self._told = False
        """Whether the machine reports ends of processes and changes of files."""
        self._saved_at = 0.0
        self._read_at: float | None = None
        self._announced = 0

    async def run(self, stop: asyncio.Event) -> dict[str, LocalOutcome]:
        """Run until all jobs have ended or `stop` is set. Raises `LocalRunError` if another run uses the folder."""
        with run_lock(self._settings.directory):
            return await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> dict[str, LocalOutcome]:
        folders = {job.directory for job in self._jobs.values()}
        await end_orphans({self._settings.directory, *folders}, self._settings.stop_wall_seconds)
        with told_of(folders, (REPORT_FILE, EVENTS_FILE, TRAINER_LOG), self._news.set) as self._told:
            return await self._until_over(stop)

    async def _until_over(self, stop: asyncio.Event) -> dict[str, LocalOutcome]:
        tasks = [
            asyncio.create_task(self._loop.run()),
            asyncio.create_task(self._watch()),
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self._over.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_all()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return {job.name: outcome_of(job) for job in self._jobs.values()}

    async def step(self) -> None:
        """Observe, plan and save the state once: one iteration of `run`, for a clock that the caller advances."""
        await self._loop.tick()
        self._save()

    def view(self) -> RunView:
        """Return the current view of the run."""
        return view_run(self._jobs.values(), self._gpus, self._reasons)

    # ---- on any news, and several times a second

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            if self._look_and_save():
                self._loop.wake()
            if self._on_tick is not None:
                self._on_tick(self.view())
            await self._until_news()

    async def _until_news(self) -> None:
        """Sleep for `poll_wall_seconds`, then, where news are reported, until the next or a due change."""
        await asyncio.sleep(self._settings.poll_wall_seconds)
        if self._told:
            now = self._clock.now()
            moments = [job.state.not_before - now for job in self._jobs.values() if job.state.not_before is not None]
            moments += [at - self._timeline.seconds for at in self._settings.submit_at.values()]
            due = min((each for each in (self._timeline.next_in, *moments) if each > 0), default=math.inf)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_QUIET_WALL_SECONDS, self._clock.wall_seconds(due))):
                    await self._news.wait()

    def _look_and_save(self) -> bool:
        news = self._look()
        if news or time.monotonic() - self._saved_at >= _SAVE_WALL_SECONDS:
            self._save()
        return news

    def _look(self) -> bool:
        """Update all facts to now; return whether the planner must run."""
        news = False
        now = self._clock.now()
        if self._agent is not None:
            self._agent.keep_running()
        passed = self._passed(now)
        for job in self._jobs.values():
            news |= job.look(now)
        news |= self._move_timeline(passed)
        for job in self._jobs.values():
            if job.state.submitted_at is None and self._timeline.seconds >= self._settings.submit_at.get(job.name, 0.0):
                job.submit(now)
                news = True
            if self._backend.converge(job) and job.may_start(now):
                url = self._settings.agent_url if self._agent is None else self._agent.url
                self._backend.start(job, now, url)
                news = True
            self._backend.train_together(job, now)
        return news

    def _passed(self, now: float) -> float:
        """Return the seconds since the last look by the timeline, which waits while jobs only start up."""
        passed = 0.0 if self._read_at is None else now - self._read_at
        self._read_at = now
        open_jobs = [job for job in self._jobs.values() if job.state.submitted_at is not None and not job.finished]
        starting = [job for job in open_jobs if job.state.admitted_at is not None or job.key not in self._reasons]
        if starting and not any(job.leader is Leader.TRAINING for job in starting):
            passed = 0.0
        return passed

    def _move_timeline(self, passed: float) -> bool:
        """Add and remove GPUs; return whether the planner must run."""
        due = self._timeline.advance(passed)
        for change in due:
            self.change_gpus(change.change)
            for job in self._jobs.values():
                if not job.finished:
                    job.journal.add(GPUsChanged(**job.journal.stamp(), total=self._gpus.total, change=change.change))
        announced = self._timeline.departing()[0]
        news = bool(due) or announced != self._announced
        self._announced = announced
        return news

    def change_gpus(self, change: int) -> None:
        """Add GPUs, or remove them from their holders if `change` is negative."""
        precious = sorted(self._jobs.values(), key=lambda job: (-job.terms.priority, job.state.submitted_at or 0.0))
        for holder in self._gpus.change(change, [job.key for job in precious]):
            self._backend.lose(holder)

    def _planned(self, plan: Plan) -> None:
        """Record the reason for which each job gets no more GPUs, and detect when nothing can happen any more."""
        self._reasons = {key: refusal.reason for key, refusal in plan.refusals.items()}
        unfinished = [job for job in self._jobs.values() if not job.finished]
        gone = all(job.process is None for job in self._jobs.values())
        never = all(self._reasons.get(job.key) in _NEVER for job in unfinished)
        stuck = never and not self._timeline.has_arrivals_ahead
        if gone and (stuck or not unfinished) and not plan.actions:
            self._over.set()

    def _save(self) -> None:
        state = RunState(
            clock_seconds=self._clock.now(),
            timeline_seconds=self._timeline.seconds,
            changes_done=self._timeline.done,
            policy_memory=self.policy_memory.to_text(),
            jobs=tuple(job.kept() for job in self._jobs.values()),
        )
        self._saved_at = time.monotonic()
        try:
            write_document(self._settings.directory / STATE_FILE, state)
        except OSError as error:
            logger.warning("cannot save the state of the run; retrying in a second: %s", error)

    # ---- start and end

    def _make_agent(self) -> Agent | None:
        needed = any(
            job.job.spec.adaptation.agent is None and job.terms.adapts and not job.finished
            for job in self._jobs.values()
        )
        if self._settings.agent_command is None or self._settings.agent_url is not None or not needed:
            return None
        return Agent(self._settings.agent_command, self._settings.directory, self._settings.restart_wall_seconds)

    async def _end_all(self) -> None:
        """End every process, read each one's last report, and save the state."""
        if self._agent is not None:
            self._agent.end(self._settings.stop_wall_seconds)
        now = self._clock.now()
        for job in self._jobs.values():
            job.interrupt(now)
            if job.process is not None:
                job.process.terminate(self._settings.stop_wall_seconds)
            job.workers.end(now)
        while any(job.process is not None or not job.workers.has_ended for job in self._jobs.values()) or not (
            self._agent is None or self._agent.has_ended()
        ):
            now = self._clock.now()
            for job in self._jobs.values():
                job.look(now)
                job.workers.end(now)
            self._news.clear()
            await self._until_news()
        for job in self._jobs.values():
            job.close(self._clock.now())
        self._save()
