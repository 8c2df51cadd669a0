"""What a local run keeps on disk, so that the same command resumes it."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, read_document
from espalier_core.types.environment import LEADER_FILE
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_operator.job.state import Grant, JobState, Timing
from espalier_operator.job.transitions import after
from espalier_operator.local.layout import CHECKPOINT_FOLDER, STATE_FILE
from espalier_operator.local.settings import FolderInUseError, LocalRunError
from espalier_operator.model import Terms
from espalier_operator.model.actions import Requeue

LOCK_FILE = ".lock"


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
    """What the policy remembers (`espalier_operator.policies.memory`)."""
    jobs: tuple[KeptJob, ...]


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Lock `directory` for this run; the kernel releases the lock when the process dies. `LocalRunError` if locked."""
    try:
        file = (directory / LOCK_FILE).open("w", encoding="utf-8")
    except OSError as error:
        raise LocalRunError(f"{directory}: cannot be written to: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderInUseError(
                f"{directory}: another run uses this folder; wait for its end, or choose another folder"
            ) from error
        yield


def resumed(state: JobState, terms: Terms, report: Report | None = None) -> JobState:
    """Return the state in which a resumed run starts: jobs that ran wait again, and nobody holds GPUs.

    A job that has failed is taken up again, with its budget as it was used; only a complete one has ended for good. Of
    a trainer that hung, what it had used by its last `report` counts.
    """
    if state.outcome is not None and state.outcome.failed:
        if state.outcome.reason is Reason.BUDGET_ENFORCED and report is not None:
            used = min(state.used_seconds, report.used_seconds)
            state = replace(state, used_seconds=used, budget_end_seconds=None)
        state = replace(state, outcome=None, ended=None, failures=0, preemptions=0, last_failure="", not_before=None)
    waiting = after(state, Requeue(job="", reason=Reason.INTERRUPTED), terms, 0.0, Timing())
    return replace(waiting, grant=Grant(generation=state.grant.generation), counted_until=None)


def begins_again(kept: KeptJob, folder: Path) -> bool:
    """Return whether a job has failed and left nothing in its folder to resume: then its budget is whole again."""
    outcome = kept.state.outcome
    if outcome is None or not outcome.failed:
        return False
    checkpoints = folder / CHECKPOINT_FOLDER
    return not checkpoints.is_dir() or all(entry.name == LEADER_FILE for entry in checkpoints.iterdir())


def begun_again(kept: KeptJob) -> KeptJob:
    """Return the job with nothing used of its budgets."""
    whole = replace(kept.state, used_seconds=0.0, gpu_seconds_used=0.0, trained=False, completed_workers=())
    return kept.model_copy(update={"state": whole})


def digest(job: AdaptiveTrainingJob) -> str:
    """Return a key that distinguishes specifications."""
    return hashlib.sha256(json.dumps(job.spec.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def load_state(directory: Path, jobs: list[AdaptiveTrainingJob]) -> RunState | None:
    """Return the state that an earlier run of these jobs left in `directory`, None where there is none.

    `LocalRunError` where it is damaged, of other jobs, or of other specifications of jobs that have not failed.
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
            f"{path}: is of a run of {', '.join(sorted(before))}, not of {', '.join(sorted(now))}; "
            "choose another output folder, or remove this one"
        )
    changed = sorted(key for key in now if now[key] != before[key] and key not in failed)
    if changed:
        raise LocalRunError(
            f"{path}: the specification of {', '.join(changed)} was another one when this run began; "
            "choose another output folder, or remove this one"
        )
    return state
