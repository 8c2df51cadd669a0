"""The local backend of the loop: makes snapshots of jobs and GPUs, and carries out actions by processes and files.

The run's folder is opened first. Files may be deleted or overwritten only in folders that belong to a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from espalier_core.base import Record
from espalier_core.files.documents import write_document
from espalier_core.types import environment as names
from espalier_core.types.events import AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_operator.clock import Clock
from espalier_operator.job.progress import Leader
from espalier_operator.local import files
from espalier_operator.local.files import command_of
from espalier_operator.local.job import LocalJob
from espalier_operator.local.settings import LocalRunError, LocalSettings, begins_again, load_state, run_lock
from espalier_operator.local.workers import CUDA_DEVICES, Gpus, Holder, Starter, Timeline, WorkerSpec
from espalier_operator.loop import BackendError
from espalier_operator.model import JobTerms, Node, Rules, Snapshot, Worker, WorkerRole, WorkerState, grace_of
from espalier_operator.model.actions import Action, GrantExtra, Plan

MARK_FILE: Final = ".espalier-run"
NODE: Final = "local"
LOCAL_GPU_TYPE: Final = "local"
"""The GPU type of the machine, whose GPUs are assumed to be of one type."""


class RunMark(Record):
    """`.espalier-run`: marks a folder without files of a run when this run began in it."""

    jobs: tuple[str, ...]


def require_own(directory: Path, folders: Collection[Path]) -> None:
    """Raise `LocalRunError` if one of `folders` of the run in `directory` has files that no run has written."""
    if _is_older_run(directory):
        return
    for folder in folders:
        if os.path.exists(folder / MARK_FILE):
            continue
        for name in files.WRITTEN:
            if os.path.lexists(folder / name):
                raise LocalRunError(
                    f"{folder / name}: no run has written it ({folder} has no {MARK_FILE}), so it is neither "
                    "deleted nor overwritten; choose another --output folder, or move it away"
                )


def mark(folder: Path, jobs: Collection[str]) -> None:
    """Mark a folder, after `require_own`, as belonging to a run of `jobs`. Raises `OSError`."""
    if not (folder / MARK_FILE).exists():
        write_document(folder / MARK_FILE, RunMark(jobs=tuple(jobs)))


def is_own(directory: Path) -> bool:
    """Return whether `directory` belongs to a run."""
    return os.path.exists(directory / MARK_FILE) or _is_older_run(directory)


def _is_older_run(directory: Path) -> bool:
    """Return whether `directory` has the state of a run by a version without marks."""
    if os.path.exists(directory / MARK_FILE):
        return False
    try:
        state = json.loads((directory / files.STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("kind") == "RunState"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """The state at the beginning of a run."""

    jobs: Mapping[str, LocalJob]
    """Jobs by key."""
    gpus: Gpus
    timeline: Timeline
    clock_seconds: float
    policy_memory: str | None
    """The policy's memory from an earlier run; None where there was none."""


def opened(
    jobs: Sequence[AdaptiveTrainingJob],
    settings: LocalSettings,
    on_event: Callable[[str, AnyEvent], None],
    time_of_day: Callable[[float], datetime],
    start: Starter,
) -> OpenedRun:
    """Check the folder, and resume from its contents; nothing is started.

    `on_event(job name, event)` receives the events of jobs, `time_of_day` converts times of the run's clock. Raises
    `LocalRunError`.
    """
    by_name = {job.metadata.name: job for job in jobs}
    if len(by_name) < len(jobs) or not jobs:
        raise LocalRunError("a run needs at least one job, and a different name for each")
    folders = {name: settings.directory if len(jobs) == 1 else settings.directory / name for name in by_name}
    try:
        settings.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalRunError(f"{error.filename}: cannot create the folder for results: {error.strerror}") from error
    require_own(settings.directory, {settings.directory, *folders.values()})
    for name, job in by_name.items():
        if job.spec.program is not None and not command_of(job):
            raise LocalRunError(
                f"{name}: spec.template.spec.containers[0] has no command; images are not run on this machine, so "
                "give the command that the image would run"
            )
    with run_lock(settings.directory):  # another run may be writing to the files that are read and changed here
        return _taken_up(by_name, folders, settings, on_event, time_of_day, start)


