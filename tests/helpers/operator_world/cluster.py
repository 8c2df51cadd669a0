"""A cluster so simple that it is evidently right: what actions do, what a kube-scheduler would bind, what breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    NOWHERE,
    Ended,
    JobFacts,
    JobTerms,
    NamespaceLimit,
    Node,
    Placement,
    Promise,
    Reclaim,
    Rules,
    Snapshot,
    Stopping,
    Worker,
    WorkerRole,
    WorkerState,
)
from espalier_operator.model.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    ReleaseExtra,
    Replace,
    Requeue,
    Stop,
)
from espalier_operator.model.constraints import ANYWHERE, Constraints
from espalier_operator.model.queues import QueueLimits

PROMISE_SECONDS = 20.0
HOLD_SECONDS = 20.0


class Cluster:
    """Nodes, workers and jobs in dictionaries, changed by hand. New workers are seen only after `reveal`."""

    def __init__(self) -> None:
        """Begin empty, at time 0."""
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.workers: dict[str, Worker] = {}
        self.unseen: dict[str, Worker] = {}
        self.jobs: dict[str, JobFacts] = {}
        self.promises: dict[str, Promise] = {}
        self.placements: Mapping[str, Placement] = {}
        self.policy_memory: Mapping[str, Any] = {}
        self.queues: tuple[QueueLimits, ...] = ()
        self.gpu_limit: int | None = None
        """What a ResourceQuota of the namespace `ns` allows of GPUs; None: there is none."""
        self.rules = Rules()
        self.raised_at: dict[str, list[float]] = {}
        self._names: Counter[str] = Counter()

    def snapshot(self) -> Snapshot:
        """Return what a scheduler sees."""
        return Snapshot(
            taken_at=self.now,
            nodes=tuple(replace(node, used=self._used_by_others(node)) for node in self.nodes.values()),
            workers=tuple(self.workers.values()),
            promises=tuple(self.promises.values()),
            jobs=tuple(self.jobs.values()),
            queues=self.queues,
            namespace_limits=() if self.gpu_limit is None else (self._limit(self.gpu_limit),),
            placements=self.placements,
            rules=self.rules,
            policy_memory=self.policy_memory,
        )

    def _limit(self, hard: int) -> NamespaceLimit:
        """Return the quota as the API server counts: pods that the scheduler has not seen yet are in it."""
        pods = (*self.workers.values(), *self.unseen.values())
        used = sum(pod.gpus for pod in pods if pod.job is not None)
        return NamespaceLimit(namespace="ns", quota="team", resource=DEFAULT_GPU_RESOURCE, hard=hard, used=used)

    # ---- the world moves

    def submit(self, key: str, terms: JobTerms) -> None:
        """Add a waiting job."""
        self.jobs[key] = JobFacts(key=key, terms=terms, submitted_at=self.now)

    def foreign(self, gpus: int, gpu_type: str | None, constraints: Constraints = ANYWHERE) -> None:
        """Add a pending pod of somebody else."""
        name = self._name("foreign")
        self.workers[name] = Worker(
            name=name,
            job=None,
            role=WorkerRole.FOREIGN,
            node=None,
            gpus=gpus,
            state=WorkerState.PENDING,
            gpu_type=gpu_type,
            constraints=constraints,
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass; those that train use up budget."""
        self.now += seconds
        for node in list(self.nodes.values()):
            if node.departs_at is not None and node.departs_at <= self.now:
                self.nodes[node.name] = replace(node, allocatable=node.offered, departing=0, departs_at=None)
                while self.free(self.nodes[node.name]) < 0:
                    self.lose_worker([w.name for w in self.workers.values() if w.node == node.name][-1])
        for job in list(self.jobs.values()):
            if job.training and not job.finished:
                self.change(
                    job.key,
                    used_seconds=job.used_seconds + seconds,
                    gpu_seconds_used=job.gpu_seconds_used + seconds * job.gpus_held,
                )

    def reveal(self) -> None:
        """Let the scheduler see the workers that were made, and let promises kept go.

        As in `job.progress`, a promise is kept once its workers are bound: until then they may be made again elsewhere.
        """
        self.workers |= self.unseen
        self.unseen.clear()
        for promise in list(self.promises.values()):
            bound = [worker for worker in self._of(promise.job, WorkerRole.EXTRA) if worker.node is not None]
            if len(bound) >= promise.extra:
                del self.promises[promise.job]

    def bind(self) -> None:
        """Do what kube-scheduler does: bind each pending worker to the first node that has its GPUs."""
        for worker in list(self.workers.values()):
            if worker.node is None and worker.state is WorkerState.PENDING:
                job = self.jobs.get(worker.job or "")
                if job is not None and job.refused_since is not None and worker.role is WorkerRole.BASE:
                    continue
                gpu_type = job.gpu_type if job is not None else worker.gpu_type
                constraints = job.terms.constraints if job is not None else worker.constraints
                for node in self.nodes.values():
                    fits = node.ready and node.schedulable and self.free(node) >= worker.gpus
                    fits = fits and worker.pinned_to in (None, node.name)
                    admitted = node.admits(constraints) and self.has_room(node, constraints)
                    if fits and admitted and gpu_type in (None, node.gpu_type):
                        self.workers[worker.name] = replace(worker, node=node.name, state=WorkerState.RUNNING)
                        break

    def start_leaders(self) -> None:
        """Let each job whose base workers are all bound train and report."""
        for job in list(self.jobs.values()):
            bound = [worker for worker in self._of(job.key, WorkerRole.BASE) if worker.node is not None]
            up = job.admitted_at is not None and not job.finished and len(bound) >= job.terms.min_replicas
            self.change(
                job.key, leader_running=up, training=up, has_reported=job.has_reported or up, trained=job.trained or up
            )

    def acknowledge(self, key: str) -> None:
        """Let the job's leader repeat the generation."""
        self.change(key, acknowledged_generation=self.jobs[key].generation)

    def bury(self) -> None:
        """Let terminating workers be gone."""
        self.workers = {
            name: worker for name, worker in self.workers.items() if worker.state is not WorkerState.TERMINATING
        }

    def lose_worker(self, name: str) -> None:
        """Let a worker vanish; a Job controller would make a base worker again."""
        worker = self.workers.pop(name)
        job = self.jobs.get(worker.job or "")
        if worker.role is WorkerRole.BASE and job is not None and job.admitted_at is not None and not job.finished:
            self.unseen[name] = replace(worker, node=None, state=WorkerState.PENDING)

    def lose_node(self, name: str) -> None:
        """Let a node vanish with all that runs on it."""
        del self.nodes[name]
        for worker in list(self.workers.values()):
            if worker.node == name:
                self.lose_worker(worker.name)

    def complete(self, key: str, ended: Ended) -> None:
        """Let the job's leader end by itself."""
        self.change(key, ended=ended, leader_running=False, training=False)

    def change(self, key: str, **facts: object) -> None:
        """Replace facts of a job."""
        self.jobs[key] = replace(self.jobs[key], **facts)  # type: ignore[arg-type]

    def free(self, node: Node) -> int:
        """Return the GPUs of `node` that no worker holds."""
        return node.allocatable - sum(w.gpus for w in self.workers.values() if w.node == node.name)

    def has_room(self, node: Node, constraints: Constraints) -> bool:
        """Return whether `node` has what a pod requests besides GPUs."""
        used = Counter(node.used)
        for worker in self.workers.values():
            if worker.node == node.name:
                job = self.jobs.get(worker.job or "")
                used.update(dict(worker.constraints.requests if job is None else job.terms.constraints.requests))
        return all(
            name not in node.resources or node.resources[name] - used[name] >= amount
            for name, amount in constraints.requests
        )

    # ---- the scheduler acts

    def place(self, plan: Plan) -> None:
        """Do what any scheduler does with the nodes that a plan chooses, before it does the actions."""
        self.placements, self.policy_memory = plan.placements, plan.policy_memory
        for key, placement in plan.placements.items():
            unseen = Counter(worker.pinned_to for worker in self.unseen.values() if worker.job == key)
            nodes = [*(Counter(placement.extra) - unseen).elements()]
            for name in sorted(placement.moved & self.workers.keys()):
                moved = self.workers.pop(name)
                promise = self.promises.get(key)
                if promise is not None and self.now < promise.expires_at:
                    self.unseen[name] = replace(moved, pinned_to=nodes.pop() if nodes else None)
            for worker in list(self.unseen.values()):
                if worker.job == key and worker.role is WorkerRole.BASE and worker.pinned_to is None:
                    self.unseen[worker.name] = replace(worker, pinned_to=placement.base.get(worker.index))

    def apply(self, action: Action) -> None:
        """Do what any backend does for `action`."""
        job = self.jobs[action.job]
        generation = job.generation + 1
        match action:
            case Admit():
                self.change(
                    job.key, admitted_at=self.now, gpu_type=action.gpu_type, generation=generation, trained=False
                )
                self._make(job, WorkerRole.BASE, range(job.terms.min_replicas))
            case GrantExtra():
                self.change(
                    job.key, extra=action.extra, granted_at=self.now, changed_at=self.now, generation=generation
                )
                self._make(job, WorkerRole.EXTRA, range(job.extra, action.extra))
                self.promises[job.key] = Promise(job=job.key, extra=action.extra, expires_at=self.now + PROMISE_SECONDS)
                self.raised_at.setdefault(job.key, []).append(self.now)
            case NoticeReclaim():
                reclaim = Reclaim(extra=action.extra, deadline=action.deadline, reason=action.reason)
                self.change(job.key, reclaim=reclaim, generation=generation)
            case ReleaseExtra():
                if job.reclaim is None:
                    self.change(job.key, generation=generation)
                self.change(job.key, extra=action.extra, reclaim=None, changed_at=self.now)
                self._end(job.key, WorkerRole.EXTRA, action.extra)
            case Stop():
                self.change(job.key, stopping=Stopping(reason=action.reason, deadline=action.deadline))
            case Replace():
                self.change(job.key, pinned=job.pinned and action.pinned)
                for worker in self._of(job.key, WorkerRole.BASE):
                    if worker.index in action.workers and worker.node is None:
                        del self.workers[worker.name]
                        self.unseen[worker.name] = replace(worker, pinned_to=None)
            case Requeue():
                held = action.hold_until or job.hold_until
                held = self.now + HOLD_SECONDS if action.reason is Reason.UNSCHEDULABLE else held
                self.change(job.key, hold_until=held, refused_since=None)
                self.change(job.key, admitted_at=None, gpu_type=None, extra=0, reclaim=None, stopping=None)
                self._retire(job.key)
            case Finish() | Fail():
                self.change(job.key, finished=True, extra=0, reclaim=None, stopping=None)
                self._retire(job.key)

    def carry_out(self, planned: Plan) -> None:
        """Do all that a plan says."""
        self.place(planned)
        for action in planned.actions:
            self.apply(action)

    def catch_up(self) -> None:
        """Let the world follow: dead pods are gone, others are seen and bound, leaders start."""
        self.bury()
        self.reveal()
        self.bind()
        self.start_leaders()

    def _used_by_others(self, node: Node) -> dict[str, int]:
        used = Counter(node.used)
        for worker in self.workers.values():
            if worker.job is None and worker.node == node.name:
                used.update(dict(worker.constraints.requests))
        return dict(used)

    def _retire(self, key: str) -> None:
        self.change(key, leader_running=False, training=False, has_reported=False)
        self._end(key, WorkerRole.BASE, 0)
        self._end(key, WorkerRole.EXTRA, 0)

    def _make(self, job: JobFacts, role: WorkerRole, indices: range) -> None:
        placement = self.placements.get(job.key, NOWHERE)
        extra = [*placement.extra]
        for index in indices:
            node = placement.base.get(index) if role is WorkerRole.BASE else extra.pop() if extra else None
            name = self._name(f"{job.key}-{role}-{index}")
            self.unseen[name] = Worker(
                name=name,
                job=job.key,
                role=role,
                index=index,
                node=None,
                pinned_to=node,
                gpus=job.terms.gpus_per_worker,
                state=WorkerState.PENDING,
            )

    def _end(self, key: str, role: WorkerRole, keep: int) -> None:
        self.promises.pop(key, None) if role is WorkerRole.EXTRA else None
        self.unseen = {n: w for n, w in self.unseen.items() if (w.job, w.role) != (key, role) or w.index < keep}
        for worker in self._of(key, role)[keep:]:
            if worker.node is None:
                del self.workers[worker.name]
            else:
                self.workers[worker.name] = replace(worker, state=WorkerState.TERMINATING)
        for index, worker in enumerate(self._of(key, role)):
            self.workers[worker.name] = replace(worker, index=index)

    def _of(self, key: str, role: WorkerRole) -> list[Worker]:
        live = [
            w
            for w in self.workers.values()
            if w.job == key and w.role is role and w.state is not WorkerState.TERMINATING
        ]
        return sorted(live, key=lambda worker: worker.index)

    def _name(self, stem: str) -> str:
        self._names[stem] += 1
        return f"{stem}-{self._names[stem]}"


class ClusterBackend:
    """A backend of the loop that sees the cluster as it is, and changes it at once."""

    def __init__(self, cluster: Cluster) -> None:
        """Remember the plans."""
        self.cluster, self.plans = cluster, list[Plan]()

    async def observe(self) -> Snapshot:
        """Return what is there."""
        return self.cluster.snapshot()

    async def apply(self, action: Action) -> None:
        """Carry out an action."""
        self.cluster.apply(action)

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Keep the plan."""
        self.plans.append(plan)
