"""Loss of a job whose GPUs are taken: of jobs that are equal to the policy, the one with the smallest loss gives. Pure.

A trainer that is requested to stop saves a checkpoint. If it fails to, the training since its last one is lost; its
start is lost in any case.
"""

from __future__ import annotations

from espalier_operator.model import JobFacts, WorkerRole


def lost_seconds(job: JobFacts, now: float, role: WorkerRole = WorkerRole.BASE) -> float:
    """Return the seconds of work that each GPU of a job's workers of `role` loses if they are taken at `now`.

    They are the seconds since its last checkpoint and of the repeated start; an extra worker leaves between two steps,
    so it loses only the start. 0 where unknown.
    """
    start = job.start_seconds or 0.0
    if role is WorkerRole.EXTRA:
        return start
    if job.saved_at is None or job.admitted_at is None:
        return 0.0
    # The time since its admission contains the start.
    return max(0.0, now - job.saved_at) + (start if job.saved_at > job.admitted_at else 0.0)