def _taken_up(
    by_name: Mapping[str, AdaptiveTrainingJob],
    folders: Mapping[str, Path],
    settings: LocalSettings,
    on_event: Callable[[str, AnyEvent], None],
    time_of_day: Callable[[float], datetime],
    start: Starter,
) -> OpenedRun:
    state = load_state(settings.directory, list(by_name.values()))
    again = state is not None and all(
        begins_again(entry, folders[entry.job.rpartition("/")[2]]) for entry in state.jobs
    )
    seconds, done = (0.0, 0) if state is None or again else (state.timeline_seconds, state.changes_done)
    timeline, gpus = Timeline(settings.changes, seconds, done), Gpus(settings.gpus, settings.devices)
    for change in timeline.made:
        gpus.change(change.change)
    before = {} if state is None else {entry.job: entry for entry in state.jobs}
    found: dict[str, LocalJob] = {}
    for name, job in by_name.items():
        folder, terms = folders[name], terms_of(job, settings)
        try:
            local = LocalJob(
                job, folder, terms, settings.timing, time_of_day, on_event, settings.stop_wall_seconds, start
            )
            for marked in (settings.directory, folder):
                mark(marked, sorted(by_name))
            local.open(settings.sources.get(name), before.get(job.key))
        except OSError as error:
            raise LocalRunError(f"{folder}: cannot be written to: {error.strerror}") from error
        found[job.key] = local
    # A killed scheduler stored its clock a moment before its leaders' last reports.
    reported = [
        (job.state.submitted_at or 0.0) + report.used_seconds
        for job in found.values()
        if (report := job.leader_files.report) is not None
    ]
    return OpenedRun(
        jobs=found,
        gpus=gpus,
        timeline=timeline,
        clock_seconds=max([0.0 if state is None else state.clock_seconds, *reported]),
        policy_memory=None if state is None else state.policy_memory,
    )


def terms_of(job: AdaptiveTrainingJob, settings: LocalSettings) -> JobTerms:
    """Return the terms of a job in a run."""
    grace = grace_of(job, settings.grace_wall_seconds * settings.time_scale, settings.time_scale)
    terms = JobTerms.of(job, grace_seconds=grace)
    if (wall := terms.pre_running_deadline_seconds) is not None:
        # Importing torch takes as long at any time scale.
        terms = replace(terms, pre_running_deadline_seconds=wall * settings.time_scale)
    return terms


