"""What a caller sees of a local run: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from espalier_api.allocation import Allocation
from espalier_api.events import EVENT, AllocationChanged
from espalier_api.reasons import Reason
from espalier_api.report import Report
from espalier_api.status import JobPhase
from espalier_operator.facts import Role
from espalier_operator.local.gpus import Gpus, Timeline
from espalier_operator.local.job import LocalJob
from espalier_operator.local.layout import HISTORY_FILE
from espalier_operator.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job, now."""

    name: str
    phase: JobPhase
    reason: Reason
    """Why it is in its phase, or why it gets no more GPUs."""
    report: Report | None
    allocation: Allocation
    base_gpus: int
    lent_gpus: int
    budget_seconds: float
    used_seconds: float
    gpu_seconds_used: float
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run, now."""

    timeline_seconds: float
    """Position of the run on the timeline of `GpuChange.at_seconds`."""
    last_tick_age: float | None
    """Wall seconds since the scheduler last ticked."""
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
    allocations: tuple[AllocationChanged, ...]
    """All adaptations, including those of earlier incarnations of the run."""


def view_run(
    jobs: Iterable[LocalJob], gpus: Gpus, timeline: Timeline, reasons: Mapping[str, Reason], loop: Loop
) -> RunView:
    """Return the view; `reasons` are the last plan's refusals by job key."""
    views = tuple(
        JobView(
            name=job.name,
            phase=job.journal.phase,
            reason=reasons.get(job.key, job.journal.reason),
            report=job.dialogue.report,
            allocation=job.dialogue.allocation,
            base_gpus=gpus.held(job.key, Role.BASE),
            lent_gpus=gpus.held(job.key, Role.EXTRA),
            budget_seconds=job.terms.time_budget_seconds,
            used_seconds=job.state.used_seconds,
            gpu_seconds_used=job.state.gpu_seconds_used,
            restarts=job.state.restarts,
        )
        for job in jobs
    )
    return RunView(
        timeline_seconds=timeline.seconds,
        last_tick_age=loop.last_tick_age(),
        jobs=views,
    )


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
        allocations=tuple(_allocations(job)),
    )


def _allocations(job: LocalJob) -> Iterable[AllocationChanged]:
    history = job.directory / HISTORY_FILE
    if not history.exists():
        return
    for line in history.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            event = EVENT.validate_json(line)
        except ValidationError:
            continue  # incomplete: the scheduler was killed
        if isinstance(event, AllocationChanged):
            yield event
