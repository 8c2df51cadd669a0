"""What jobs have left to do, as far as that is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from espalier_operator.policies.view import Candidate, View


def remaining_steps(view: View, jobs: Sequence[Candidate], speeds: Sequence[float]) -> list[float]:
    """Return the steps that each job has left; where that is not known, as many seconds' as the others on average.

    `speeds` are the steps a second of each, which turn one into the other. A program says what part of its work it has
    done; its rest is as many seconds as that took, in proportion.
    """
    known = {job: view.outlooks[job.key].remaining_steps for job in jobs if job.key in view.outlooks}
    for job, speed in zip(jobs, speeds, strict=True):
        if job.rest is not None:
            known[job] = job.rest / max(1, job.min_workers * job.gpus_per_worker) * speed
    seconds = [known[job] / speed for job, speed in zip(jobs, speeds, strict=True) if job in known]
    average = sum(seconds) / len(seconds) if seconds else 1.0
    return [max(known.get(job, average * speed), 1e-9) for job, speed in zip(jobs, speeds, strict=True)]
