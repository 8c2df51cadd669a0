"""The public status of a job: conditions, reasons, phase. Pure; the same for every backend."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from espalier_core.base import MAX_NUMBER, number_of
from espalier_core.types.measurements import Measurements, differs
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import (
    MAX_ARMS,
    MAX_METRICS,
    MAX_NAME,
    MAX_PROBABILITIES,
    MAX_SLICES,
    Adaptation,
    AdaptationResult,
    AdaptationSource,
    Report,
    TrainerPhase,
)
from espalier_core.types.status import (
    MAX_ADAPTATIONS_KEPT,
    MAX_POLICY,
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    JobStatus,
    TrainingStatus,
)
from espalier_operator.job.state import JobState
from espalier_operator.job.transitions import MAX_MESSAGE
from espalier_operator.job.view import Wall, memory_of, utc
from espalier_operator.model import REFUSALS, Ended, JobFacts
from espalier_operator.programs import NOTHING, ProgramReading

MAX_TEXT: Final = 1024
"""Maximum length of a text that a leader reports, in characters."""
MATERIAL_SHARE: Final = 0.05
"""A measured figure is written again when it has moved by this share of itself: policies decide no finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The inputs of a status in addition to the planner's facts."""

    generation: int = 0
    """`metadata.generation` of the observed job."""
    report: Report | None = None
    measured: Measurements | None = None
    """Measurements up to the report, over all attempts; None: nothing was measured."""
    refusal: Reason | None = None
    """Reason for which the last plan gave the job nothing (more)."""
    selector: str = ""
    reading: ProgramReading = NOTHING
    """Progress read from a program."""
    read_at: datetime | None = None
    """Time of the last reading; None before the first."""
    policy: str = ""
    """The scheduling policy, with its settings."""


def status_of(
    job: JobFacts, state: JobState, observed: Observed, previous: JobStatus | None, now: datetime, wall: Wall = utc
) -> JobStatus:
    """Return the status at `now`; conditions that have not changed since `previous` keep their time.

    `wall` turns times of `state` into times of day.
    """
    before = previous or JobStatus()
    outcome, report = state.outcome, observed.report
    seen: dict[str, object] = {
        "observed_generation": observed.generation,
        "phase": phase_of(job, outcome),
        "conditions": _conditions(job, outcome, observed, before, now),
        "start_time": before.start_time or (now if job.trained else None),
        "completion_time": None if outcome is None else before.completion_time or now,
        "training": _training_of(job, state, observed, before),
        "adaptations": before.adaptations if report is None else _adaptations(before, report),
        "measurements": before.measurements if report is None else _measurements(before, observed.measured),
        "adaptation_count": before.adaptation_count if report is None else _grown(before, report),
        "last_checkpoint_time": before.last_checkpoint_time if report is None else report.last_checkpoint_time,
        "selector": observed.selector,
        "scheduling_policy": observed.policy[:MAX_POLICY],
    }
    return memory_of(state, job.terms_of_all, wall).model_copy(update=seen)


def status_of_invalid(
    generation: int, problems: tuple[str, ...], previous: JobStatus | None, wall: datetime
) -> JobStatus:
    """Return the status of a job whose specification is invalid; figures of an earlier specification are kept."""
    before = previous or JobStatus()
    was = before.condition(ConditionType.ADMITTED)
    refused = Condition(
        type=ConditionType.ADMITTED,
        status=ConditionStatus.FALSE,
        reason=Reason.INVALID_SPEC,
        message="; ".join(problems)[:MAX_MESSAGE],
        last_transition_time=was.last_transition_time if was and was.status is ConditionStatus.FALSE else wall,
        observed_generation=generation,
    )
    others = tuple(entry for entry in before.conditions if entry.type is not ConditionType.ADMITTED)
    return before.model_copy(update={"observed_generation": generation, "conditions": (refused, *others)})


def phase_of(job: JobFacts, outcome: Ended | None) -> JobPhase:
    """Return the phase: one word for printing."""
    if outcome is not None:
        return JobPhase.FAILED if outcome.failed else JobPhase.COMPLETE
    if job.admitted_at is None or job.nodes_by is not None:
        return JobPhase.SUSPENDED if job.terms.suspend else JobPhase.PENDING
    if job.evaluating:
        return JobPhase.EVALUATING
    silent = job.trained and job.trouble is Reason.NODE_LOST  # it may train, unseen
    return JobPhase.RUNNING if job.training or silent else JobPhase.STARTING


