"""What the planner is told of the cluster: jobs and pods turned into its facts. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import TrainerPhase
from espalier_operator.budget import Leader
from espalier_operator.facts import JobFacts, Promise, Role, Worker, WorkerState
from espalier_operator.kube.crew import Crew
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.progress import leader_of
from espalier_operator.kube.record import Record
from espalier_operator.kube.settings import KubeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What keeps a job's workers from starting."""

    reason: Reason
    message: str


def facts_of(
    job: KubeJob, record: Record, crew: Crew, now: float, settings: KubeSettings, rejected: Trouble | None = None
) -> JobFacts:
    """Return what the planner is told of `job`; `rejected` is what the API server last said to its pods."""
    report = crew.report
    acknowledged = 0 if report is None else min(report.acknowledged_generation, record.allocation.generation)
    trouble = rejected or trouble_of(crew)
    return JobFacts(
        key=job.key,
        terms=job.terms,
        submitted_at=job.created_at,
        admitted_at=record.admitted_at,
        gpu_type=record.gpu_type,
        generation=record.allocation.generation,
        acknowledged_generation=acknowledged,
        extra=record.extra,
        reclaim=record.reclaim,
        granted_at=record.granted_at,
        changed_at=record.changed_at,
        leader_running=crew.leader_runs,
        has_reported=crew.fresh,
        training=leader_of(record, crew, now, settings) is Leader.TRAINING,
        evaluating=crew.said is TrainerPhase.EVALUATING,
        trained=record.trained,
        used_seconds=record.used_seconds,
        gpu_seconds_used=record.gpu_seconds_used,
        failures=record.failures,
        last_failure=record.last_failure if trouble is None else trouble.message or SENTENCES[trouble.reason],
        trouble=None if trouble is None else trouble.reason,
        preemptions=record.preemptions,
        stopping=record.stopping,
        ended=record.ended,
        finished=record.outcome is not None,
    )


def trouble_of(crew: Crew) -> Trouble | None:
    """Return what keeps a base worker from starting, the leader's trouble first."""
    for pod in crew.base:
        if pod is not None and pod.trouble is not None and pod.phase == "Pending":
            return Trouble(reason=pod.trouble, message=pod.message)
    return None


def promise_of(job: KubeJob, record: Record) -> Promise | None:
    """Return the promise that stands for the job's extra workers."""
    if record.promised_until is None or not record.extra:
        return None
    return Promise(job=job.key, extra=record.extra, expires_at=record.promised_until)


def workers_of(job: KubeJob, crew: Crew) -> Iterator[Worker]:
    """Yield the job's workers as the planner counts them; extra ones are numbered in the order they are kept in."""
    for index, pod in enumerate(crew.base):
        if pod is not None:
            yield from _worker(pod, job.key, Role.BASE, index, crew.lost)
    for index, pod in enumerate(crew.extra):
        yield from _worker(pod, job.key, Role.EXTRA, index, crew.lost)
    for pod in crew.rest:
        if not pod.ended:
            yield Worker(
                name=pod.key,
                job=job.key,
                role=pod.role,
                index=pod.index,
                node=pod.node,
                gpus=pod.gpus,
                state=WorkerState.TERMINATING,
            )


def alien(pod: Pod) -> Worker | None:
    """Return a pod that is nobody's worker as the planner counts it; None where it neither holds nor wants GPUs.

    One whose job is gone, or cannot be understood, wants nothing any more.
    """
    waits = pod.node is None
    if pod.ended or pod.gpus == 0 or (waits and (pod.gated or pod.deleting or pod.job is not None)):
        return None
    return Worker(
        name=pod.key,
        job=None,
        role=Role.ALIEN,
        node=pod.node,
        gpus=pod.gpus,
        state=_state(pod),
        gpu_type=pod.gpu_type,
    )


def _worker(pod: Pod, job: str, role: Role, index: int, lost: Container[str]) -> Iterator[Worker]:
    if pod.ended:
        # One that is done before its leader still is its place taken, though no GPU is held; another that has
        # ended is judged by its exit and started again.
        if role is Role.BASE and index > 0 and pod.exit_code == 0:
            yield Worker(
                name=pod.key, job=job, role=role, index=index, node=pod.node, gpus=0, state=WorkerState.RUNNING
            )
        return
    state = WorkerState.TERMINATING if pod.uid in lost else _state(pod)
    yield Worker(name=pod.key, job=job, role=role, index=index, node=pod.node, gpus=pod.gpus, state=state)


def _state(pod: Pod) -> WorkerState:
    if pod.deleting:
        return WorkerState.TERMINATING
    return WorkerState.RUNNING if pod.phase == "Running" else WorkerState.PENDING
