"""The driver by rounds for several types of GPU: jobs hold leases of GPUs, as in Gavel's simulator.

In each round the policy decides, and each job with a lease makes the whole steps that fit into it. The round ends with
the last of them, shortly before its time. Jobs arrive and leave between rounds; a job is complete after its last step.
Moving a job costs nothing (Narayanan et al., OSDI 2020, with the released simulator).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.holdings import hold
from espalier_lab.simulator.idling import Idling
from espalier_lab.simulator.typed_jobs import TypedJob
from espalier_operator.policies import Policy
from espalier_operator.policies.leases import LEASE_SECONDS
from espalier_operator.policies.view import Candidate, Decision, View


@dataclass(frozen=True, slots=True)
class TypedNode:
    """A simulated server with GPUs of one type."""

    gpu_type: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAllocation:
    """The lease of a job in a round."""

    gpu_type: str
    nodes: tuple[int, ...]
    """Index of each GPU's node in the cluster, ascending."""
    beside: str | None = None
    """The other job on the same GPUs."""


def gpus_by_type(nodes: Iterable[TypedNode]) -> dict[str, int]:
    """Return the number of GPUs of each type."""
    counted = Counter[str]()
    for node in nodes:
        counted[node.gpu_type] += node.gpus
    return dict(counted)


def fits_a_type(job: TypedJob, gpu_types: Mapping[str, int]) -> bool:
    """Return whether a job ever fits on the GPUs of a type on which it was measured."""
    return any(job.gpus <= gpus and job.speed(gpu_type) > 0 for gpu_type, gpus in gpu_types.items())


def check_types(jobs: Iterable[TypedJob], gpu_types: Mapping[str, int]) -> None:
    """Set the types of the cluster for `jobs`. Raise `TraceError` for a job that never fits on one of them."""
    for job in jobs:
        job.gpu_types = gpu_types
        if not fits_a_type(job, gpu_types):
            where = f"{job.origin}: " if job.origin else ""
            has = ", ".join(f"{gpus} {gpu_type}" for gpu_type, gpus in gpu_types.items())
            raise TraceError(
                f"{where}job {job.name}: needs {job.gpus} GPUs of one type on which it was measured; the cluster "
                f"has {has}: name a larger --cluster, or leave out such jobs with --skip larger"
            )


