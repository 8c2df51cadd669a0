"""Conversion of a job's state to the planner's facts and to its status, and of a status back to the state.

A part of the status has the fields of a part of the state (`_PARTS`), under the same names except for `_NAMES`.
`memory_of` and `state_of` name only the fields that the status has in other places.
Times in the status are RFC 3339 with microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar, get_args

from pydantic import AwareDatetime

from espalier_core.base import Record
from espalier_core.estimates.goodput import step_times
from espalier_core.types.allocation import Allocation
from espalier_core.types.measurements import Measurements
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.status import (
    AvoidedNode,
    ConditionType,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
    StandingStop,
    TimeBudgetStatus,
)
from espalier_operator.job import ends
from espalier_operator.job.progress import Leader, leader_of
from espalier_operator.job.state import Grant, JobState, Observation, Timing
from espalier_operator.model import REFUSALS, Blame, Ended, JobFacts, JobTerms, Promise, Reclaim, Stopping
from espalier_operator.model.queues import ExternalAdmission

Wall = Callable[[float], datetime]
"""Turns seconds of the backend's clock into a time of day."""
R = TypeVar("R", bound=Record)

_PARTS: Final[dict[type[Record], type]] = {
    SchedulingStatus: JobState,
    Allocation: Grant,
    StandingReclaim: Reclaim,
    StandingStop: Stopping,
    AvoidedNode: Blame,
}
"""The part of the state that each part of the status keeps."""
_WRITTEN_AS: Final = {part: document for document, part in _PARTS.items()}
_NAMES: Final = {"pod_uids": "incarnations", "avoided_nodes": "blames", "last_time": "at"}
"""Names in the state of fields of the status, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The obstacle to the start of a job's workers."""

    reason: Reason
    message: str
    final: bool = False
    """The API server itself finds the pods invalid and will never accept them as they are."""


def held_by(state: JobState) -> Trouble | None:
    """Return the obstacle for which a job waits again: its workers could not start."""
    reason = state.grant.reason
    if state.active or state.hold_until is None or reason not in REFUSALS:
        return None
    return Trouble(reason=Reason(reason), message=state.last_failure)


def facts_of(
    key: str,
    state: JobState,
    seen: Observation,
    terms: JobTerms,
    now: float,
    timing: Timing,
    trouble: Trouble | None = None,
    extra_trouble: Trouble | None = None,
    measured: Measurements | None = None,
    done: float | None = None,
    external: ExternalAdmission | None = None,
) -> JobFacts:
    """Return the planner's facts of the job `key`.

    `trouble` prevents its base workers from starting, `extra_trouble` its extra workers. `done` is the part of its work
    that a program has done, None if unknown.
    `external` as in `JobFacts`.
    """
    if state.nodes_by is not None:
        trouble = Trouble(
            reason=Reason.NODES_REQUESTED, message=f"nodes of the group {state.node_group!r} were requested"
        )
    generation, training = state.grant.generation, leader_of(state, seen, now, timing) is Leader.TRAINING
    recorded = state.recorded() | {
        "completed_workers": state.completed(terms),
        "counted_until": now if training else None,
        "last_failure": state.last_failure if trouble is None else trouble.message or SENTENCES[trouble.reason],
    }
    needed = state.needed(terms)
    if seen.report is not None and not seen.report.grows:
        needed = replace(needed, adapts=False)
    return JobFacts(
        **recorded,
        key=key,
        terms=needed,
        submitted_at=state.submitted_at or 0.0,
        generation=generation,
        acknowledged_generation=_acknowledged(seen, generation),
        leader_running=seen.leader_runs,
        has_reported=seen.fresh and seen.phase is not TrainerPhase.STARTING,
        training=training,
        saved_at=_saved_at(state, seen),
        evaluating=seen.phase in (TrainerPhase.EVALUATING, TrainerPhase.COMPLETED),
        trouble=None if trouble is None else trouble.reason,
        extra_trouble=None if extra_trouble is None else extra_trouble.reason,
        pinned=not state.unpinned and not state.unplaced,
        if_forced=ends.if_forced(seen, terms),
        external=external,
        finished=state.outcome is not None,
        speeds=() if measured is None else step_times(measured),
        done=done,
        noise_scale=None if measured is None or measured.gradient is None else measured.gradient.noise_scale,
        bids=() if measured is None else measured.bids,
    )


