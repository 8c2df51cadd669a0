"""How fast jobs are on each type of GPU, from what their trainers measured there. Pure.

What was measured holds. The prior for the rest: jobs and types are independent, log speed(job, type) = job + type, the
sums of logarithms that come closest to what was measured (a two-way analysis of variance without interaction). So a
type on which others are twice as fast is expected to be twice as fast for a job too; one of which nothing is known is
expected to be like the average one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from espalier_core.estimates.throughput import on_type
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.constraints import Constraints
from espalier_operator.model.queues import Ledger
from espalier_operator.policies.speed_models import MeasuredOutlook

_SWEEPS: Final = 50
"""Of the fit; each brings rows and columns closer to what was measured."""
_RIDGE: Final = 1e-3
"""Weight of an average type compared with what was measured, so that types without a common job have one scale."""


class MeasuredSpeeds:
    """`policies.view.Speeds` of the jobs of a snapshot. Nothing is computed before it is asked for."""

    def __init__(self, snapshot: Snapshot, jobs: Sequence[JobFacts], gpu_types: Sequence[str]) -> None:
        """Take the jobs that may be asked for, and the types of GPU."""
        self._jobs, self._types = {job.key: job for job in jobs}, gpu_types
        self._nodes = snapshot.nodes
        self._ledger = Ledger(snapshot.queues, ())
        self._admitted: dict[tuple[str, Constraints], bool] = {}

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return its steps a second with its base workers; 0 on types that it may not use, and with another job."""
        facts = self._jobs[job]
        if beside is not None or not self._may_run(facts, gpu_type):
            return 0.0
        known = self._measured[job].get(gpu_type)
        return known or math.exp(self._effects[0].get(job, 0.0) + self._effects[1].get(gpu_type, 0.0))

    def _may_run(self, job: JobFacts, gpu_type: str) -> bool:
        """Return whether its template, the nodes and its queue would let the job run on a type, were all GPUs free."""
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
        """Steps a second by job and type."""
        largest = max((node.allocatable for node in self._nodes), default=1)
        return {key: _measured(job, self._types, largest) for key, job in self._jobs.items()}

    @cached_property
    def _effects(self) -> tuple[dict[str, float], dict[str, float]]:
        """The logarithms of jobs and of types."""
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
            outlook = MeasuredOutlook(job=replace(job, speeds=points), gpus_per_node=gpus_per_node)
            found[gpu_type] = outlook.goodput(nodes, workers)
    return found