class TypedRounds:
    """One simulation."""

    def __init__(self, jobs: Sequence[TypedJob], nodes: Sequence[TypedNode], policy: Policy) -> None:
        """Prepare. Raise `TraceError` for a job that never fits."""
        self._jobs, self._policy = sorted(jobs, key=lambda job: job.submitted_at), policy
        self._nodes = list(nodes)
        self._types: Final = gpus_by_type(nodes)
        check_types(jobs, self._types)
        self.now = 0.0
        self._memory: Any = {}
        self._held: dict[str, RoundAllocation] = {}
        self._ended: dict[str, float] = {}
        """Jobs that have ended since the last decision, with their GPU-seconds."""
        self._active: dict[str, TypedJob] = {}

    def run(self, progress: Callable[[int], None] = lambda completed: None) -> None:
        """Run until all jobs are complete; `progress` is called with the number of complete jobs."""
        coming, idling = list(reversed(self._jobs)), Idling(self._policy.name, LEASE_SECONDS)
        while coming or self._active:
            if not self._active:
                self.now = max(self.now, coming[-1].submitted_at)
            while coming and coming[-1].submitted_at <= self.now:
                job = coming.pop()
                self._active[job.name] = job
            self._held = self._granted(self._decide())
            self._ended.clear()
            idling.count(() if self._held else self._active)
            if self._held:
                self._train()
                progress(len(self._jobs) - len(coming) - len(self._active))
                continue
            self.now += LEASE_SECONDS

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return the true speed of a job that is not complete."""
        return self._active[job].speed(gpu_type, None if beside is None else self._active[beside])

    def _decide(self) -> Decision:
        decision = self._policy.decide(
            View(
                now=self.now,
                gpus=sum(self._types.values()),
                jobs=tuple(
                    Candidate(
                        key=job.name,
                        submitted_at=job.submitted_at,
                        min_workers=job.gpus,
                        max_workers=job.gpus,
                        priority=job.priority,
                        workers=job.gpus if job.name in self._held else 0,
                        service=job.service,
                        held_seconds=job.held_seconds,
                    )
                    for job in self._active.values()
                ),
                speed_models=self._active,
                gpu_types=self._types,
                speeds=self,
                ended=dict(self._ended),
                memory=self._memory,
            )
        )
        self._memory = decision.memory
        return decision

    def _granted(self, decision: Decision) -> dict[str, RoundAllocation]:
        """Return the leases, in the order of shares: all requested GPUs of a job, or none.

        A share without a type gets the job's current type, else the one with the most free GPUs. Jobs that stay on a
        type stay on their nodes; the others fill one node after the other, large ones first.
        """
        free = dict(self._types)
        chosen: dict[str, str] = {}
        beside: dict[str, str] = {}
        for share in decision.shares:
            job = self._active[share.job]
            if share.workers < job.gpus:
                continue
            if share.beside is not None:
                if share.beside in chosen:
                    beside[job.name] = share.beside
                continue
            roomy = [each for each in free if free[each] >= job.gpus and job.speed(each) > 0]
            held = self._held[job.name].gpu_type if job.name in self._held else None
            wish = share.gpu_type or (held if held in roomy else max(roomy, key=free.__getitem__, default=None))
            if wish in roomy:
                chosen[job.name] = wish
                free[wish] -= job.gpus
        leases = self._placed(chosen)
        for guest, host in beside.items():
            leases[guest] = replace(leases[host], beside=host)
            leases[host] = replace(leases[host], beside=guest)
        for name, lease in leases.items():
            before = self._held.get(name)
            self._active[name].restarts += before is None or before.nodes != lease.nodes
        for name in self._held.keys() & self._active.keys() - leases.keys():
            self._active[name].evictions += 1
            self._active[name].preemptions += 1
        return leases

    def _placed(self, chosen: Mapping[str, str]) -> dict[str, RoundAllocation]:
        free = [node.gpus for node in self._nodes]
        leases: dict[str, RoundAllocation] = {}
        for name, gpu_type in sorted(chosen.items(), key=lambda item: -self._active[item[0]].gpus):
            before = self._held.get(name)
            if before is not None and before.gpu_type == gpu_type:
                wanted = Counter(before.nodes)
                if all(free[node] >= gpus for node, gpus in wanted.items()):
                    leases[name] = RoundAllocation(gpu_type=gpu_type, nodes=before.nodes)
                    for node, gpus in wanted.items():
                        free[node] -= gpus
        for name, gpu_type in sorted(chosen.items(), key=lambda item: -self._active[item[0]].gpus):
            if name not in leases:
                nodes: list[int] = []
                for index, server in enumerate(self._nodes):
                    if server.gpu_type == gpu_type:
                        taken = min(free[index], self._active[name].gpus - len(nodes))
                        free[index] -= taken
                        nodes += [index] * taken
                leases[name] = RoundAllocation(gpu_type=gpu_type, nodes=tuple(nodes))
        return leases

    def _train(self) -> None:
        """Let the round pass."""
        ends: dict[str, float] = {}
        for name, lease in self._held.items():
            other = None if lease.beside is None else self._active[lease.beside]
            ends[name] = self.now + self._active[name].train(lease.gpu_type, other)
        for name, job in list(self._active.items()):
            job.held_seconds = 0.0
            if name not in ends:
                continue
            partner = self._held[name].beside
            end = ends[name] if partner is None else max(ends[name], ends[partner])
            job.held_seconds = end - self.now
            job.service += hold(job.held, self.now, end, job.gpus / (1 if partner is None else 2))
            if not job.remaining_steps:
                job.completed_at = end
                self._ended[name] = job.service
                del self._active[name]
        self.now = max(ends.values())
