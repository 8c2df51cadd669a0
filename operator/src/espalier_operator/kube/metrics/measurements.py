"""What happened to a job between two of its statuses, as metrics count it. Pure.

The status is the memory: the difference of two statuses is counted once, whichever operator writes the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from espalier_core.growth import NOTHING, operation_names
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult
from espalier_core.types.status import ConditionType, JobStatus
from espalier_operator.kube.objects.events import reclaim_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The labels by which metrics distinguish jobs."""

    namespace: str
    queue: str
    base_gpus: int
    gpus_per_worker: int
    created_at: float
    """Epoch seconds."""
    has_agent: bool = True
    """Whether an agent is asked how the job grows; a fallback that decides where there is none fails nobody."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """An increment of a counter by `amount`, or an observation of it by a histogram."""

    metric: str
    """Name in `espalier_core.metrics`."""
    labels: tuple[str, ...]
    """Values, in the order of the metric's labels."""
    amount: float = 1.0


def measurements(before: JobStatus | None, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    """Yield the measurements of a change of a job's status from `before` (None: none yet) to `after`."""
    was = before or JobStatus()
    place = (owner.namespace, owner.queue)
    if before is None:
        yield Measurement("espalier_jobs_created_total", place)
    if after.completion_time is not None and was.completion_time is None:
        yield _end(after, place)
    for role, seconds in gpu_seconds(after, owner.base_gpus).items():
        if (more := seconds - gpu_seconds(was, owner.base_gpus)[role]) > 0:
            yield Measurement("espalier_gpu_seconds_total", (*place, role), more)
    if (more := after.restarts - was.restarts) > 0:
        yield Measurement("espalier_restarts_total", place, more)
    if (more := after.preemptions - was.preemptions) > 0:
        yield Measurement("espalier_preemptions_total", place, more)
    yield from _waits(was, after, owner)
    yield from _lending(was, after, owner)
    yield from _adaptations(was, after, owner)


def gpu_seconds(status: JobStatus, base_gpus: int) -> dict[str, float]:
    """Return the GPU-seconds of a job by role: base workers hold theirs for as long as its time budget runs."""
    base = min(status.time_budget.used_seconds * base_gpus, status.time_budget.gpu_seconds_used)
    return {"base": base, "extra": status.time_budget.gpu_seconds_used - base}


def _end(after: JobStatus, place: tuple[str, str]) -> Measurement:
    ends = {ConditionType.COMPLETE: "Complete", ConditionType.FAILED: "Failed"}
    condition = next(entry for entry in after.conditions if entry.type in ends and entry.status == "True")
    return Measurement("espalier_jobs_finished_total", (*place, ends[condition.type], condition.reason))


def _waits(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    first = not was.scheduling.attempts and was.scheduling.admitted_at is None
    if first and after.scheduling.admitted_at is not None:
        waited = after.scheduling.admitted_at.timestamp() - owner.created_at
        yield Measurement("espalier_queue_seconds", (owner.queue,), max(0.0, waited))
    if after.start_time is not None and was.start_time is None and after.scheduling.admitted_at is not None:
        yield Measurement(
            "espalier_start_seconds", (owner.queue,), _between(after.scheduling.admitted_at, after.start_time)
        )


def _lending(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    place = (owner.namespace, owner.queue)
    if after.scheduling.granted_at != was.scheduling.granted_at:
        lent = max(1, after.scheduling.extra - was.scheduling.extra)
        yield Measurement("espalier_gpus_lent_total", place, lent * owner.gpus_per_worker)
    reclaim, ended = was.scheduling.reclaim, reclaim_ended(was, after)
    if reclaim is None or ended is None:
        return
    outcome = _OUTCOMES[ended]
    yield Measurement("espalier_reclaims_total", (*place, reclaim.reason, outcome))
    pending = {entry.last_transition_time for entry in was.conditions if entry.type is ConditionType.RECLAIM_PENDING}
    if pending and after.scheduling.changed_at is not None:
        yield Measurement("espalier_reclaim_seconds", (outcome,), _between(max(pending), after.scheduling.changed_at))


def _adaptations(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    place = (owner.namespace, owner.queue)
    known = {adaptation.decision_id: adaptation for adaptation in was.adaptations}
    for adaptation in after.adaptations:
        earlier = known.get(adaptation.decision_id)
        if earlier is None:
            labels = (*place, _kind(adaptation.action), adaptation.source, adaptation.result)
            yield Measurement("espalier_adaptations_total", labels)
            yield Measurement("espalier_adaptation_seconds", (adaptation.result,), adaptation.seconds)
            if adaptation.arms:
                yield Measurement("espalier_trials_total", (*place, adaptation.result))
            if owner.has_agent and adaptation.advice_problem is not None:
                yield Measurement("espalier_advice_problems_total", (*place, adaptation.advice_problem))
        change = _change(adaptation)
        if change is not None and (earlier is None or _change(earlier) is None):
            yield Measurement("espalier_adaptation_accuracy_change_ratio", (), change)


_OUTCOMES = {
    Reason.RECLAIM_ACKNOWLEDGED: "acknowledged",
    Reason.RECLAIM_FORCED: "forced",
    Reason.GPU_LOST: "lost",
}


def _kind(action: str) -> str:
    """Return the kind of an action; a trainer may write any text, and each kind is a series."""
    kind = action.partition("(")[0]
    return kind if kind in {*operation_names(), NOTHING, "Distill", "Rewrite", "ChannelsLast"} else "other"


def _change(adaptation: Adaptation) -> float | None:
    """Return the change of the validation score's quality; None if nothing grew or it is not known yet."""
    if adaptation.result is not AdaptationResult.GROWN or adaptation.before is None or adaptation.after is None:
        return None
    before, after = adaptation.before.quality, adaptation.after.quality
    return None if before is None or after is None else after - before


def _between(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
