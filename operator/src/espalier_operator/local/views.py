"""What a caller sees of a local run: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from espalier_core.types.allocation import Allocation
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import JobPhase
from espalier_operator.local.gpus import Gpus
from espalier_operator.local.job import LocalJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job, now."""

    name: str
    phase: JobPhase
    reason: Reason
    """Why it is in its phase, or why it gets no more GPUs."""
    allocation: Allocation
    gpus: int
    """Held by its workers; in `allocation`, those that are being taken back no longer count."""
    used_seconds: float
    doing: TrainerPhase | None = None
    """What its leader says that it is doing; None before its first report."""
    step: int = 0
    """The optimizer steps that it has reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run, now."""

    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOutcome:
    """How a job ended, or its state when the run was stopped."""

    job: str
    """Its name."""
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
            allocation=job.dialogue.allocation,
            gpus=gpus.held(job.key),
            used_seconds=job.state.used_seconds,
            doing=None if job.dialogue.report is None or not job.dialogue.is_fresh else job.dialogue.report.phase,
            step=0 if job.dialogue.report is None else job.dialogue.report.step,
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
        report=job.dialogue.report,
    )
