"""A policy without sense: what it asks for changes all the time. No invariant may depend on what a policy decides.

Some of it cannot be: nodes and jobs that are not there, too many workers, weights below 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from random import Random

from espalier_operator.policies.view import Candidate, Decision, Share, View

WHIM_SECONDS = 7.0
"""It changes its mind so often."""


@dataclass(frozen=True)
class WhimsicalPolicy:
    """Serves jobs in a random order, with a random number of workers; some get no share. It always preempts."""

    seed: int
    name: str = "whimsical"
    queue_order: str = "by whim"

    def decide(self, view: View) -> Decision:
        """Return random shares, the same for the same jobs until it changes its mind."""
        whim = view.now // WHIM_SECONDS
        ranked = sorted((self._mood(job, whim).random(), job.key, job) for job in view.jobs)
        return Decision(
            shares=tuple(self._share(view, job, whim) for _, _, job in ranked if self._mood(job, whim).random() < 0.9),
            preempts=True,
            until=(whim + 1) * WHIM_SECONDS,
        )

    def _mood(self, job: Candidate, whim: float) -> Random:
        return Random(f"{self.seed} {job.key} {whim}")

    def _share(self, view: View, job: Candidate, whim: float) -> Share:
        mood = self._mood(job, whim + 0.5)
        weight = Fraction(mood.choice((1, 1, 2, 3, -1)), mood.choice((1, 1, 2)))
        nodes = sorted(view.nodes)
        wished = mood.choice((0, 0, job.min_workers, job.max_workers)) if nodes else 0
        return Share(
            job=mood.choice((job.key,) * 9 + ("ns/nobody",)),
            workers=mood.choice((0, job.min_workers, job.min_workers, job.min_workers + 1, job.max_workers + 1)),
            spare=mood.choice((0, 1, 3, -1)),
            weight=weight,
            gpu_type=mood.choice((None, None, *view.gpu_types, "antique")),
            nodes=tuple(mood.choice((*nodes, *nodes, "nowhere") if whim % 3 else nodes) for _ in range(wished)),
        )
