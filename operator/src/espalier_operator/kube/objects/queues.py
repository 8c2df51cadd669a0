"""Queues of the API server: read for the planner, with statuses for people. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from espalier_core.k8s.resources import Raw, key_of
from espalier_core.types.queue import Queue as QueueManifest
from espalier_core.types.queue import QueueCondition, QueueConditionType, QueueReason, QueueStatus, QuotaUsage
from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionStatus
from espalier_operator.kube.reading import text, whole
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.model.queues import QueueLimits, QueueUsage, Quota

INVALID = "its specification cannot be read, so it takes no jobs with GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueObject:
    """A parsed queue object."""

    queue: QueueLimits
    uid: str
    generation: int
    version: str
    """Its `metadata.resourceVersion`."""
    is_valid: bool
    status: QueueStatus | None
    """The last written status, by any client; None: never written, or unreadable."""


def parse_queue_object(raw: Raw) -> QueueObject:
    """Return a queue with its status. Never raises."""
    queue, is_valid = _parsed(raw)
    try:
        status = QueueStatus.model_validate_json(json.dumps(raw["status"])) if raw.get("status") else None
    except ValidationError:
        status = None
    generation = whole(raw, "metadata", "generation") or 0
    return QueueObject(
        queue=queue,
        uid=text(raw, "metadata", "uid"),
        generation=generation,
        version=text(raw, "metadata", "resourceVersion"),
        is_valid=is_valid,
        status=status,
    )


def _parsed(raw: Raw) -> tuple[QueueLimits, bool]:
    """Return a queue, and whether it is valid; an invalid one admits no jobs with GPUs."""
    body = {key: value for key, value in raw.items() if key != "status"}
    try:
        spec = QueueManifest.model_validate_json(json.dumps(body), strict=True).spec
    except ValidationError:
        return QueueLimits(name=key_of(raw), quotas=(Quota(nominal=0),)), False
    queue = QueueLimits(
        name=key_of(raw),
        cohort=spec.cohort,
        namespaces=spec.namespaces,
        max_priority=spec.max_priority,
        weight=spec.weight,
        quotas=tuple(
            Quota(gpu_type=quota.gpu_type, nominal=quota.nominal, borrowing_limit=quota.borrowing_limit)
            for quota in spec.quotas
        ),
    )
    return queue, True


def statuses(
    queues: Iterable[QueueObject], snapshot: Snapshot, plan: Plan, before: Mapping[str, QueueStatus], now: datetime
) -> dict[str, QueueStatus]:
    """Return the status of each queue after `plan`, by name; unchanged conditions keep the times of `before`."""
    admitted, pending, exhausted, held = (Counter[str]() for _ in range(4))
    for job in snapshot.jobs:
        name = job.terms.queue
        if job.finished:
            continue
        if job.admitted_at is not None:
            admitted[name] += 1
            held[name] += job.claim.gpus
        elif not job.terms.suspend:
            pending[name] += 1
            refusal = plan.refusals.get(job.key)
            exhausted[name] += refusal is not None and refusal.reason in (Reason.QUOTA_EXCEEDED, Reason.MIN_RUNTIME)
    usage: dict[str, list[QuotaUsage]] = defaultdict(list)
    for name, gpu_type, nominal, used in QueueUsage(snapshot.queues, snapshot.held_claims()).usage():
        borrowed = max(0, used - nominal)
        usage[name].append(QuotaUsage(gpu_type=gpu_type, nominal=nominal, used=used, borrowed=borrowed))
    return {
        (name := each.queue.name): QueueStatus(
            admitted_jobs=admitted[name],
            pending_jobs=pending[name],
            used_gpus=held[name],
            borrowed_gpus=sum(quota.borrowed for quota in usage[name]),
            usage=tuple(usage[name]),
            conditions=tuple(_conditions(each, exhausted[name], before.get(name), now)),
        )
        for each in queues
    }


def _conditions(
    queue: QueueObject, exhausted: int, before: QueueStatus | None, now: datetime
) -> Iterator[QueueCondition]:
    active, waits = QueueConditionType.ACTIVE, QueueConditionType.EXHAUSTED
    since = {each.type: each for each in (() if before is None else before.conditions)}
    for kind, holds, reason, message in (
        (active, queue.is_valid, QueueReason.READY, "jobs are admitted")
        if queue.is_valid
        else (active, False, QueueReason.INVALID_SPEC, INVALID),
        (waits, True, QueueReason.JOBS_WAIT, "a job waits for a quota")
        if exhausted
        else (waits, False, QueueReason.NOBODY_WAITS, "no job waits for a quota"),
    ):
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        known = since.get(kind)
        yield QueueCondition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if known is not None and known.status is status else now,
            observed_generation=queue.generation,
        )
