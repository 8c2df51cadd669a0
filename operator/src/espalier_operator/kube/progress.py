"""What a job's pods and report mean: how much of its budgets is used, who failed, what is to be started again. Pure.

A leader is judged once: the same change of the record that counts its end raises its attempt, so that another look,
by this operator or the next, sees a leader that has not been started yet. An attempt whose pod was seen and is gone
without a trace was ended from outside.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import Report, TrainerPhase
from espalier_operator.budget import Leader, Meter
from espalier_operator.exits import Failure, judge_exit
from espalier_operator.facts import Ended, Role
from espalier_operator.kube.jobs import KubeJob
from espalier_operator.kube.pods import Pod
from espalier_operator.kube.record import Record
from espalier_operator.kube.settings import KubeSettings

_PAST = (TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED)
_SOON = 3.0
"""How long the report of a leader that has ended is waited for, in seconds: it may come after the pod's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """A job's pods, and what its leader says."""

    base: tuple[Pod | None, ...]
    """By index, those of the current attempt; None where there is none."""
    extra: tuple[Pod, ...]
    """Those alive, in the order in which they are kept: the last is given back first."""
    rest: tuple[Pod, ...]
    """Of earlier attempts, ended, or on their way out."""
    lost: Container[str]
    """UIDs of pods whose node is gone or not ready."""
    report: Report | None
    """The last, whichever leader it is of."""

    @property
    def leader(self) -> Pod | None:
        """The pod of the leader."""
        return self.base[0] if self.base else None

    @property
    def fresh(self) -> bool:
        """Whether the report is of the leader that is there now."""
        return self.report is not None and self.leader is not None and self.report.incarnation == self.leader.uid

    @property
    def leader_runs(self) -> bool:
        """Whether the leader's process runs, as far as is known."""
        leader = self.leader
        return leader is not None and leader.phase == "Running" and leader.uid not in self.lost

    @property
    def said(self) -> TrainerPhase:
        """What the leader that is there now said last."""
        return self.report.phase if self.fresh and self.report is not None else TrainerPhase.STARTING


def crew_of(job: KubeJob, record: Record, pods: Iterable[Pod], ready: Container[str], report: Report | None) -> Crew:
    """Sort the pods of `job`; `ready` are the names of the nodes that are."""
    base: list[Pod | None] = [None] * len(record.attempts)
    extra, rest, lost = [], [], set()
    for pod in pods:
        if pod.job_uid != job.uid:
            continue
        if pod.node is not None and pod.node not in ready and not pod.ended:
            lost.add(pod.uid)
        if pod.role is Role.BASE and pod.index < len(base) and pod.attempt == record.attempts[pod.index]:
            base[pod.index] = pod
        elif pod.role is Role.EXTRA and not (pod.ended or pod.deleting or pod.uid in lost):
            extra.append(pod)
        else:
            rest.append(pod)
    extra.sort(key=lambda pod: (pod.index, pod.attempt))
    return Crew(base=tuple(base), extra=tuple(extra), rest=tuple(rest), lost=lost, report=report)


def look(job: KubeJob, record: Record, crew: Crew, now: float, settings: KubeSettings) -> Record:
    """Return the record after a look at the job's pods and report at `now`."""
    if record.outcome is not None or record.admitted_at is None:
        return record
    record = _count(job, record, crew, now, settings)
    if record.ended is not None:
        return record
    for index, pod in enumerate(crew.base[: job.terms.min_replicas]):
        record = _judge(job, record, crew, index, pod, now, settings)
    return record


def leader_of(record: Record, crew: Crew, now: float, settings: KubeSettings) -> Leader:
    """Return what the leader does, as far as budgets go; one that keeps silent for long counts as training."""
    if not crew.leader_runs or crew.said in _PAST:
        return Leader.ABSENT
    if crew.said is not TrainerPhase.STARTING or is_silent(crew, now, settings):
        return Leader.TRAINING
    return Leader.STARTING


def is_silent(crew: Crew, now: float, settings: KubeSettings) -> bool:
    """Return whether the leader has run past the start-up allowance without a report that it trains."""
    started = crew.leader.started_at if crew.leader_runs and crew.leader is not None else None
    return (
        crew.said is TrainerPhase.STARTING
        and started is not None
        and now - started >= settings.start_up_allowance_seconds
    )


