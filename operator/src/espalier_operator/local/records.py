"""A local job as the planner is told of it, and as it is kept on disk."""

from __future__ import annotations

from typing import Final

from espalier_api.report import TrainerPhase
from espalier_operator.facts import JobFacts
from espalier_operator.job.budget import Leader
from espalier_operator.local.job import LocalJob
from espalier_operator.local.state import JobState, digest

LOCAL_GPU_TYPE: Final = "local"
"""A machine's GPUs are taken to be of one type."""


def facts_of(job: LocalJob, now: float) -> JobFacts:
    """Return what the planner is told of a submitted job."""
    return JobFacts(
        key=job.key,
        terms=job.terms,
        submitted_at=now if job.submitted_at is None else job.submitted_at,
        admitted_at=job.admitted_at,
        gpu_type=None if job.admitted_at is None else LOCAL_GPU_TYPE,
        generation=job.allocation.generation,
        acknowledged_generation=job.acknowledged,
        extra=job.extra,
        reclaim=job.reclaim,
        granted_at=job.granted_at,
        changed_at=job.changed_at,
        leader_running=job.process is not None,
        has_reported=job.fresh,
        training=job.leader is Leader.TRAINING,
        evaluating=job.report_phase is TrainerPhase.EVALUATING,
        trained=job.trained,
        used_seconds=job.meter.used_seconds,
        gpu_seconds_used=job.meter.gpu_seconds_used,
        failures=job.failures,
        last_failure=job.last_failure,
        preemptions=job.preemptions,
        stopping=job.stopping,
        ended=job.ended,
        finished=job.finished,
    )


def state_of(job: LocalJob) -> JobState:
    """Return what is kept on disk of a job."""
    return JobState(
        job=job.key,
        spec_digest=digest(job.job),
        submitted_at=job.submitted_at,
        used_seconds=job.meter.used_seconds,
        gpu_seconds_used=job.meter.gpu_seconds_used,
        generation=job.allocation.generation,
        failures=job.failures,
        restarts=job.restarts,
        preemptions=job.preemptions,
        phase=job.phase,
        reason=job.reason,
        message=job.message,
        exit_code=job.exit_code,
    )
