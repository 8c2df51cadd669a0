"""The folder of a local run is opened: checked, and resumed from what an earlier run left there.

Only what lies in folders that are a run's may be deleted or written over.
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
from espalier_core.types.events import AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_operator.local import files
from espalier_operator.local.files import command_of
from espalier_operator.local.gpus import Gpus, Timeline
from espalier_operator.local.job import LocalJob
from espalier_operator.local.settings import LocalRunError, LocalSettings, begins_again, load_state, run_lock
from espalier_operator.local.workers import Starter
from espalier_operator.model import JobTerms, grace_of

MARK_FILE: Final = ".espalier-run"


class RunMark(Record):
    """`.espalier-run`: the folder was empty of a run's files when this run began in it."""

    jobs: tuple[str, ...]


def require_own(directory: Path, folders: Collection[Path]) -> None:
    """Raise `LocalRunError` if one of `folders` of the run in `directory` holds files that no run has written."""
    if _is_older_run(directory):
        return
    for folder in folders:
        if os.path.exists(folder / MARK_FILE):
            continue
        for name in files.WRITTEN:
            if os.path.lexists(folder / name):
                raise LocalRunError(
                    f"{folder / name}: no run has written it ({folder} has no {MARK_FILE}), so it is neither "
                    "deleted nor written over; choose another --output folder, or move it away"
                )


def mark(folder: Path, jobs: Collection[str]) -> None:
    """Mark a folder, after `require_own`, as that of a run of `jobs`. Raises `OSError`."""
    if not (folder / MARK_FILE).exists():
        write_document(folder / MARK_FILE, RunMark(jobs=tuple(jobs)))


def is_own(directory: Path) -> bool:
    """Return whether `directory` is that of a run."""
    return os.path.exists(directory / MARK_FILE) or _is_older_run(directory)


def _is_older_run(directory: Path) -> bool:
    """Return whether a run of a version without marks has left its state here."""
    if os.path.exists(directory / MARK_FILE):
        return False
    try:
        state = json.loads((directory / files.STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("kind") == "RunState"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """Where a run begins."""

    jobs: Mapping[str, LocalJob]
    """By key."""
    gpus: Gpus
    timeline: Timeline
    clock_seconds: float
    policy_memory: str | None
    """What the policy remembers of an earlier run; None where there was none."""


def opened(
    jobs: Sequence[AdaptiveTrainingJob],
    settings: LocalSettings,
    on_event: Callable[[str, AnyEvent], None],
    time_of_day: Callable[[float], datetime],
    start: Starter,
) -> OpenedRun:
    """Check the folder, and take up what is in it; nothing is started.

    `on_event(job name, event)` gets the events of jobs, `time_of_day` converts times of the run's clock. Raises
    `LocalRunError`.
    """
    by_name = {job.metadata.name: job for job in jobs}
    if len(by_name) < len(jobs) or not jobs:
        raise LocalRunError("a run needs at least one job, and jobs of different names")
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
    with run_lock(settings.directory):  # another run may be writing what is read and changed here
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
    # A killed scheduler kept its clock a moment before its leaders reported last.
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
