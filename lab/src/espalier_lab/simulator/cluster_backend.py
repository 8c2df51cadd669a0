"""The backend of the simulated cluster, which gives facts to the planner and executes its plans. No clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from espalier_lab.simulator.cluster_job import ClusterJob
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.latencies import Latencies
from espalier_lab.simulator.rounds import SimulatedNode as Machine
from espalier_lab.simulator.rounds import spread
from espalier_operator.job.view import promise_of
from espalier_operator.model import NOWHERE, JobTerms, Node, Rules, Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.model.constraints import ANYWHERE, Constraints, NodeSelectorRequirement, NodeSelectorTerm

_TYPE_LABEL: Final = "gpu-type"
_BUDGET_SECONDS: Final = 1e12
"""Unlimited budget: jobs of traces have none."""


def _on_types(gpu_types: tuple[str, ...]) -> Constraints:
    """Return the node constraints of a job that can run only on these types; none: on all."""
    if not gpu_types:
        return ANYWHERE
    return Constraints(affinity=(NodeSelectorTerm(labels=(NodeSelectorRequirement(_TYPE_LABEL, "In", gpu_types),)),))


class ClusterBackend:
    """Nodes, and the submitted jobs that are not complete; with jobs that ended since the last decision."""

    def __init__(self, machines: Sequence[Machine], latencies: Latencies, *, preemptible: bool) -> None:
        """Begin without jobs; `preemptible` jobs yield their base GPUs."""
        self._nodes = tuple(
            Node(
                name=machine.name,
                gpu_type=machine.gpu_type,
                allocatable=machine.gpus,
                labels={_TYPE_LABEL: machine.gpu_type},
            )
            for machine in machines
        )
        self._gpus = sum(node.allocatable for node in self._nodes)
        self._latencies, self._preemptible = latencies, preemptible
        # The ends of a trace's jobs are unknown, so no GPUs are reserved for a job: any job that fits starts.
        self._rules = Rules(stop_grace_seconds=latencies.stop_grace_seconds, reservations=0)
        self.jobs: dict[str, ClusterJob] = {}

    def submit(self, job: SimulatedJob, base: int) -> None:
        """Make `job`, which needs `base` workers, visible to the planner."""
        latencies = self._latencies
        terms = JobTerms(
            min_replicas=base,
            max_replicas=max(base, job.most_workers),
            time_budget_seconds=_BUDGET_SECONDS,
            priority=job.priority,
            constraints=_on_types(job.runs_on),
            base_preemptible=self._preemptible if job.preemptible is None else job.preemptible,
            notice_seconds=latencies.notice_seconds,
            cooldown_seconds=latencies.cooldown_seconds,
            min_runtime_seconds=latencies.min_runtime_seconds,
        )
        self.jobs[job.name] = ClusterJob(job, terms, latencies)

    def observe(self, now: float, memory: Mapping[str, Any]) -> Snapshot:
        """Return the planner's view at `now`, with the memory of the policy."""
        facts = tuple(job.facts(now) for job in self.jobs.values())
        promised = ((key, job.state) for key, job in self.jobs.items() if job.state.extra)
        promises = (promise_of(key, state) for key, state in promised)
        return Snapshot(
            taken_at=now,
            nodes=self._nodes,
            workers=tuple(worker for job in self.jobs.values() for worker in job.workers),
            promises=tuple(promise for promise in promises if promise is not None),
            jobs=facts,
            rules=self._rules,
            policy_memory=memory,
        )

    def apply(self, plan: Plan, now: float) -> None:
        """Carry out all of `plan`. Raise `RuntimeError` if a node lacks the granted GPUs."""
        for action in plan.actions:
            self.jobs[action.job].act(action, now, plan.placements.get(action.job, NOWHERE))
        if not plan.actions:
            return
        used = Counter(worker.node for job in self.jobs.values() for worker in job.workers)
        for node in self._nodes:
            if used[node.name] > node.allocatable:
                raise RuntimeError(f"{used[node.name]} workers on the {node.allocatable} GPUs of {node.name}")

    @property
    def lends_nothing(self) -> bool:
        """Whether base workers hold all GPUs."""
        held = sum(len(job.workers) for job in self.jobs.values())
        return held == self._gpus and not any(job.state.extra for job in self.jobs.values())

    def settle(self, now: float, order: Sequence[str]) -> None:
        """Let jobs train with their workers; jobs that are placed again are placed in `order`."""
        if self._latencies.restarts_move:
            self._place_again([self.jobs[key] for key in dict.fromkeys([*order, *self.jobs]) if key in self.jobs])
        for job in self.jobs.values():
            job.settle(now)

    def _place_again(self, jobs: Sequence[ClusterJob]) -> None:
        """Place all workers of jobs with a changed number; the others stay. GPUs are alike."""
        moved = [job for job in jobs if job.is_moved]
        if not moved:
            return
        for job in self.jobs.values():
            job.move_back()
        away = {job.key for job in moved}
        used = Counter(worker.node for job in self.jobs.values() if job.key not in away for worker in job.workers)
        free = [node.allocatable - used[node.name] for node in self._nodes]
        for job in moved:
            job.move([self._nodes[index].name for index in spread(free, len(job.workers))])

    def forget_ended(self) -> list[ClusterJob]:
        """Remove the jobs with a recorded end, and return them."""
        ended = [job for job in self.jobs.values() if job.state.outcome is not None]
        for job in ended:
            del self.jobs[job.key]
        return ended