def _conditions(
    job: JobFacts, outcome: Ended | None, observed: Observed, before: JobStatus, wall: datetime
) -> tuple[Condition, ...]:
    known = {condition.type: condition for condition in before.conditions}
    conditions = []
    for kind in ConditionType:
        holds, reason, message = _judge(kind, job, outcome, observed)
        was = known.get(kind)
        never = was is None or (job.terms.program and kind is ConditionType.EXTRA_GPUS_GRANTED)
        if never and not holds and kind not in _always_listed(job):
            continue  # a condition that was never true is not listed
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        conditions.append(
            Condition(
                type=kind,
                status=status,
                reason=reason,
                message=(message or SENTENCES[reason])[:MAX_MESSAGE],
                last_transition_time=was.last_transition_time if was and was.status is status else wall,
                observed_generation=observed.generation,
            )
        )
    return tuple(conditions)


def _judge(kind: ConditionType, job: JobFacts, outcome: Ended | None, observed: Observed) -> tuple[bool, Reason, str]:
    """Return whether the condition holds, its reason, and a message where the reason's sentence is not enough."""
    admitted = job.admitted_at is not None and job.nodes_by is None
    ended = None if outcome is None else (False, outcome.reason, outcome.message)
    refused = job.trouble if job.hold_until is not None and job.trouble in REFUSALS else None
    waiting = observed.refusal or (Reason.SUSPENDED if job.terms.suspend else refused or Reason.NO_FREE_GPU)
    waiting = Reason.NODES_REQUESTED if job.nodes_by is not None else waiting
    stands = _stands(job, waiting)
    match kind:
        case ConditionType.ADMITTED:
            held = job.hold_until is not None and waiting in REFUSALS
            explained = held or waiting in (Reason.NODES_AVOIDED, Reason.NODES_REQUESTED)
            message = job.last_failure if explained else ""
            if job.external is not None and waiting is Reason.WAITING_FOR_KUEUE:
                message = job.external.message
            return ended or ((True, Reason.GPUS_GRANTED, "") if admitted else (False, waiting, message))
        case ConditionType.RUNNING:
            runs = job.training or job.evaluating
            return ended or (runs, stands, "" if runs else job.last_failure)
        case ConditionType.EXTRA_GPUS_GRANTED:
            if job.extra:
                return ended or (True, *_use_of_extra(number_of(job.extra, "extra worker"), observed))
            refusal, report = observed.refusal or Reason.NO_FREE_GPU, observed.report
            idle = report.cannot_grow[:MAX_TEXT] if report and refusal is Reason.ADAPTATION_OFF else ""
            return ended or (False, refusal, f"{SENTENCES[refusal]}; {idle}" if idle else "")
        case ConditionType.RECLAIM_PENDING:
            if job.reclaim is None:
                return ended or (False, Reason.RECLAIM_ACKNOWLEDGED, "there is nothing to give back")
            least = f"down to {number_of(job.reclaim.extra, 'extra worker')}"
            return ended or (True, job.reclaim.reason, f"{SENTENCES[job.reclaim.reason]}: {least}")
        case ConditionType.SUSPENDED:
            suspended = job.terms.suspend and not admitted
            return ended or (suspended, Reason.SUSPENDED if suspended else stands, "")
        case ConditionType.COMPLETE:
            done = outcome is not None and not outcome.failed
            return (done, outcome.reason if outcome else stands, outcome.message if outcome else "")
        case ConditionType.FAILED:
            failed = outcome is not None and outcome.failed
            return (failed, outcome.reason if outcome else stands, outcome.message if outcome else "")


def _always_listed(job: JobFacts) -> tuple[ConditionType, ...]:
    if job.admitted_at is None or job.terms.program:  # a program is never lent GPUs
        return (ConditionType.ADMITTED, ConditionType.RUNNING)
    return (ConditionType.ADMITTED, ConditionType.RUNNING, ConditionType.EXTRA_GPUS_GRANTED)


def _use_of_extra(lent: str, observed: Observed) -> tuple[Reason, str]:
    """Return reason and message for lent GPUs: they are lent, or the agent could not decide on their use."""
    if observed.report is not None and observed.report.cannot_grow:
        lent = f"{lent}; {observed.report.cannot_grow[:MAX_TEXT]}"
    made = observed.report.adaptations if observed.report is not None else ()
    # Adaptations by the agent or in its place: measurements of steps say nothing about GPUs.
    last = next((each for each in reversed(made) if each.source is not AdaptationSource.MEASUREMENT), None)
    if last is None or last.reason is None or last.source is AdaptationSource.RECLAIM:
        return Reason.EXTRA_GPUS_GRANTED, lent
    return last.reason, f"{lent}; {SENTENCES[last.reason]}: {last.message}".rstrip(": ")


