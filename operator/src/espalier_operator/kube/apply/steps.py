"""The steps that bring the cluster to the state of a job: create and delete pods, notify leaders. Pure.

Steps are derived from the state alone, never from earlier steps, and are idempotent. Nothing here waits: a step that is
not possible yet (a terminating pod still has the name) is returned at a later observation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count, islice

from espalier_core.files.documents import dumps
from espalier_core.types.job import ALLOCATION_ANNOTATION, allocation_document
from espalier_core.types.status import JobStatus
from espalier_operator.job.state import JobState, Timing
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.kueue import Workload, asks_of, workload_of
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.objects.template import Manifest
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import expires_at
from espalier_operator.kube.state.workers import JobPods, extra_runs_by
from espalier_operator.model import Placement, WorkerRole

KEPT_ENDED = 2
"""Number of ended pods of earlier attempts that are kept for their logs, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Create a worker; the job's other objects must exist."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """End a worker by SIGTERM, and by SIGKILL after its grace period."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotate:
    """Write the allocation to the leader's pod."""

    pod: Pod
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Remove the job, `ttlSecondsAfterFinished` after its end."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWorkload:
    """Request quota from Kueue."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorkload:
    """Give the quota back, also to request another."""

    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostWorkload:
    """Report to Kueue the job's loss if it were preempted."""

    workload: Workload
    boost: str


KueueStep = CreateWorkload | DeleteWorkload | BoostWorkload
Step = CreatePod | DeletePod | Annotate | DeleteJob


def steps(
    job: KubeJob,
    state: JobState,
    pods: JobPods,
    placement: Placement,
    status: JobStatus,
    now: float,
    settings: KubeSettings,
) -> tuple[Step, ...]:
    """Return the steps to take now for `job`, whose last written status is `status`."""
    found = _steps(job, state, pods, placement, status, now, settings)
    return tuple(step for step in found if not (job.is_remnant and isinstance(step, CreatePod)))


def _steps(
    job: KubeJob,
    state: JobState,
    pods: JobPods,
    placement: Placement,
    status: JobStatus,
    now: float,
    settings: KubeSettings,
) -> Iterator[Step]:
    if state.outcome is not None or state.admitted_at is None:
        yield from (DeletePod(pod=pod) for pod in pods.not_ended if not pod.deleting)
        due = expires_at(job, status)
        if state.outcome is not None and due is not None and now >= due:
            yield DeleteJob(uid=job.uid)
        return
    yield from _superseded(pods, state)
    if state.stopping is not None:
        # Only SIGTERM tells a program to stop; and no GPUs are kept for a worker that has none yet.
        for pod in pods.base:
            if pod is not None and (job.terms.program or pod.node is None) and not (pod.deleting or pod.ended):
                yield DeletePod(pod=pod)
        if job.terms.program:
            return
    for index in state.completed_workers:
        completed = pods.worker(index)
        if completed is not None and not completed.ended and not completed.deleting:
            yield DeletePod(pod=completed)  # its side-cars still hold its GPUs
    for index, attempt in _base_to_make(job, state, pods, now):
        if index in placement.base:
            node = placement.base[index]
            yield CreatePod(
                manifest=worker_pod(job, status, WorkerRole.BASE, index, attempt, settings, state.gpu_type, node)
            )
    yield from _extra_to_end(job, state, pods, placement, now, settings.timing)
    for index, node in zip(_extra_to_make(job, state, pods, now), placement.extra, strict=False):
        attempt = state.extra_generation
        yield CreatePod(
            manifest=worker_pod(job, status, WorkerRole.EXTRA, index, attempt, settings, state.gpu_type, node)
        )
    leader = pods.leader
    document = allocation_document(job.job, status)
    budget, waits = document.time_budget.budget_seconds, document.waits_for_workers
    latest = document.allocation.generation, document.stop, budget, waits
    if leader is not None and not leader.ended and leader.announced != latest:
        yield Annotate(pod=leader, annotations={ALLOCATION_ANNOTATION: dumps(document)})


def workload_steps(
    job: KubeJob | None, state: JobState, pods: JobPods, workload: Workload | None, settings: KubeSettings, active: bool
) -> Iterator[CreateWorkload | DeleteWorkload]:
    """Return the steps for the Workload of a job (None: it cannot be run); its pods hold the quota until their ends.

    `active`: the Workload was not deactivated before.
    """
    waits = job is not None and state.outcome is None and not job.terms.suspend
    wants = job is not None and bool(job.local_queue) and (state.active or waits)
    if workload is None:
        if wants and job is not None:
            yield CreateWorkload(manifest=workload_of(job, settings, active=active))
        return
    if workload.deleting or state.active or pods.not_ended:
        return
    if not wants or job is None or workload.over or workload.asks != asks_of(job, settings):
        yield DeleteWorkload(workload=workload)