def _count(job: KubeJob, record: Record, crew: Crew, now: float, settings: KubeSettings) -> Record:
    leader = crew.leader
    began = now if leader is None or leader.started_at is None else leader.started_at
    # The operator was away while this leader ran: what it ran meanwhile is counted, what was before it is not.
    read_at = now if record.counted_until is None else max(record.counted_until, min(began, now))
    meter = Meter(
        used_seconds=record.used_seconds,
        gpu_seconds_used=record.gpu_seconds_used,
        read_at=read_at,
        starting_since=min(began, now),
    )
    gpus = (job.terms.min_replicas + record.extra) * job.terms.gpus_per_worker
    allowance = settings.start_up_allowance_seconds
    reported = crew.report.used_seconds if crew.fresh and crew.report is not None else 0.0
    if leader is not None and leader.ended:
        ended = min(now, leader.finished_at or now)
        kind = Leader.ABSENT if crew.fresh else Leader.STARTING  # its own count, or all of it past the allowance
        meter = meter.advance(max(ended, read_at), kind, gpus, allowance, reported)
    else:
        kind = leader_of(record, crew, now, settings)
        if kind is Leader.TRAINING and not crew.fresh:
            kind = Leader.STARTING  # counted from its start, by the allowance
        meter = meter.advance(now, kind, gpus, allowance, reported)
    trains = leader_of(record, crew, now, settings) is Leader.TRAINING
    return replace(
        record,
        used_seconds=meter.used_seconds,
        gpu_seconds_used=meter.gpu_seconds_used,
        counted_until=now,
        trained=record.trained or trains or (crew.fresh and crew.said is not TrainerPhase.STARTING),
    )


def _judge(
    job: KubeJob, record: Record, crew: Crew, index: int, pod: Pod | None, now: float, settings: KubeSettings
) -> Record:
    """Notice the end of a base worker."""
    known = record.pod_uids[index]
    if pod is None:
        return _outside(record, index, Reason.PREEMPTED) if known else record
    if pod.uid in crew.lost:
        return _outside(record, index, Reason.NODE_LOST)
    if not pod.ended:
        return record if known == pod.uid else record.with_worker(index, uid=pod.uid)
    if index == 0:
        return _judge_leader(job, record, crew, pod, now, settings)
    if pod.exit_code == 0:
        return record  # a user's own worker that is done before its leader
    if pod.deleting or pod.disrupted or pod.exit_code is None:
        return _outside(record, index, Reason.PREEMPTED)
    return _failed(
        record, index, f"base worker {index}: exit code {pod.exit_code}: {pod.message}".rstrip(": "), now, settings
    )


def _judge_leader(job: KubeJob, record: Record, crew: Crew, pod: Pod, now: float, settings: KubeSettings) -> Record:
    report = crew.report if crew.fresh else None
    completed = report is not None and report.phase is TrainerPhase.COMPLETED
    outside = pod.deleting or pod.disrupted or pod.exit_code is None
    if report is not None and report.phase not in _PAST and now < (pod.finished_at or 0.0) + _SOON:
        return record
    if outside and not completed and record.stopping is None:
        return _outside(record, 0, Reason.PREEMPTED)
    verdict = judge_exit(0 if pod.exit_code is None else pod.exit_code, report)
    if isinstance(verdict, Ended):
        if record.stopping is not None and not verdict.failed and not completed:
            return record  # it ended as it was asked to
        message = verdict.message or pod.message
        return replace(record, ended=replace(verdict, message=message))
    if record.stopping is not None:
        return record
    if isinstance(verdict, Failure):
        text = f"{verdict.message}: {pod.message}" if pod.message else verdict.message
        return _failed(record, 0, text, now, settings)
    return _outside(record, 0, Reason.PREEMPTED)


def _outside(record: Record, index: int, reason: Reason) -> Record:
    """Count a worker that somebody else ended; it is started again at once."""
    again = record.with_worker(index, attempt=record.attempts[index] + 1, uid="")
    if index != 0:
        return again
    return replace(
        again,
        restarts=record.restarts + 1,
        preemptions=record.preemptions + 1,
        last_failure=SENTENCES[reason],
        not_before=None,
    )


def _failed(record: Record, index: int, message: str, now: float, settings: KubeSettings) -> Record:
    """Count a failure and put the next start off, twice as long each time."""
    failures = record.failures + 1
    wait = min(settings.restart_seconds * 2.0 ** min(failures - 1, 30), settings.max_restart_seconds)
    again = record.with_worker(index, attempt=record.attempts[index] + 1, uid="")
    return replace(
        again,
        failures=failures,
        restarts=record.restarts + (index == 0),
        last_failure=message,
        not_before=now + wait,
    )
