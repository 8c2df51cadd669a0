"""Settings of a local run, and its state on disk, from which the same command resumes it."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, read_document
from espalier_core.files.locks import locked
from espalier_core.types.environment import LEADER_FILE
from espalier_core.types.job import AdaptiveTrainingJob, AgentRef
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_operator.job.state import Grant, JobState, Timing
from espalier_operator.job.transitions import after
from espalier_operator.local.files import CHECKPOINT_FOLDER, STATE_FILE
from espalier_operator.model import DEFAULT_POLICY, JobTerms
from espalier_operator.model.actions import Requeue

_LEAVE_WALL_SECONDS = 15.0
"""Time for a leader to end: torch takes two seconds to unload, on a busy machine several times that."""
MAX_GPUS = 10_000
"""Maximum number of GPUs; a job cannot request more."""
STOP_WALL_SECONDS: Final = 4.0
"""Default seconds between SIGTERM and SIGKILL."""


class LocalRunError(ValueError):
    """The run cannot be started with these settings; the message names the setting or file and the remedy."""


class FolderInUseError(LocalRunError):
    """Another run uses the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChange:
    """GPUs that appear (`change` > 0) or disappear (`change` < 0).

    `at_seconds` is on the timeline of the run: budget seconds during which some job trains (or none is starting).
    For a single job that is its used budget, so an arrival at 20 s meets the same training progress whatever the
    start-up time of the processes, and after a resume too.
    """

    at_seconds: float
    change: int
    notice_seconds: float = 0.0
    """Seconds on the same timeline between the announcement and the departure; 0: without notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Settings of a local run. Raises `LocalRunError` where they contradict themselves."""

    directory: Path
    """Folder of the run's files: those of a single job are directly in it; several jobs have one folder each."""
    gpus: int = 1
    """Number of GPUs at the start."""
    changes: tuple[GpuChange, ...] = ()
    devices: tuple[str, ...] = ()
    """Ids of the CUDA devices to use, at least the largest number of GPUs present at once; empty: the GPUs are
    simulated."""
    hide_devices: bool = False
    """Whether trainers see no CUDA device, as GPUs are simulated."""
    time_scale: float = 1.0
    """Budget seconds per wall second, for budgets, arrivals, notices, cooldowns and minimum runtimes. Starting
    (`preRunningDeadlineSeconds`) and stopping take as long at any scale."""
    seed: int | None = None
    policy: str = DEFAULT_POLICY
    """Scheduling policy (`espalier_operator.policies.POLICIES`)."""
    trainer_command: tuple[str, ...] = (sys.executable, "-m", "espalier_trainer")
    """Command of jobs whose template has none."""
    agent_command: tuple[str, ...] | None = (sys.executable, "-m", "espalier_agent", "serve")
    """Command of the agent; `--port N --url-file FILE` is appended. None: no agent is started."""
    agent_url: str | None = None
    """URL of an agent that already runs; no other one is started then."""
    submit_at: Mapping[str, float] = field(default_factory=dict)
    """Seconds on the timeline at which jobs are submitted, by job name; others are submitted at the start."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Text of job files, kept as `job.yaml`, by job name; default: the job as JSON (which is YAML)."""
    stop_wall_seconds: float = STOP_WALL_SECONDS
    """Seconds between SIGTERM and SIGKILL."""
    restart_wall_seconds: float = 1.0
    """Seconds before the first restart of a failed leader; doubled by each further failure."""
    grace_wall_seconds: float = 10.0
    """Seconds for which a leader may continue after its budget, or a tenth of the budget if longer, before it is ended.
    They cover the last evaluation and checkpoint, whose length does not shrink with the time scale or budget."""
    start_up_allowance_wall_seconds: float = Timing().start_up_allowance
    """Run time after which a leader without reports counts as training."""
    poll_wall_seconds: float = 0.03
    """Minimum time between two checks of processes and their files, which follow the end of one or a write. Where the
    machine does not report these, the interval of checks: two `stat`s per job, some microseconds."""

    @property
    def timing(self) -> Timing:
        """The settings for the state machine of a job, in budget seconds."""
        return Timing(
            start_up_allowance=self.start_up_allowance_wall_seconds,
            restart=self.restart_wall_seconds,
            report=0.0,  # an ended process has written its report
            leave=_LEAVE_WALL_SECONDS,
        ).scaled(self.time_scale)

    def __post_init__(self) -> None:
        """Check."""
        if not (math.isfinite(self.time_scale) and self.time_scale > 0):
            raise LocalRunError(f"time scale {self.time_scale}: it must be a positive number")
        if self.agent_url is not None:
            try:
                AgentRef(url=self.agent_url)
            except ValidationError as error:
                message = f"agent URL {self.agent_url!r}: it must be http://HOST[:PORT] or https://HOST[:PORT]"
                raise LocalRunError(message) from error
        if self.gpus < 0:
            raise LocalRunError(f"gpus {self.gpus}: it must be 0 or more")
        total = most = self.gpus
        for change in sorted(self.changes, key=lambda change: change.at_seconds):
            if change.at_seconds < 0 or change.notice_seconds < 0 or change.change == 0:
                raise LocalRunError(f"{change}: times must be 0 or more, and the change not 0")
            total += change.change
            if total < 0:
                raise LocalRunError(f"{-change.change} GPUs depart at {change.at_seconds:g} s, when fewer are left")
            most = max(most, total)
        if most > MAX_GPUS:
            raise LocalRunError(f"the run has up to {most} GPUs at once; at most {MAX_GPUS} are allowed")
        if self.devices and len(self.devices) < most:
            raise LocalRunError(
                f"the run has up to {most} GPUs at once and this machine offers {len(self.devices)} "
                f"({', '.join(self.devices)}); ask for fewer, or simulate them"
            )