def _stands(job: JobFacts, waiting: Reason) -> Reason:
    if job.training or job.evaluating:
        return Reason.RUNNING if job.has_reported else Reason.NO_REPORT
    if job.admitted_at is None:
        return waiting
    return job.trouble or Reason.STARTING


def _adaptations(before: JobStatus, report: Report) -> tuple[Adaptation, ...]:
    """Return the last known adaptations: a leader that starts has not read its checkpoint yet, or has none."""
    reported = {entry.decision_id: _bounded(entry) for entry in report.adaptations}
    earlier = [entry for entry in before.adaptations if entry.decision_id not in reported]
    return (*earlier, *reported.values())[-MAX_ADAPTATIONS_KEPT:]


def _measurements(before: JobStatus, measured: Measurements | None) -> Measurements:
    """Return the measurements; figures that have hardly moved stay as they were, so that they are rarely written."""
    moved = measured is not None and differs(before.measurements, measured, MATERIAL_SHARE)
    return measured if measured is not None and moved else before.measurements


def _grown(before: JobStatus, report: Report) -> int:
    if _is_early(report) and not report.adaptations:
        return before.adaptation_count
    return sum(adaptation.result is AdaptationResult.GROWN for adaptation in report.adaptations)


def _is_early(report: Report) -> bool:
    """Return whether a leader has no model yet, or failed before it had one: it does not know earlier training."""
    return report.phase is TrainerPhase.STARTING or (report.phase is TrainerPhase.FAILED and report.step == 0)


def _training(report: Report) -> TrainingStatus:
    metrics = (entry for entry in report.metrics if len(entry.name) <= MAX_NAME)
    return TrainingStatus(
        epoch=min(report.epoch, MAX_NUMBER),
        step=min(report.step, MAX_NUMBER),
        progress_percentage=report.progress_percentage,
        metrics=tuple(itertools.islice(metrics, MAX_METRICS)),
        depth=min(report.depth, MAX_NUMBER),
        parameters=min(report.parameters, MAX_NUMBER),
        last_updated_time=report.updated_time,
    )


def _training_of(job: JobFacts, state: JobState, observed: Observed, before: JobStatus) -> TrainingStatus:
    if not job.terms.program:
        report = observed.report
        return before.training if report is None or _is_early(report) else _training(report)
    used = min(100, int(100 * state.used_seconds / job.terms.time_budget_seconds))
    known, reading = before.training.model_copy(update={"progress_percentage": used}), observed.reading
    if observed.read_at is None:
        return known
    return TrainingStatus(
        epoch=reading.epoch,
        step=reading.step,
        progress_percentage=used,
        done_percentage=None if reading.fraction is None else int(100 * reading.fraction),
        metrics=reading.figures,
        last_updated_time=observed.read_at,
    )


def _bounded(entry: Adaptation) -> Adaptation:
    """Return an adaptation cut to the limits of the API server, whichever image reported it."""
    sizes = ("depth_before", "depth_after", "parameters_before", "parameters_after", "width_before", "width_after")
    numbers = ("generation", "evaluations", *sizes)
    texts = ("decision_id", "trigger", "action", "policy", "message")
    given = {name: getattr(entry, name) for name in numbers}
    bounds: dict[str, object] = {
        **{name: max(-MAX_NUMBER, min(each, MAX_NUMBER)) for name, each in given.items() if each is not None},
        **{name: getattr(entry, name)[:MAX_TEXT] for name in texts},
    }
    chances = ((action, chance) for action, chance in entry.probabilities.items() if len(action) <= MAX_NAME)
    bounds["probabilities"] = dict(itertools.islice(chances, MAX_PROBABILITIES))
    bounds["arms"] = tuple(
        arm.model_copy(
            update={
                "action": arm.action[:MAX_NAME],
                "message": arm.message[:MAX_NAME],
                "steps": min(arm.steps, MAX_NUMBER),
                "slices": arm.slices[:MAX_SLICES],
            }
        )
        for arm in entry.arms[:MAX_ARMS]
    )
    bounds["outside"] = tuple(each[:MAX_NAME] for each in entry.outside[:MAX_ARMS])
    return entry.model_copy(update=bounds)