class LocalBackend:
    """Implements `espalier_operator.loop.Backend` over the jobs of one run."""

    def __init__(
        self,
        jobs: Mapping[str, LocalJob],
        gpus: Gpus,
        timeline: Timeline,
        clock: Clock,
        rules: Rules,
        settings: LocalSettings,
        *,
        look: Callable[[], object],
        on_planned: Callable[[Plan], None],
    ) -> None:
        """Take the parts: `jobs` by key; `look` updates all facts to now."""
        self.jobs, self.gpus, self.timeline = jobs, gpus, timeline
        self._clock, self._rules, self._settings = clock, rules, settings
        self._look, self._on_planned = look, on_planned

    # ---- observation

    async def observe(self) -> Snapshot:
        """Return one node with all GPUs, and the submitted jobs with their workers."""
        self._look()
        now = self._clock.now()
        departing, goes_in = self.timeline.departing()
        node = Node(
            name=NODE,
            gpu_type=LOCAL_GPU_TYPE,
            allocatable=self.gpus.total,
            departing=min(departing, self.gpus.total),
            departs_at=None if goes_in is None else now + goes_in,
        )
        submitted = [job for job in self.jobs.values() if job.state.submitted_at is not None]
        return Snapshot(
            taken_at=now,
            nodes=(node,),
            workers=tuple(worker for job in submitted for worker in self._workers(job)),
            jobs=tuple(job.facts(now) for job in submitted),
            rules=self._rules,
        )

    def _workers(self, job: LocalJob) -> list[Worker]:
        running = WorkerState.PENDING if job.leader is Leader.ABSENT else WorkerState.RUNNING
        state = running if job.state.active else WorkerState.TERMINATING
        return [
            Worker(
                name=f"{job.name}-{role}-{index}",
                job=job.key,
                role=role,
                index=index,
                node=NODE,
                gpus=len(devices),
                state=state,
            )
            for role in (WorkerRole.BASE, WorkerRole.EXTRA)
            for index, devices in self.gpus.of(job.key, role).items()
        ]

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record the reasons for which jobs wait, and pass the plan on."""
        for key, refusal in plan.refusals.items():
            self.jobs[key].waits(refusal.reason, self._clock.now())
        self._on_planned(plan)

    # ---- actions

    async def apply(self, action: Action) -> None:
        """Carry `action` out; the next `observe` sees its effects."""
        job = self.jobs[action.job]
        if isinstance(action, GrantExtra):
            for index in range(job.state.extra, action.extra):
                if not self.gpus.hold(Holder(job.key, WorkerRole.EXTRA, index), job.terms.gpus_per_worker):
                    raise BackendError("a GPU disappeared between planning and granting")
        job.act(action, self._clock.now())
        self.converge(job)

    def converge(self, job: LocalJob) -> bool:
        """Adjust GPUs and processes to the job's state; return whether an active job has all its base GPUs."""
        for index in self.gpus.of(job.key, WorkerRole.EXTRA):
            if index >= job.state.extra:
                self.gpus.release(Holder(job.key, WorkerRole.EXTRA, index))
        if job.state.active:
            template = job.job.spec.template
            if (
                job.terms.program
                and job.state.stopping is not None
                and job.process is not None
                and template is not None
            ):
                job.process.terminate(template.spec.grace_seconds)  # only SIGTERM tells a program
            completed = job.state.completed_workers
            for index in completed:
                self.gpus.release(Holder(job.key, WorkerRole.BASE, index))
            base = [
                Holder(job.key, WorkerRole.BASE, each)
                for each in range(job.terms.min_replicas)
                if each not in completed
            ]
            missing = [holder for holder in base if not self.gpus.hold(holder, job.terms.gpus_per_worker)]
            return not missing
        if job.process is not None:
            job.process.terminate(self._settings.stop_wall_seconds)
        else:  # the leader is gone and must not be started again
            for index in self.gpus.of(job.key, WorkerRole.BASE):
                self.gpus.release(Holder(job.key, WorkerRole.BASE, index))
        return False

    def start(self, job: LocalJob, now: float, agent_url: str | None) -> None:
        """Start the leader of a job that has its base GPUs."""
        variables = self._variables()
        if self._settings.devices:
            held = self.gpus.of(job.key, WorkerRole.BASE)
            # If each base worker has a process, the leader sees only its own devices, otherwise all workers'.
            devices = [held[0]] if job.has_processes else held.values()
            variables[CUDA_DEVICES] = ",".join(device for own in devices for device in own)
        job.start(now, self._settings.trainer_command, agent_url, variables)

    def train_together(self, job: LocalJob, now: float) -> None:
        """Start and end the processes that train with the leader, by the job's GPUs."""
        if not job.has_processes:
            return
        going_on = job.state.active and not job.state.ending
        wanted = [
            WorkerSpec(
                role,
                index,
                devices,
                bool(self._settings.devices),
                job.state.attempts[index] if role is WorkerRole.BASE else 0,
            )
            for role in (WorkerRole.BASE, WorkerRole.EXTRA)
            for index, devices in self.gpus.of(job.key, role).items()
            if going_on and (role, index) != (WorkerRole.BASE, 0)
        ]
        job.train_together(wanted, self._settings.trainer_command, self._variables(), now)

    def _variables(self) -> dict[str, str]:
        # Unbuffered, so that a trainer's output is in its log at once and not lost if it is killed.
        variables = {names.TIME_SCALE: repr(self._settings.time_scale), "PYTHONUNBUFFERED": "1"}
        if self._settings.seed is not None:
            variables[names.SEED] = str(self._settings.seed)
        if self._settings.hide_devices:
            variables[CUDA_DEVICES] = ""
        return variables

    def lose(self, holder: Holder) -> None:
        """Record that the GPU of `holder` is physically gone: if it is a base worker, kill its leader."""
        job = self.jobs[holder.job]
        if holder.role is WorkerRole.EXTRA:
            self.gpus.renumber_extra(job.key)
        else:
            job.leading.lose(Reason.GPU_LOST)
