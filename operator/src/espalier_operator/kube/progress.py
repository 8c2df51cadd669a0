"""What a job's pods and report mean: how much of its budgets is used, what has ended, what was promised and kept. Pure.

Budgets are counted while the leader trains, by the operator's clock. What the operator did not see, because it was
away or the leader vanished, is taken from the leader's own count, and from the time for which its container ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from espalier_api.report import TrainerPhase
from espalier_operator.budget import Leader, Meter
from espalier_operator.kube import ends
from espalier_operator.kube.crew import PAST, Crew, crew_of, last_word
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.record import Record
from espalier_operator.kube.settings import KubeSettings

GAP_SECONDS: Final = 30.0
"""The longest time between two looks of an operator that is there."""
QUIET_SECONDS: Final = 25.0
"""A leader that trains speaks every ten seconds at least, unless one step takes it longer."""

__all__ = ["Crew", "crew_of", "is_silent", "last_word", "leader_of", "look", "turning_points"]


def look(job: KubeJob, record: Record, crew: Crew, now: float, settings: KubeSettings) -> Record:
    """Return the record after a look at the job's pods and report at `now`."""
    if record.outcome is not None:
        return record
    if record.admitted_at is None:
        return _count_reported(job, record, crew, now)  # its last leader may take a while to end
    record = _count(job, record.with_workers(job.terms.min_replicas), crew, now, settings)
    if record.not_before is not None and now >= record.not_before:
        record = replace(record, not_before=None)
    if record.promised_until is not None and sum(pod.node is not None for pod in crew.extra) >= record.extra:
        record = replace(record, promised_until=None)  # kept: what is lost from now on is lost
    for index in range(job.terms.min_replicas):
        if record.ended is None:
            record = ends.judge(record, crew, index, now, settings)
    return record


def turning_points(record: Record, crew: Crew, settings: KubeSettings) -> Iterator[float]:
    """Yield the times, some of them past, at which `look` may change its answer by the passing of time alone."""
    if record.outcome is not None or record.admitted_at is None or record.ended is not None:
        return
    if record.not_before is not None:
        yield record.not_before
    if record.promised_until is not None:
        yield record.promised_until
    yield from ends.turning_points(crew)
    leader = crew.leader
    if crew.leader_runs and leader is not None and leader.started_at is not None and _is_starting(crew):
        yield leader.started_at + settings.start_up_allowance_seconds


def leader_of(record: Record, crew: Crew, now: float, settings: KubeSettings) -> Leader:
    """Return what the leader does, as far as budgets go; one that keeps silent for long counts as training."""
    if not crew.leader_runs or crew.said in PAST:
        return Leader.ABSENT
    return Leader.STARTING if _is_starting(crew) and not is_silent(crew, now, settings) else Leader.TRAINING


def is_silent(crew: Crew, now: float, settings: KubeSettings) -> bool:
    """Return whether the leader has run past the start-up allowance without a report that it trains."""
    started = crew.leader.started_at if crew.leader_runs and crew.leader is not None else None
    return _is_starting(crew) and started is not None and now - started >= settings.start_up_allowance_seconds


def _is_starting(crew: Crew) -> bool:
    return crew.said is TrainerPhase.STARTING


def _count(job: KubeJob, record: Record, crew: Crew, now: float, settings: KubeSettings) -> Record:
    leader, allowance = crew.leader, settings.start_up_allowance_seconds
    began = now if leader is None or leader.started_at is None else leader.started_at
    # The operator was away while this leader ran: what it ran meanwhile is counted, what was before it is not.
    earliest = began if began <= now else now - GAP_SECONDS
    read_at = now if record.counted_until is None else max(record.counted_until, earliest)
    meter = Meter(
        used_seconds=record.used_seconds,
        gpu_seconds_used=record.gpu_seconds_used,
        read_at=read_at,
        starting_since=min(began, now),
    )
    gpus = (job.terms.min_replicas + record.extra) * job.terms.gpus_per_worker
    reported = _reported(job, crew, now)
    if leader is not None and leader.done:
        # Its own count holds, or all of its time where it was past the allowance.
        kind = Leader.STARTING if _is_starting(crew) else Leader.ABSENT
        until = max(read_at, min(now, leader.finished_at or now))
    else:
        kind, until = leader_of(record, crew, now, settings), now
        if kind is Leader.TRAINING and _is_starting(crew):
            kind = Leader.STARTING  # a silent one: counted from its start, by the allowance
        elif kind is Leader.TRAINING and now - read_at > GAP_SECONDS and crew.report is not None:
            spoke_at = crew.report.updated_time.timestamp()
            if now - spoke_at > QUIET_SECONDS:
                # Nobody watched: it trained while it said so, and may have ended since, unseen by its node as well.
                until = max(read_at, spoke_at)
    meter = meter.advance(until, kind, gpus, allowance, reported)
    return replace(
        record,
        used_seconds=meter.used_seconds,
        gpu_seconds_used=meter.gpu_seconds_used,
        counted_until=now,
        trained=record.trained or _has_trained(record, crew, now, settings),
    )


def _count_reported(job: KubeJob, record: Record, crew: Crew, now: float) -> Record:
    more = _reported(job, crew, now) - record.used_seconds
    if more <= 0:
        return record
    gpus = job.terms.min_replicas * job.terms.gpus_per_worker
    return replace(
        record, used_seconds=record.used_seconds + more, gpu_seconds_used=record.gpu_seconds_used + more * gpus
    )


def _reported(job: KubeJob, crew: Crew, now: float) -> float:
    """Return leaders' own count, also that of one that is gone; none can have trained for longer than its job is."""
    return 0.0 if crew.report is None else min(crew.report.used_seconds, max(0.0, now - job.created_at))


def _has_trained(record: Record, crew: Crew, now: float, settings: KubeSettings) -> bool:
    if leader_of(record, crew, now, settings) is Leader.TRAINING:
        return True
    word = crew.report if crew.fresh else None
    return word is not None and (word.phase is TrainerPhase.COMPLETED or word.step > 0)
