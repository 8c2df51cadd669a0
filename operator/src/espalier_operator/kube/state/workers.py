"""Sorting of a job's pods into leader, other workers and leaving ones, and their view for the planner. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_operator.job.state import End, JobState, Observation, Timing, WorkerStart
from espalier_operator.job.view import Trouble
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.watch.nodes import UnreachablePods
from espalier_operator.model import Worker, WorkerRole, WorkerState

WITHIN_REACH: Final = UnreachablePods()
"""The case that all nodes report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPods:
    """The pods of a job."""

    base: tuple[Pod | None, ...] = ()
    """Pods of base workers of the current attempt, by index; None where there is none."""
    extra: tuple[Pod, ...] = ()
    """Live pods of extra workers, in the order in which they are kept: the last is given back first."""
    rest: tuple[Pod, ...] = ()
    """Pods of earlier attempts, ended ones, and pods on their way out."""
    recorded: tuple[Pod, ...] = ()
    """Pods that are gone and whose ends are recorded."""
    lost: Container[str] = frozenset()
    """UIDs of pods given up with their node."""
    silent: Container[str] = frozenset()
    """UIDs of pods whose node does not report and that are not given up."""

    @property
    def leader(self) -> Pod | None:
        """The pod of the leader."""
        return self.worker(0)

    @property
    def not_ended(self) -> tuple[Pod, ...]:
        """The pods that have not ended."""
        return tuple(pod for pod in (*self.base, *self.extra, *self.rest) if pod is not None and not pod.ended)

    def worker(self, index: int) -> Pod | None:
        """Return the pod of base worker `index`, None where there is none."""
        return self.base[index] if index < len(self.base) else None


def sort_pods(job: KubeJob, state: JobState, pods: Iterable[Pod], reach: UnreachablePods = WITHIN_REACH) -> JobPods:
    """Sort the pods of `job`; `reach` has the pods affected by silent nodes."""
    base: list[Pod | None] = [None] * len(state.attempts)
    extra, rest, recorded, lost = [], [], [], reach.lost
    for pod in pods:
        if pod.owner != job.ref:
            continue
        if pod.gone and not _is_unjudged(pod, job, state):
            recorded.append(pod)
        elif pod.role is WorkerRole.BASE and _is_current(pod, job, state):
            base[pod.index] = pod
        elif pod.role is WorkerRole.EXTRA and not (pod.done or pod.deleting or pod.uid in lost):
            extra.append(pod)
        else:
            rest.append(pod)
    extra.sort(key=lambda pod: (pod.broken or pod.asked_to_leave, pod.index, pod.attempt))
    return JobPods(
        base=tuple(base),
        extra=tuple(extra),
        rest=tuple(rest),
        recorded=tuple(recorded),
        lost=lost,
        silent=reach.silent,
    )


def observation_of(
    pods: JobPods,
    report: Report | None,
    reported_at: float = 0.0,
    rejected: Trouble | None = None,
    extra_rejected: Trouble | None = None,
    *,
    program: bool = False,
    unread: bool = False,
) -> Observation:
    """Return the observation of the job's base workers from its pods and the last report, written at `reported_at`.

    `rejected` is the API server's last refusal of a base pod, `extra_rejected` that of an extra worker's. `unread`:
    the last lines of an ended program have not been read yet.
    """
    rejected = rejected if any(pod is None for pod in pods.base) else None
    return Observation(
        base=tuple(None if pod is None else _incarnation(pod, pods) for pod in pods.base),
        extra_bound=sum(pod.node is not None for pod in pods.extra),
        extra_running=sum(pod.phase == "Running" for pod in pods.extra),
        extra_ended=tuple(_incarnation(pod, pods) for pod in pods.rest if pod.role is WorkerRole.EXTRA and pod.done),
        refused=rejected is not None or any(pod is not None and pod.refused and not pod.deleting for pod in pods.base),
        invalid=rejected.message if rejected is not None and rejected.final else "",
        extra_refused=extra_rejected is not None or any(pod.gated for pod in pods.extra),
        gated=sum(pod is not None and pod.gated for pod in pods.base),
        report=report,
        reporter="" if report is None else report.incarnation,
        reported_at=reported_at,
        program=program,
        unread=unread,
    )


def trouble_of(pods: JobPods, *, trained: bool = False) -> Trouble | None:
    """Return the trouble that prevents a base worker from starting, or hides whether the leader runs.

    Workers that hold GPUs come first, among these refused ones, and among these the leader, as the job gives its GPUs
    back for such a trouble. If the job has trained and its leader ran when last seen, a hidden leader comes first.
    Scheduling gates, which others remove, come last.
    """
    found = [pod for pod in pods.base if pod is not None and pod.trouble is not None and pod.phase == "Pending"]
    found.sort(key=lambda pod: (pod.node is None, not pod.refused))
    leader = pods.leader
    gives_back = bool(found) and found[0].refused and found[0].node is not None
    gives_back = gives_back and not (trained and leader is not None and leader.phase == "Running")
    if leader is not None and leader.uid in pods.silent and not gives_back:
        message = f"node {leader.node} does not report; its leader may still run there"
        return Trouble(reason=Reason.NODE_LOST, message=message)
    return next(map(_trouble, found), None)


def gates_of_extra(pods: JobPods) -> Trouble | None:
    """Return the trouble of an extra worker with scheduling gates, if there is one."""
    return next((_trouble(pod) for pod in pods.extra if pod.gated), None)


