"""Jobs that are told which type of GPU to have, on a cluster in which they carry that out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espalier_core.estimates.goodput import StepTime
from espalier_operator.model import JobFacts, JobTerms, Node
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision, Share, View, base_share
from operator_world.cluster import Cluster


def measured(gpu_type: str, seconds: float) -> StepTime:
    """Return what a trainer of one worker measured on a type of GPU."""
    return StepTime(nodes=1, workers=1, batch_size=8, step_seconds=seconds, sync_seconds=0.0, gpu_type=gpu_type)


def job(key: str, seconds: Mapping[str, float] | None = None, *, yields: bool = True, **terms: Any) -> JobFacts:
    """Return a waiting job of one worker, with the seconds of its step by type of GPU."""
    asked: dict[str, Any] = {"min_replicas": 1, "max_replicas": 1, "time_budget_seconds": 1e5, **terms}
    points = tuple(measured(gpu_type, each) for gpu_type, each in (seconds or {}).items())
    return JobFacts(key=key, terms=JobTerms(base_preemptible=yields, **asked), submitted_at=0.0, speeds=points)


def step(cluster: Cluster, policy: str | Policy, *, binds: bool = True) -> list[Any]:
    """Plan and carry out, and let the world follow; kube-scheduler only if it `binds`."""
    planned = plan(cluster.snapshot(), configured(policy) if isinstance(policy, str) else policy, cluster.now)
    cluster.carry_out(planned)
    cluster.bury()
    cluster.reveal()
    if binds:
        cluster.bind()
    cluster.start_leaders()
    return [*planned.actions]


def on(cluster: Cluster) -> dict[str, str | None]:
    """Return the type of GPU of each job that runs."""
    return {key: each.gpu_type for key, each in cluster.jobs.items() if each.admitted_at is not None}


class Cycles:
    """Gives each job the type that it is told, the jobs in the order of their keys; None: it waits."""

    name, queue_order = "turns", "by turns"

    def __init__(self, **types: str | None) -> None:
        """Take the types by key of job."""
        self.types = types

    def decide(self, view: View) -> Decision:
        """Return the base workers of each job that has a type."""
        jobs = sorted(view.jobs, key=lambda each: each.key)
        named = [(each, self.types.get(each.key)) for each in jobs]
        shares = (replace(base_share(each), gpu_type=name) for each, name in named if name)
        waiting = (Share(job=each.key, workers=0) for each, name in named if not name)
        return Decision(shares=(*shares, *waiting), preempts=True)


def settled(cluster: Cluster, policy: Cycles) -> list[list[Any]]:
    """Step until nothing is left to do; stopped leaders save their checkpoints at different times."""
    found = []
    for _ in range(20):
        found.append(step(cluster, policy))
        stopping = sorted(
            key for key, each in cluster.jobs.items() if each.stopping is not None and each.leader_running
        )
        for key in stopping[:1]:
            cluster.change(key, leader_running=False, training=False)
        cluster.pass_time(5.0)
    assert found[-1] == []
    return found


def ring(*sizes: int, spare: int = 0, **terms: Any) -> Cluster:
    """Jobs j0, j1, ... of these sizes on types t0, t1, ..., each of which has so many GPUs and `spare` more."""
    cluster = Cluster()
    cluster.now = 1000.0
    jobs = {f"j{at}": job(f"j{at}", min_replicas=size, max_replicas=size, **terms) for at, size in enumerate(sizes)}
    for at, size in enumerate(sizes):
        cluster.nodes[f"n{at}"] = Node(name=f"n{at}", gpu_type=f"t{at}", allocatable=size + spare)
    cluster.jobs = jobs
    settled(cluster, Cycles(**{f"j{at}": f"t{at}" for at in range(len(sizes))}))
    assert on(cluster) == {f"j{at}": f"t{at}" for at in range(len(sizes))}
    cluster.pass_time(100.0)
    return cluster
