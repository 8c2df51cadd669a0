"""Jobs as metrics show them."""

from __future__ import annotations

from espalier_core.types.status import JobStatus
from espalier_operator.kube.metrics.measurements import Owner
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.kube.state.managed_job import ManagedJob


def live(job: ManagedJob) -> LiveJob:
    """Return a job by its status, or the last one."""
    status = job.written or JobStatus()
    return LiveJob(owner=owner(job), name=job.key.partition("/")[2], status=status, facts=job.facts)


def owner(job: ManagedJob) -> Owner:
    """Return whose a job is."""
    namespace, terms = job.key.partition("/")[0], None if job.job is None else job.job.terms
    return Owner(
        namespace=namespace,
        queue="" if terms is None else terms.queue,
        base_gpus=0 if terms is None else terms.min_replicas * terms.gpus_per_worker,
        gpus_per_worker=0 if terms is None else terms.gpus_per_worker,
        created_at=job.object.created_at,
        has_agent=job.has_agent,
    )