def _trouble(pod: Pod) -> Trouble | None:
    return None if pod.trouble is None else Trouble(reason=pod.trouble, message=pod.message)


def extra_runs_by(pod: Pod, job: KubeJob, state: JobState, timing: Timing) -> float | None:
    """Return the time by which a bound extra worker must start; None where it runs, or has no limit.

    It holds GPUs that others could use. A worker known to fail gets less time than one that still starts.
    """
    if pod.node is None or pod.phase != "Pending" or state.granted_at is None:
        return None
    fails = pod.trouble not in (None, Reason.STARTING)
    limit = min(timing.promise, timing.refusal) if fails else job.terms.pre_running_deadline_seconds
    return None if limit is None else state.granted_at + limit


def workers_of(key: str, pods: JobPods, state: JobState) -> Iterator[Worker]:
    """Yield the job's workers for the planner; extra workers are numbered in the order in which they are kept."""
    for index, pod in enumerate(pods.base):
        if pod is None:
            continue
        leaves = pod.uid in pods.lost or index in state.completed_workers
        if not pod.ended:
            yield _worker(pod, key, WorkerRole.BASE, index, is_lost=leaves)
        elif not leaves and state.active and state.ended is None:
            # Its end is not judged yet. Until then it needs no replacement, though it holds no GPU.
            yield replace(_worker(pod, key, WorkerRole.BASE, index, is_lost=False), gpus=0, state=WorkerState.RUNNING)
    for index, pod in enumerate(pods.extra):
        yield _worker(pod, key, WorkerRole.EXTRA, index, is_lost=pod.uid in pods.lost)
    for pod in pods.rest:
        if not pod.ended:
            yield Worker(
                name=pod.key,
                job=key,
                role=pod.role,
                index=pod.index,
                node=pod.place,
                gpus=pod.gpus,
                state=WorkerState.TERMINATING,
                leaves_at=pod.leaves_at,
                grace_seconds=pod.grace_seconds,
            )


def foreign_worker(pod: Pod) -> Worker | None:
    """Return a pod that is not our worker as a foreign worker; None if it neither holds nor wants GPUs.

    A worker of another job, possibly of another Espalier, wants GPUs of its chosen node.
    """
    wants = pod.wants_gpus and not (pod.gated or pod.deleting) and (pod.owner is None or pod.pinned_to is not None)
    if pod.ended or pod.gpus == 0 or (pod.node is None and not wants):
        return None
    return Worker(
        name=pod.key,
        job=None,
        role=WorkerRole.FOREIGN,
        node=pod.place,
        gpus=pod.gpus,
        state=_state(pod),
        gpu_type=pod.gpu_type,
        constraints=pod.constraints,
        barred_nodes=0 if pod.node else pod.barred_nodes,
        pinned_to=pod.pinned_to if pod.node is None else None,
        is_rival=pod.owner is not None,
        leaves_at=pod.leaves_at,
        grace_seconds=pod.grace_seconds,
    )


def _incarnation(pod: Pod, pods: JobPods) -> WorkerStart:
    end = None
    if pod.done:
        end = End(
            code=pod.exit_code,
            at=pod.finished_at,
            external=not (pod.overran or pod.ended_first) and (pod.deleting or pod.disrupted or pod.exit_code is None),
            overran=pod.overran,
            message=pod.message,
            by_node=pod.by_node and not pod.deleting,
        )
    return WorkerStart(
        id=pod.uid,
        node=pod.node,
        loan=pod.attempt if pod.role is WorkerRole.EXTRA else 0,
        running=pod.phase == "Running",
        started_at=pod.started_at,
        ready=pod.ready,
        silent=pod.uid in pods.silent,
        lost=Reason.NODE_LOST if pod.uid in pods.lost else None,
        removed=pod.deleting,
        stuck=None if pod.stuck_since is None or pod.deleting else (pod.stuck_since, pod.message),
        stuck_by_node=pod.by_node,
        end=end,
    )


def _is_current(pod: Pod, job: KubeJob, state: JobState) -> bool:
    workers = min(len(state.attempts), job.terms.min_replicas)
    return pod.index < workers and pod.attempt == state.attempts[pod.index]


def _is_unjudged(pod: Pod, job: KubeJob, state: JobState) -> bool:
    """Return whether a pod belongs to a base worker whose end is not judged yet."""
    waits = state.active and pod.role is WorkerRole.BASE and pod.index not in state.completed_workers
    return waits and _is_current(pod, job, state)


def _worker(pod: Pod, job: str, role: WorkerRole, index: int, *, is_lost: bool) -> Worker:
    state = WorkerState.TERMINATING if is_lost else _state(pod)
    return Worker(
        name=pod.key,
        job=job,
        role=role,
        index=index,
        node=pod.place,
        pinned_to=pod.pinned_to if pod.node is None else None,
        gpus=pod.gpus,
        state=state,
        broken=pod.broken,
        asked_to_leave=pod.asked_to_leave,
        leaves_at=None if is_lost else pod.leaves_at,
        grace_seconds=pod.grace_seconds,
    )


def _state(pod: Pod) -> WorkerState:
    if pod.deleting:
        return WorkerState.TERMINATING
    if pod.gated and pod.owner is not None:
        return WorkerState.GATED
    return WorkerState.RUNNING if pod.phase == "Running" else WorkerState.PENDING