def _acknowledged(seen: Observation, generation: int) -> int:
    """Return the generation that the leader has acknowledged; a running program acknowledges the current one."""
    if seen.program:
        return generation if seen.leader_runs else 0
    return 0 if seen.report is None else min(seen.report.acknowledged_generation, generation)


def _saved_at(state: JobState, seen: Observation) -> float | None:
    """Return `JobFacts.saved_at`; how old the last checkpoint was is told by the clock of the leader."""
    report, admitted_at = seen.report, state.admitted_at
    if admitted_at is None or report is None or report.last_checkpoint_time is None:
        return admitted_at
    age = (report.updated_time - report.last_checkpoint_time).total_seconds()
    return max(admitted_at, seen.reported_at - max(0.0, age))


def promise_of(key: str, state: JobState) -> Promise | None:
    """Return the pending promise of extra workers for the job."""
    if state.promised_until is None or not state.extra:
        return None
    return Promise(job=key, extra=state.extra, expires_at=state.promised_until)


def utc(seconds: float) -> datetime:
    """Return epoch seconds as a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def memory_of(state: JobState, terms: JobTerms, wall: Wall = utc) -> JobStatus:
    """Return a status with the state of a job, except its outcome, which the conditions state."""
    return JobStatus(
        allocation=allocation_of(state.grant, wall),
        time_budget=TimeBudgetStatus(
            used_seconds=state.used_seconds,
            remaining_seconds=max(0.0, terms.time_budget_seconds - state.used_seconds),
            gpu_seconds_used=state.gpu_seconds_used,
        ),
        restarts=state.restarts,
        preemptions=state.preemptions,
        replicas=terms.min_replicas + state.extra if state.admitted_at is not None else 0,
        scheduling=_document(SchedulingStatus, state, wall),
    )


def state_of(status: JobStatus | None, submitted_at: float | None = None) -> JobState:
    """Return the state stored in `status`, in epoch seconds; a new state where there is no status yet."""
    if status is None:
        return JobState(submitted_at=submitted_at)
    kept = _part(status.scheduling)
    uids, workers = kept["incarnations"], len(kept["attempts"])
    return JobState(
        **kept | {"incarnations": (*uids, *[""] * (workers - len(uids)))[:workers]},
        submitted_at=submitted_at,
        grant=Grant(**_part(status.allocation)),
        used_seconds=status.time_budget.used_seconds,
        gpu_seconds_used=status.time_budget.gpu_seconds_used,
        restarts=status.restarts,
        preemptions=status.preemptions,
        outcome=outcome_of(status),
    )


def allocation_of(grant: Grant, wall: Wall = utc) -> Allocation:
    """Return `grant` in the form that trainers and people read."""
    return _document(Allocation, grant, wall)


def outcome_of(status: JobStatus) -> Ended | None:
    """Return the outcome of the job by its conditions; None before its end."""
    end = status.outcome
    if end is None:
        return None
    return Ended(reason=end.reason, failed=end.type is ConditionType.FAILED, message=end.message)


@cache
def _fields_of(kind: type[Record]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name in the status, name in the state, whether it is a time) of the fields shared with the state."""
    known = {field.name for field in fields(_PARTS[kind])}
    named = ((name, _NAMES.get(name, name), field.annotation) for name, field in kind.model_fields.items())
    return tuple(
        (name, own, AwareDatetime in (annotation, *get_args(annotation)))
        for name, own, annotation in named
        if own in known
    )


def _document(kind: type[R], part: object, wall: Wall) -> R:
    """Return a part of the state as that part of the status."""

    def written(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(written, value))
        document = _WRITTEN_AS.get(type(value))
        return value if document is None else _document(document, value, wall)

    found = {}
    for name, own, is_time in _fields_of(kind):
        value = getattr(part, own)
        found[name] = value if value is None else wall(value) if is_time else written(value)
    return kind(**found)


def _part(document: Record) -> dict[str, Any]:
    """Return the fields of the state that a part of the status keeps, by name, with times in epoch seconds."""

    def read(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(read, value))
        if isinstance(value, datetime):
            return value.timestamp()
        return _PARTS[type(value)](**_part(value)) if isinstance(value, Record) else value

    return {own: read(getattr(document, name)) for name, own, _ in _fields_of(type(document))}