class KeptJob(Record):
    """One job of a run."""

    job: str
    spec_digest: str
    state: JobState
    exit_code: int | None = None


class RunState(Record):
    """`state.json`."""

    clock_seconds: float = Field(ge=0)
    timeline_seconds: float = Field(ge=0)
    changes_done: int = Field(ge=0)
    policy_memory: str = ""
    """The policy's memory (`espalier_operator.policies.memory`)."""
    jobs: tuple[KeptJob, ...]


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Lock `directory` for this run until the process dies at the latest. Raises `LocalRunError` if it is locked."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(directory))
        except BlockingIOError as error:
            raise FolderInUseError(
                f"{directory}: another run uses this folder; wait for its end, or choose another folder"
            ) from error
        except OSError as error:
            raise LocalRunError(f"{directory}: cannot be written to: {error.strerror}") from error
        yield


def resumed(state: JobState, terms: JobTerms, report: Report | None = None) -> JobState:
    """Return the state in which a resumed run starts: jobs that ran wait again, and no job holds GPUs.

    A failed job is resumed with its used budget; only a complete one has ended for good. If its trainer hung, only the
    use up to its last `report` counts.
    """
    if state.outcome is not None and state.outcome.failed:
        if state.outcome.reason is Reason.BUDGET_ENFORCED and report is not None:
            used = min(state.used_seconds, report.used_seconds)
            state = replace(state, used_seconds=used, budget_end_seconds=None)
        state = replace(state, outcome=None, ended=None, failures=0, preemptions=0, last_failure="", not_before=None)
    waiting = after(state, Requeue(job="", reason=Reason.INTERRUPTED), terms, 0.0, Timing())
    return replace(waiting, grant=Grant(generation=state.grant.generation), counted_until=None)


def begins_again(kept: KeptJob, folder: Path) -> bool:
    """Return whether a job has failed and left nothing to resume in its folder, so that its budget is whole again."""
    outcome = kept.state.outcome
    if outcome is None or not outcome.failed:
        return False
    checkpoints = folder / CHECKPOINT_FOLDER
    return not checkpoints.is_dir() or all(entry.name == LEADER_FILE for entry in checkpoints.iterdir())


def begun_again(kept: KeptJob) -> KeptJob:
    """Return the job with unused budgets."""
    whole = replace(kept.state, used_seconds=0.0, gpu_seconds_used=0.0, trained=False, completed_workers=())
    return kept.model_copy(update={"state": whole})


def digest(job: AdaptiveTrainingJob) -> str:
    """Return a key that distinguishes specifications."""
    return hashlib.sha256(json.dumps(job.spec.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def load_state(directory: Path, jobs: list[AdaptiveTrainingJob]) -> RunState | None:
    """Return the state of an earlier run of these jobs in `directory`; None where there is none.

    Raises `LocalRunError` where it is damaged, of other jobs, or of other specifications of jobs that have not failed.
    """
    path = directory / STATE_FILE
    try:
        state = read_document(path, RunState)
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise LocalRunError(f"{error}; choose another output folder, or remove this one") from error
    before = {entry.job: entry.spec_digest for entry in state.jobs}
    failed = {entry.job for entry in state.jobs if entry.state.outcome is not None and entry.state.outcome.failed}
    now = {job.key: digest(job) for job in jobs}
    if set(before) != set(now):
        raise LocalRunError(
            f"{path}: belongs to a run of {', '.join(sorted(before))}, not of {', '.join(sorted(now))}; "
            "choose another output folder, or remove this one"
        )
    changed = sorted(key for key in now if now[key] != before[key] and key not in failed)
    if changed:
        raise LocalRunError(
            f"{path}: the specification of {', '.join(changed)} has changed since this run began; "
            "choose another output folder, or remove this one"
        )
    return state