def extra_workload_steps(
    job: KubeJob | None,
    state: JobState,
    pods: JobPods,
    workloads: Collection[Workload],
    wished: int,
    settings: KubeSettings,
) -> Iterator[CreateWorkload | DeleteWorkload]:
    """Return the steps for Workloads of extra workers: one for each that is lent, or `wished` in addition."""
    wants = job is not None and bool(job.local_queue) and state.active and settings.kueue_extra_workers
    wanted = state.extra + (0 if state.ending or state.reclaim is not None else wished) if wants else 0
    live = sum(not pod.ended for pod in (*pods.extra, *pods.rest) if pod.role is WorkerRole.EXTRA)
    spare = max(0, len(workloads) - max(live, state.extra))
    # Workloads that Kueue takes back go first, even where another is wanted in their place.
    ranked = sorted(workloads, key=lambda each: (not each.over, each.admitted, -(each.extra or 0)))
    excess = len(workloads) - wanted
    for place, each in enumerate(ranked[:spare]):
        if (each.over or place < excess) and not each.deleting:
            yield DeleteWorkload(workload=each)
    taken = {each.extra for each in workloads}
    free = (index for index in count() if index not in taken)
    for index in islice(free, max(0, -excess)):
        if job is not None:
            yield CreateWorkload(manifest=workload_of(job, settings, extra=index))


def _superseded(pods: JobPods, state: JobState) -> Iterator[Step]:
    """End running pods of earlier attempts; keep the newest ended ones, for their logs.

    Also keep ended pods of the current loan: their names keep them from being created again (`_extra_to_make`).
    """
    current = None if state.promised_until is None else (WorkerRole.EXTRA, state.extra_generation)
    over = (pod for pod in pods.rest if pod.ended and (pod.role, pod.attempt) != current)
    ended = sorted(over, key=lambda pod: (pod.finished_at or 0.0, pod.name))
    for pod in ended[: max(0, len(ended) - KEPT_ENDED)]:
        if not pod.deleting:
            yield DeletePod(pod=pod)
    for pod in pods.rest:
        if not pod.ended and not pod.deleting:
            yield DeletePod(pod=pod)


def _base_to_make(job: KubeJob, state: JobState, pods: JobPods, now: float) -> Iterator[tuple[int, int]]:
    """Yield index and attempt of base workers that have no pod and may get one."""
    if not state.may_start(job.terms, now):
        return
    for index, attempt in enumerate(state.attempts[: job.terms.min_replicas]):
        if index in state.completed_workers:
            continue
        if pods.worker(index) is None and not state.incarnations[index] and not _predecessor_lives(pods, index):
            yield index, attempt


def _predecessor_lives(pods: JobPods, index: int) -> bool:
    """Return whether an earlier pod of base worker `index` has not ended and may be saving data for the next one.

    A pod whose node is lost does not count.
    """
    return any(
        pod.role is WorkerRole.BASE and pod.index == index and not pod.done and pod.uid not in pods.lost
        for pod in pods.rest
    )


def _extra_to_end(
    job: KubeJob, state: JobState, pods: JobPods, placement: Placement, now: float, timing: Timing
) -> Iterator[Step]:
    """End extra workers beyond the grant, and extra workers that will not be bound or cannot start."""
    for pod in pods.extra[state.extra :]:
        yield DeletePod(pod=pod)
    # After the promise nothing holds their place, and the planner sees that they never came.
    over = state.promised_until is not None and now >= state.promised_until
    for pod in pods.extra[: state.extra]:
        if pod.node is None:
            ends = over or pod.key in placement.moved
        else:
            runs_by = extra_runs_by(pod, job, state, timing)
            ends = runs_by is not None and now >= runs_by
        if ends:
            yield DeletePod(pod=pod)


def _extra_to_make(job: KubeJob, state: JobState, pods: JobPods, now: float) -> Iterator[int]:
    """Yield the indices of promised extra workers that have no pod yet."""
    kept = pods.extra[: state.extra]
    if state.promised_until is None or now >= state.promised_until or state.reclaim is not None or state.ending:
        return
    there = {pod.name: pod for pod in (*pods.rest, *kept)}
    held = {pod.index for pod in kept}
    attempt, missing, index = state.extra_generation, state.extra - len(kept), 0
    while missing > 0:
        name = names.pod_name(job.name, WorkerRole.EXTRA, index, attempt)
        if index not in held:
            missing -= 1
            if name not in there:  # an ended one is not created again: the planner records the loss
                yield index
        index += 1
