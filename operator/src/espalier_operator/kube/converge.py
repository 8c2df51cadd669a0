"""What is to be done so that the cluster becomes what is remembered: pods made and deleted, the leader told. Pure.

Steps follow from the record alone, never from what was done before; doing one twice is doing it once. Nothing here
waits: a step that is not possible yet (a name still taken by a pod on its way out) comes at a later look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from espalier_api.documents import dumps
from espalier_api.signal import ALLOCATION_ANNOTATION, allocation_document
from espalier_api.status import JobStatus
from espalier_operator.facts import Role
from espalier_operator.kube import names
from espalier_operator.kube.jobs import KubeJob
from espalier_operator.kube.objects import Manifest, worker_pod
from espalier_operator.kube.pods import Pod
from espalier_operator.kube.progress import Crew
from espalier_operator.kube.record import Record
from espalier_operator.kube.settings import KubeSettings

KEPT_ENDED = 2
"""Pods of earlier attempts that have ended and are kept, the newest, for their logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Make a worker; the job's other objects must be there."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """End a worker: SIGTERM, and after its grace period SIGKILL."""

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


Step = CreatePod | DeletePod | Annotate | DeleteJob


def steps(
    job: KubeJob, record: Record, crew: Crew, status: JobStatus, now: float, settings: KubeSettings
) -> tuple[Step, ...]:
    """Return what is to be done now for `job`, whose status was written as `status`."""
    return tuple(_steps(job, record, crew, status, now, settings))


def due_at(job: KubeJob, record: Record, status: JobStatus) -> float | None:
    """Return when time alone will make `steps` say more: a start that was put off, the end of the ttl."""
    if record.outcome is None:
        return record.not_before
    ttl = job.job.spec.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return None
    return status.completion_time.timestamp() + ttl


def _steps(
    job: KubeJob, record: Record, crew: Crew, status: JobStatus, now: float, settings: KubeSettings
) -> Iterator[Step]:
    if record.outcome is not None or record.admitted_at is None:
        for pod in (*crew.base, *crew.extra, *crew.rest):
            if pod is not None and not pod.deleting and not pod.ended:
                yield DeletePod(pod=pod)
        due = due_at(job, record, status)
        if record.outcome is not None and due is not None and now >= due:
            yield DeleteJob(uid=job.uid)
        return
    yield from _superseded(crew)
    yield from _base(job, record, crew, status, now, settings)
    yield from _extra(job, record, crew, status, now, settings)
    leader = crew.leader
    document = allocation_document(job.job, status)
    if leader is not None and not leader.ended and leader.told != (document.allocation.generation, document.stop):
        yield Annotate(pod=leader, annotations={ALLOCATION_ANNOTATION: dumps(document)})


def _superseded(crew: Crew) -> Iterator[Step]:
    """End what runs of earlier attempts; keep the newest that have ended, for their logs."""
    ended = sorted((pod for pod in crew.rest if pod.ended), key=lambda pod: (pod.attempt, pod.name))
    for pod in ended[: max(0, len(ended) - KEPT_ENDED)]:
        if not pod.deleting:
            yield DeletePod(pod=pod)
    for pod in crew.rest:
        if not pod.ended and not pod.deleting:
            yield DeletePod(pod=pod)


def _base(
    job: KubeJob, record: Record, crew: Crew, status: JobStatus, now: float, settings: KubeSettings
) -> Iterator[Step]:
    if record.ended is not None or record.stopping is not None:
        return  # nobody is started who is about to be ended
    if record.not_before is not None and now < record.not_before:
        return
    for index in range(job.terms.min_replicas):
        if crew.base[index] is None and not record.pod_uids[index]:
            attempt = record.attempts[index]
            yield CreatePod(manifest=worker_pod(job, status, Role.BASE, index, attempt, settings, record.gpu_type))


def _extra(
    job: KubeJob, record: Record, crew: Crew, status: JobStatus, now: float, settings: KubeSettings
) -> Iterator[Step]:
    for pod in crew.extra[record.extra :]:
        yield DeletePod(pod=pod)
    if record.promised_until is None or now >= record.promised_until or record.reclaim is not None:
        return
    taken = {pod.name for pod in (*crew.extra, *crew.rest)}
    missing = record.extra - len(crew.extra)
    index = 0
    while missing > 0:
        name = names.pod_name(job.name, Role.EXTRA, index, record.extra_generation)
        if name not in taken and all(pod.index != index for pod in crew.extra):
            attempt = record.extra_generation
            yield CreatePod(manifest=worker_pod(job, status, Role.EXTRA, index, attempt, settings, record.gpu_type))
            missing -= 1
        elif name in taken and all(pod.name != name for pod in crew.extra):
            missing -= 1  # it has ended or is ending: what is lost is not made again, the planner takes note of it
        index += 1
