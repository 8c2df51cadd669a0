"""Speed models of jobs, from the measurements of their trainers, by workers and by type of GPU. Pure.

A job trains for its time budget, whatever its speed. Its remaining work is therefore the work of its base workers alone
in the rest of the budget, in their steps; more workers do that work in less time, or more work in the same time. A job
whose trainer chooses the batch size (`batch: Goodput`) is as fast as its goodput at the best size, by the rule of its
trainer. The prior, as in Pollux (OSDI 2021, 4.1): unmeasured configurations scale perfectly, so a policy tries them and
learns. Jobs whose extra workers do not train (no `elasticBatch`) have no speed model.

On each type of GPU, measurements are used where they exist. The prior for other types: jobs and types are independent,
log speed(job, type) = job + type, the sums of logarithms that come closest to the measurements (a two-way analysis of
variance without interaction). So a type on which others are twice as fast is expected to be twice as fast for a job
too; an unmeasured type is expected to be average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from espalier_core.estimates.goodput import LEAST_SECONDS, Throughput, WorkSpeed, fitted, on_type
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.constraints import Constraints
from espalier_operator.model.queues import QueueUsage
from espalier_operator.policies.view import SpeedModel

_SWEEPS: Final = 50
"""Iterations of the fit; each brings rows and columns closer to the measurements."""
_RIDGE: Final = 1e-3
"""Weight of an average type relative to a measurement, so that types without a common job have one scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeedModel:
    """A job's speed by the throughput model fitted to its measurements (`policies.view.SpeedModel`)."""

    job: JobFacts
    gpus_per_node: int
    """GPUs of the largest node: workers are assumed to share nodes as far as possible."""
    now: float = 0.0
    """Time up to which a training job has used its budget."""

    @property
    def remaining_steps(self) -> float:
        """Steps with base workers alone that fit into the rest of the time budget."""
        return self.job.remaining_at(self.now) / self.step_seconds(self.job.terms.min_replicas)

    @property
    def tried_workers(self) -> int:
        """The largest measured number of workers, at least its base workers."""
        return max(self.job.terms.min_replicas, *(point.workers for point in self.job.speeds), 1)

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which `workers` workers do the work of one step of the base workers."""
        nodes = max(1, -(-workers * self.job.terms.gpus_per_worker // max(1, self.gpus_per_node)))
        return self.seconds(nodes, workers)

    def seconds(self, nodes: int, workers: int) -> float:
        """Return the same for workers on this number of nodes."""
        terms = self.job.terms
        return WorkSpeed(
            speeds=self.job.speeds,
            base=terms.min_replicas,
            scales_batch=terms.scales_batch,
            limits=terms.batch_limits,
            noise_scale=self.job.noise_scale,
        ).seconds(nodes, workers)

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the work per second, in steps of the base workers; at the best batch size if trainers choose it."""
        return 1 / max(LEAST_SECONDS, self.seconds(nodes, workers))

    @property
    def model(self) -> Throughput | None:
        """The fitted model; None where nothing was measured."""
        return fitted(self.job.speeds)


def speed_models_of(snapshot: Snapshot, jobs: Iterable[JobFacts], now: float) -> dict[str, SpeedModel]:
    """Return the speed models of jobs whose extra workers train, by key.

    Models are fitted on use, by few policies, and cached (`fitted`) while measurements stay the same.
    """
    elastic = [job for job in jobs if job.terms.trains_together]
    largest = max((node.allocatable for node in snapshot.nodes), default=1) if elastic else 1
    return {job.key: speed_model_of(job, largest, now) for job in elastic}


def speed_model_of(job: JobFacts, gpus_per_node: int, now: float = 0.0) -> MeasuredSpeedModel:
    """Return the speed model at `now` of one job whose workers train together, with `gpus_per_node` GPUs per node."""
    return MeasuredSpeedModel(job=_on_its_type(job), gpus_per_node=gpus_per_node, now=now)


def _on_its_type(job: JobFacts) -> JobFacts:
    """Return the job with the measurements on its type of GPU, else on the type of the last measurement."""
    if len({point.gpu_type for point in job.speeds}) < 2:
        return job
    own = on_type(job.speeds, job.gpu_type or "")
    return replace(job, speeds=own or on_type(job.speeds, job.speeds[-1].gpu_type))


class MeasuredSpeeds:
    """`policies.view.TypeSpeeds` of the jobs of a snapshot, computed on demand."""

    def __init__(self, snapshot: Snapshot, jobs: Sequence[JobFacts], gpu_types: Sequence[str]) -> None:
        """Take the jobs that may be queried, and the types of GPU."""
        self._jobs, self._types = {job.key: job for job in jobs}, gpu_types
        self._nodes = snapshot.nodes
        self._ledger = QueueUsage(snapshot.queues, ())
        self._admitted: dict[tuple[str, Constraints], bool] = {}

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return the steps per second with base workers; 0 on types that it may not use, and beside another job."""
        facts = self._jobs[job]
        if beside is not None or not self._may_run(facts, gpu_type):
            return 0.0
        known = self._measured[job].get(gpu_type)
        return known or math.exp(self._effects[0].get(job, 0.0) + self._effects[1].get(gpu_type, 0.0))

    def _may_run(self, job: JobFacts, gpu_type: str) -> bool:
        """Return whether its template, the nodes and its queue allow the job to run on a type if all GPUs were free."""
        terms = job.terms
        if terms.gpu_type not in (None, gpu_type) or not self._ledger.allows(job.claim, gpu_type, borrowing=True):
            return False
        asked = gpu_type, terms.constraints
        if asked not in self._admitted:
            unbound = replace(terms, gpu_type=None)
            self._admitted[asked] = any(node.gpu_type == gpu_type and unbound.admit(node) for node in self._nodes)
        return self._admitted[asked]

    @cached_property
    def _measured(self) -> Mapping[str, Mapping[str, float]]:
        """Measured steps per second by job and type."""
        largest = max((node.allocatable for node in self._nodes), default=1)
        return {key: _measured(job, self._types, largest) for key, job in self._jobs.items()}

    @cached_property
    def _effects(self) -> tuple[dict[str, float], dict[str, float]]:
        """Logarithmic effects of jobs and of types."""
        return effects(
            {job: {name: math.log(speed) for name, speed in row.items()} for job, row in self._measured.items() if row}
        )


def effects(table: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return r and c with the least sum of (table[i][j] − r[i] − c[j])² over the known entries."""
    rows = {row: sum(known.values()) / len(known) for row, known in table.items()}
    columns = {column: 0.0 for known in table.values() for column in known}
    for _ in range(_SWEEPS):
        rests: dict[str, list[float]] = {column: [] for column in columns}
        for row, known in table.items():
            for column, value in known.items():
                rests[column].append(value - rows[row])
        columns = {column: sum(rest) / (len(rest) + _RIDGE) for column, rest in rests.items()}
        rows = {
            row: sum(value - columns[column] for column, value in known.items()) / len(known)
            for row, known in table.items()
        }
    return rows, columns


def _measured(job: JobFacts, gpu_types: Sequence[str], gpus_per_node: int) -> dict[str, float]:
    workers = job.terms.min_replicas if job.terms.trains_together else 1
    nodes = max(1, -(-workers * job.terms.gpus_per_worker // max(1, gpus_per_node)))
    found = {}
    for gpu_type in gpu_types:
        points = on_type(job.speeds, gpu_type)
        if points:
            speed_model = MeasuredSpeedModel(job=replace(job, speeds=points), gpus_per_node=gpus_per_node)
            found[gpu_type] = speed_model.goodput(nodes, workers)
    return found
