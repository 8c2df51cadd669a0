"""What a job loses where its GPUs are taken: of jobs that the policy holds equal, the one that loses least gives. Pure.

Asked to stop, a trainer saves a checkpoint. Where it does not get that done, the training since its last one is lost;
whether or not it does, its start is.
"""

from __future__ import annotations

from espalier_operator.model import JobFacts, WorkerRole


def lost_seconds(job: JobFacts, now: float, role: WorkerRole = WorkerRole.BASE) -> float:
    """Return the seconds of work that each GPU of a job's workers of `role` loses if they are taken at `now`.

    Those since its last checkpoint, and those of the start that has to be repeated; an extra worker leaves between two
    steps, so of it the start alone. 0 where nothing is known.
    """
    start = job.start_seconds or 0.0
    if role is WorkerRole.EXTRA:
        return start
    if job.saved_at is None or job.admitted_at is None:
        return 0.0
    # What goes back to its admission contains the start.
    return max(0.0, now - job.saved_at) + (start if job.saved_at > job.admitted_at else 0.0)
