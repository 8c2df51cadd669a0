"""What policies expect of jobs, from what their trainers measured. Pure.

A job trains for its time budget, however fast it is. What is left of it is therefore the work that it would do in the
rest of the budget with its base workers alone, in their steps; more workers do that work in less time, or more work in
the same time. A job whose trainer chooses the batch size (`batch: Goodput`) is as fast as its goodput at the best size,
by the rule that its trainer follows. The prior, as in Pollux (OSDI 2021, 4.1): what was never measured scales
perfectly, so a policy tries it and learns. Jobs whose extra workers do not train (no `elasticBatch`) have no outlook.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from espalier_core.estimates.goodput import best, gain
from espalier_core.estimates.throughput import LEAST_SECONDS, StepTime, Throughput, fitted, on_type
from espalier_core.types.measurements import GradientNoise
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.policies.view import Outlook

PRIOR_STEP_SECONDS = 1.0
"""A step of a job of which nothing was measured, with its base workers. Policies weigh it by the number of steps that
fit into the budget, so it cancels out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOutlook:
    """A job's speed by the throughput model that fits its measurements (`policies.view.Outlook`)."""

    job: JobFacts
    gpus_per_node: int
    """Of the largest node: workers are assumed to share nodes as far as possible."""
    now: float = 0.0
    """The budget of a job that trains is used up to then."""

    @property
    def remaining_steps(self) -> float:
        """Steps with base workers alone that fit into the rest of the time budget."""
        return self.job.remaining_at(self.now) / self.step_seconds(self.job.terms.min_replicas)

    @property
    def tried_workers(self) -> int:
        """The most workers with which it was measured; its base workers at least."""
        return max(self.job.terms.min_replicas, *(point.workers for point in self.job.speeds), 1)

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which `workers` workers do the work of one step of the base workers."""
        nodes = max(1, -(-workers * self.job.terms.gpus_per_worker // max(1, self.gpus_per_node)))
        return self.seconds(nodes, workers)

    def seconds(self, nodes: int, workers: int) -> float:
        """Return the same for workers on this number of nodes."""
        base = self.job.terms.min_replicas
        model = fitted(self.job.speeds)
        if model is None:
            return PRIOR_STEP_SECONDS * base / max(1, workers)
        limits, noise = self.job.terms.batch_limits, self._noise()
        if limits is not None and noise is not None:
            found = best(model, noise, limits, nodes, workers)
            size = found.batches * limits.batch_size / max(1, workers)
            # Seconds of a step, over the author's steps whose progress is made in it.
            return self._corrected(model, nodes, workers, size, found.passes) / gain(
                noise, limits.batch_size, found.batches
            )
        if self.job.terms.scales_batch:
            batch = self._examples() / base
            return self._corrected(model, nodes, workers, batch) * base / max(1, workers)
        return self._corrected(model, nodes, workers, self._examples() / max(1, workers))

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the steps of the base workers whose work is done in a second, with the best batch size where the job
        lets its trainer choose it.
        """
        return 1 / max(LEAST_SECONDS, self.seconds(nodes, workers))

    @property
    def model(self) -> Throughput | None:
        """The fitted model; None where nothing was measured."""
        return fitted(self.job.speeds)

    def _noise(self) -> GradientNoise | None:
        scale = self.job.noise_scale  # only the ratio counts
        return None if scale is None else GradientNoise(squared_norm=1.0, variance=scale, samples=1)

    def _corrected(self, model: Throughput, nodes: int, workers: int, batch_size: float, passes: int = 1) -> float:
        """Return the model's seconds, times what it is off where it was measured with the most similar workers, and
        of these the most similar batch.

        So what was measured holds, also where the model cannot follow: workers that share cores compute more slowly.
        """

        def distance(point: StepTime) -> tuple[float, int, float]:
            other = abs(math.log(point.batch_size / max(1.0, batch_size)))
            return abs(math.log(point.workers / max(1, workers))), abs(point.nodes - nodes), other

        near = min(self.job.speeds, key=distance)
        known = max(LEAST_SECONDS, model.step_seconds(near.nodes, near.workers, near.batch_size, near.passes))
        seconds = model.step_seconds(nodes, workers, batch_size, passes)
        return max(LEAST_SECONDS, near.step_seconds / known * seconds)

    def _examples(self) -> float:
        """Return the examples of one step of the base workers."""
        last = self.job.speeds[-1]
        workers = self.job.terms.min_replicas if self.job.terms.scales_batch else last.workers
        return float(last.batch_size * workers)


def outlooks_of(snapshot: Snapshot, jobs: Iterable[JobFacts], now: float) -> dict[str, Outlook]:
    """Return the outlooks of those jobs that more workers make faster, by key. Models are fitted when they are asked.

    They are asked for by few policies, and kept (`fitted`) for as long as measurements stay the same.
    """
    elastic = [job for job in jobs if job.terms.trains_together]
    largest = max((node.allocatable for node in snapshot.nodes), default=1) if elastic else 1
    return {job.key: outlook_of(job, largest, now) for job in elastic}


def outlook_of(job: JobFacts, gpus_per_node: int, now: float = 0.0) -> MeasuredOutlook:
    """Return the outlook at `now` of one job, whose workers train together, on nodes with `gpus_per_node` GPUs each."""
    return MeasuredOutlook(job=_on_its_type(job), gpus_per_node=gpus_per_node, now=now)


def _on_its_type(job: JobFacts) -> JobFacts:
    """Return the job with what was measured on the type of GPU that it has; else on that which it had last."""
    if len({point.gpu_type for point in job.speeds}) < 2:
        return job
    own = on_type(job.speeds, job.gpu_type or "")
    return replace(job, speeds=own or on_type(job.speeds, job.speeds[-1].gpu_type))
