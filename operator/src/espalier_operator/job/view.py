"""What the planner reads of a job: its state and the last observation of it, turned into facts."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_core.estimates.goodput import step_times
from espalier_core.types.measurements import Measurements
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job import ends
from espalier_operator.job.progress import Leader, leader_of
from espalier_operator.job.state import JobState, Observation, Timing
from espalier_operator.model import REFUSALS, JobFacts, JobTerms, Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What prevents a job's workers from starting."""

    reason: Reason
    message: str
    final: bool = False
    """The API server itself finds the pods invalid: it will never take them as they are."""


def held_by(state: JobState) -> Trouble | None:
    """Return what prevented the workers of a job from starting that waits again for that."""
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
) -> JobFacts:
    """Return the planner's facts of the job `key`.

    `trouble` is what prevents its base workers from starting, `extra_trouble` what prevents those that it is lent.

    `done` is the part of its work that a program has done, as far as that is known.
    """
    generation, training = state.grant.generation, leader_of(state, seen, now, timing) is Leader.TRAINING
    recorded = state.recorded() | {
        "completed_workers": state.completed(terms),
        "counted_until": now if training else None,
        "last_failure": state.last_failure if trouble is None else trouble.message or SENTENCES[trouble.reason],
    }
    return JobFacts(
        **recorded,
        key=key,
        terms=state.needed(terms),
        submitted_at=state.submitted_at or 0.0,
        generation=generation,
        acknowledged_generation=_acknowledged(seen, generation),
        leader_running=seen.leader_runs,
        has_reported=seen.fresh and seen.phase is not TrainerPhase.STARTING,
        training=training,
        evaluating=seen.phase in (TrainerPhase.EVALUATING, TrainerPhase.COMPLETED),
        trouble=None if trouble is None else trouble.reason,
        extra_trouble=None if extra_trouble is None else extra_trouble.reason,
        pinned=not state.unpinned and not state.unplaced,
        if_forced=ends.if_forced(seen, terms),
        finished=state.outcome is not None,
        speeds=() if measured is None else step_times(measured),
        done=done,
        noise_scale=None if measured is None or measured.gradient is None else measured.gradient.noise_scale,
        growth=None if measured is None else measured.growth,
    )


def _acknowledged(seen: Observation, generation: int) -> int:
    """Return the allocation that the leader has acknowledged: a program that runs has what it was started with."""
    if seen.program:
        return generation if seen.leader_runs else 0
    return 0 if seen.report is None else min(seen.report.acknowledged_generation, generation)


def promise_of(key: str, state: JobState) -> Promise | None:
    """Return the pending promise of extra workers for the job."""
    if state.promised_until is None or not state.extra:
        return None
    return Promise(job=key, extra=state.extra, expires_at=state.promised_until)
