"""A cluster's own history as a workload for learning: the jobs of an audit log, drawn repeatedly.

An episode has jobs of the history in random order, some of them several times, which arrive at the history's rate. The
jobs are divided by submission time: the first ones are for learning, later ones for choosing, and the last ones for
judging, so that a policy is judged by jobs later than those that it learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.history import AuditHistory, read_history
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.rounds import SimulatedNode

FEWEST: Final = 20
"""Minimum number of jobs in a history for learning."""
PARTS: Final = (0.6, 0.8)
"""Ends of the parts of the jobs for learning and for choosing; the rest is for judging."""
MOST_JOBS: Final = 64
"""Maximum number of jobs in an episode."""


@dataclass(frozen=True, slots=True)
class HistoryWorkload:
    """Episodes of a cluster's history."""

    nodes: Sequence[SimulatedNode]
    most_jobs: int
    """Maximum number of jobs in an episode."""
    elastic: int
    """Number of jobs whose speed with more workers was measured."""
    _history: AuditHistory
    _order: Sequence[int]
    """Indices of jobs, by submission time."""
    _gap: float
    """Mean seconds between two submissions."""

    @property
    def jobs(self) -> int:
        """Number of jobs of the history."""
        return len(self._order)

    def draw(self, purpose: SeedSplit, index: int) -> list[SimulatedJob]:
        """Return the jobs of an episode."""
        bounds = (0, *(int(part * self.jobs) for part in PARTS), self.jobs)
        own = self._order[bounds[purpose] : bounds[purpose + 1]]
        rng = np.random.default_rng((53, purpose, index))
        times = np.cumsum(rng.exponential(self._gap, self.most_jobs))
        found = []
        for number, (chosen, at) in enumerate(zip(rng.choice(len(own), self.most_jobs), times, strict=True)):
            job = self._history.elastic_job(own[int(chosen)])
            job.name, job.submitted_at = f"{job.name} #{number}", float(at)
            found.append(job)
        return found


def workload_of(folder: Path) -> HistoryWorkload:
    """Return the workload of an audit log. Raise `TraceError` if the log is damaged, or has too few jobs."""
    history = read_history(folder)
    jobs = history.jobs()
    if len(jobs) < FEWEST:
        raise TraceError(
            f"{folder}: has {len(jobs)} jobs; at least {FEWEST} are needed to learn from: let the operator write it "
            "for longer"
        )
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].submitted_at)
    span = jobs[order[-1]].submitted_at - jobs[order[0]].submitted_at
    return HistoryWorkload(
        nodes=history.nodes,
        most_jobs=min(MOST_JOBS, len(jobs)),
        elastic=sum(history.elastic_job(index).speed_model is not None for index in order),
        _history=history,
        _order=order,
        _gap=max(span / (len(jobs) - 1), 1e-3),
    )
