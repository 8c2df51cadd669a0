"""How soon a plan must be made because of what is new of one job. Pure.

Most news of a job changes no plan: its workers come up as planned, its leader learns of them, its figures grow. A plan
of a large cluster takes long, and whoever waits for GPUs waits for the plan before it as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from espalier_operator.job.state import Grant, JobState
from espalier_operator.model import JobFacts, Worker, WorkerState

SOON: Final = 0.0
"""Wall seconds."""
LATER: Final = 0.5
"""Wall seconds within which a plan takes in that workers came up as planned."""
NEVER: Final = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One job as plans see it."""

    state: JobState
    facts: JobFacts | None
    workers: tuple[Worker, ...]


def urgency_of(before: Picture, after: Picture) -> float:
    """Return within how many wall seconds a plan must be made because a job has become `after`."""
    if before.facts is None or after.facts is None:
        return SOON if before.facts is not after.facts else NEVER
    if _of_state(before.state) != _of_state(after.state) or _observed(before.facts) != _observed(after.facts):
        return SOON
    if before.state.reclaim is not None and before.facts.acknowledged_generation != after.facts.acknowledged_generation:
        return SOON  # the workers may go
    if not _only_come(before.workers, after.workers):
        return SOON
    same = before.workers == after.workers and before.state.essence == after.state.essence
    return NEVER if same and _measured(before.facts) == _measured(after.facts) else LATER


def _of_state(state: JobState) -> JobState:
    """Return `state` without what changes while workers come up: they are seen, kept promises, and announced."""
    return replace(
        state.essence, grant=Grant(), incarnations=(), promised_until=None, unplaced=0, hold_until=None, unpinned=False
    )


def _observed(facts: JobFacts) -> tuple[object, ...]:
    """Return what was observed of a job, and is no part of its state as that is compared; without figures."""
    return (
        facts.terms,
        facts.leader_running,
        facts.has_reported,
        facts.training,
        facts.evaluating,
        facts.trouble,
        facts.refused_since,
    )


def _measured(facts: JobFacts) -> tuple[object, ...]:
    """Return what policies decide by."""
    return facts.speeds, facts.done, facts.noise_scale, facts.growth


def _only_come(before: tuple[Worker, ...], after: tuple[Worker, ...]) -> bool:
    """Return whether workers were only added, bound to nodes, or began to run."""
    now = {worker.name: worker for worker in after}
    for worker in before:
        found = now.get(worker.name)
        if found is None or (worker.node is not None and found.node != worker.node):
            return False
    was = {worker.name: worker for worker in before}
    return all(worker.state is not WorkerState.TERMINATING or was.get(worker.name) == worker for worker in after)
