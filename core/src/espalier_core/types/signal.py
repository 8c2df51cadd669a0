"""The signal on Kubernetes: the allocation document that follows from a job and its status.

The operator writes it to the pods' annotation `espalier.dev/allocation` (seen through the downward API); a trainer
that watches its own job makes the same document from what it sees.
"""

from __future__ import annotations

from typing import Final

from espalier_core.types.allocation import AllocationDocument, TimeBudget
from espalier_core.types.job import GROUP, AdaptiveTrainingJob
from espalier_core.types.status import JobStatus

ALLOCATION_ANNOTATION: Final = f"{GROUP}/allocation"
JOB_ANNOTATION: Final = f"{GROUP}/job"
"""The job as JSON, without its status: the trainer's job file."""
REPORT_KEY: Final = "report.json"
"""The key of the report ConfigMap."""


def allocation_document(job: AdaptiveTrainingJob, status: JobStatus | None = None) -> AllocationDocument:
    """Return the document for `status` (default: the job's own)."""
    known = status or job.status or JobStatus()
    scheduling, stopping = known.scheduling, known.scheduling.stopping
    return AllocationDocument(
        job=job.key,
        allocation=known.allocation,
        time_budget=TimeBudget(
            budget_seconds=job.spec.time_budget_seconds,
            used_seconds=known.time_budget.used_seconds,
            gpu_seconds_used=known.time_budget.gpu_seconds_used,
        ),
        base_replicas=job.spec.min_replicas,
        waits_for_workers=scheduling.gated > 0 and not scheduling.trained,
        stop=None if stopping is None else stopping.reason,
    )
