"""Facts for the planner: nodes, jobs that wait or train, the workers that they have; and the plan that follows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    Avoided,
    JobFacts,
    JobTerms,
    NamespaceLimit,
    Node,
    Promise,
    Snapshot,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import Admit, Plan, Stop
from espalier_operator.model.queues import QueueLimits
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.fair import FairPolicy

NOW: Final = 1000.0
FAIR: Final = FairPolicy()
KINDS: Final = {
    Node: "nodes",
    JobFacts: "jobs",
    Worker: "workers",
    Promise: "promises",
    QueueLimits: "queues",
    NamespaceLimit: "namespace_limits",
    Avoided: "avoided",
}
"""Where in a snapshot a fact is, by its class."""
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


def worker(
    job: str | None, index: int = 0, *, role: WorkerRole = WorkerRole.BASE, node: str | None = None, **changes: Any
) -> Worker:
    """Return a worker of a job: it runs on a node, or waits where it has none."""
    state = WorkerState.PENDING if node is None else WorkerState.RUNNING
    made = Worker(name=f"{job}-{role}-{index}", job=job, role=role, index=index, node=node, gpus=1, state=state)
    return replace(made, **changes)


def base_on(facts: JobFacts, *nodes: str | None, state: WorkerState = WorkerState.RUNNING) -> list[Worker]:
    """Return base workers of a job, one on each of these nodes."""
    gpus = facts.terms.gpus_per_worker
    return [worker(facts.key, index, node=on, gpus=gpus, state=state) for index, on in enumerate(nodes)]


def workers_of(facts: JobFacts, node: str = "n", state: WorkerState = WorkerState.RUNNING) -> list[Worker]:
    """Return all workers of a job, on one node."""
    given: dict[str, Any] = {"node": node, "gpus": facts.terms.gpus_per_worker, "state": state}
    base = base_on(facts, *(node,) * facts.terms.min_replicas, state=state)
    return base + [worker(facts.key, index, role=WorkerRole.EXTRA, **given) for index in range(facts.extra)]


def running_on(node: str, *jobs: JobFacts) -> list[JobFacts | Worker]:
    """Return jobs, and all their workers on one node."""
    return [*jobs, *(worker for each in jobs for worker in workers_of(each, node))]


def node(name: str = "n", gpus: int = 1, gpu_type: str = "a", **changes: Any) -> Node:
    """Return a node that is well."""
    return replace(Node(name=name, gpu_type=gpu_type, allocatable=gpus), **changes)


def foreign(gpus: int = 1, on: str | None = None, **changes: Any) -> Worker:
    """Return a pod of others, which waits, or runs on a node."""
    named = {"name": f"foreign-{gpus}", **changes}
    return worker(None, role=WorkerRole.FOREIGN, node=on, gpus=gpus, **named)


def world(*given: Any, now: float = NOW, **others: Any) -> Snapshot:
    """Return a snapshot of facts of `KINDS`, or lists of them, in any order; `others` are its other fields.

    A dictionary names nodes and their GPUs.
    """
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for each in given:
        nodes = [node(name, gpus) for name, gpus in each.items()] if isinstance(each, dict) else each
        for fact in nodes if isinstance(nodes, list | tuple) else (nodes,):
            found[KINDS[type(fact)]].append(fact)
    return Snapshot(taken_at=now, **{name: tuple(facts) for name, facts in found.items()}, **others)


def decide(*given: Any, policy: Policy = FAIR, now: float = NOW, **others: Any) -> Plan:
    """Return the plan for a `world`."""
    return plan(world(*given, now=now, **others), policy, now)


def starts(*jobs: str, on: str = "a") -> tuple[Admit, ...]:
    """Return the actions by which jobs start on a type of GPU."""
    return tuple(Admit(job=each, gpu_type=on) for each in jobs)


def admitted(planned: Plan) -> list[str]:
    """Return the names of the jobs that start, in order."""
    return [action.job.rpartition("/")[2] for action in planned.actions if isinstance(action, Admit)]


def stopped(planned: Plan) -> list[str]:
    """Return the names of the jobs that are to stop, in order."""
    return [action.job.rpartition("/")[2] for action in planned.actions if isinstance(action, Stop)]


def kinds(planned: Plan) -> list[type[Any]]:
    """Return the classes of the actions, in order."""
    return [type(action) for action in planned.actions]


def refused(planned: Plan) -> dict[str, Reason]:
    """Return why jobs wait, or are lent no more, by their names."""
    return {key.rpartition("/")[2]: refusal.reason for key, refusal in planned.refusals.items()}
