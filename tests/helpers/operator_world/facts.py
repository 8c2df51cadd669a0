"""Facts for the planner: jobs that wait or train, and the workers that they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, JobTerms, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, Plan

TRAINS: Final[Mapping[str, Any]] = dict.fromkeys(("leader_running", "has_reported", "training", "trained"), True)


def job(key: str, low: int = 1, high: int | None = None, *, at: float = 0.0, **changes: Any) -> JobFacts:
    """Return a waiting job; fields of `JobTerms` and of `JobFacts` alike, `only_on` is `JobTerms.gpu_type`."""
    terms: dict[str, Any] = {"time_budget_seconds": 500.0, "gpu_type": changes.pop("only_on", None)}
    names = JobTerms.__dataclass_fields__.keys() - {"gpu_type"}  # a field of both: that of the facts is meant
    terms |= {name: changes.pop(name) for name in list(changes) if name in names}
    asked = JobTerms(min_replicas=low, max_replicas=low if high is None else high, **terms)
    return replace(JobFacts(key=key, terms=asked, submitted_at=at), **changes)


def trains(key: str, low: int = 1, high: int | None = None, *, extra: int = 0, **changes: Any) -> JobFacts:
    """Return a job that trains on type `a`, since the second 0; it has had its extra GPUs for long."""
    given = 1.0 if extra else None
    state = {"admitted_at": 0.0, "gpu_type": "a", "generation": 1, "granted_at": given, "changed_at": given}
    return job(key, low, high, extra=extra, **{**state, **TRAINS, **changes})


def base_on(facts: JobFacts, *nodes: str | None, state: WorkerState = WorkerState.RUNNING) -> list[Worker]:
    """Return base workers of a job, one on each of these nodes."""
    return _workers(facts, WorkerRole.BASE, nodes, state)


def workers_of(facts: JobFacts, node: str = "n", state: WorkerState = WorkerState.RUNNING) -> list[Worker]:
    """Return all workers of a job, on one node."""
    base = base_on(facts, *(node,) * facts.terms.min_replicas, state=state)
    return base + _workers(facts, WorkerRole.EXTRA, (node,) * facts.extra, state)


def _workers(facts: JobFacts, role: WorkerRole, nodes: tuple[str | None, ...], state: WorkerState) -> list[Worker]:
    return [
        Worker(
            name=f"{facts.key}-{role}-{index}",
            job=facts.key,
            role=role,
            index=index,
            node=node,
            gpus=facts.terms.gpus_per_worker,
            state=state,
        )
        for index, node in enumerate(nodes)
    ]


def admitted(planned: Plan) -> list[str]:
    """Return the names of the jobs that start, in order."""
    return [action.job.rpartition("/")[2] for action in planned.actions if isinstance(action, Admit)]


def refused(planned: Plan) -> dict[str, Reason]:
    """Return why jobs wait, or are lent no more, by their names."""
    return {key.rpartition("/")[2]: refusal.reason for key, refusal in planned.refusals.items()}
