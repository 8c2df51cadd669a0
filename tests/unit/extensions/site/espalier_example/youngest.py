"""A scheduling policy: who came last goes first."""

from __future__ import annotations

from espalier_operator.policies.view import Decision, Elasticity, Share, View


class YoungestFirst:
    """Base and extra GPUs go to the youngest job, all that it can use."""

    name = "youngest-first"
    queue_order = "the youngest first"
    elasticity = Elasticity.FIXED

    def decide(self, view: View) -> Decision:
        """Return a share of `max_workers` for each job."""
        young = sorted(view.jobs, key=lambda job: (-job.submitted_at, job.key))
        return Decision(shares=tuple(Share(job=job.key, workers=job.max_workers) for job in young))
