"""Events of a run as text, one line each."""

from __future__ import annotations

from collections.abc import Iterable

from espalier_core.base import number_of
from espalier_core.types.events import (
    AdaptationFinished,
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    BatchSizeChanged,
    CheckpointSaved,
    EpochFinished,
    GPUsChanged,
    JobChanged,
    ProgressRead,
    TrainerFinished,
    TrainerStarted,
    TrialsStarted,
    TrialStarted,
    Warned,
    WorkersChanged,
)
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import Adaptation, AdaptationSource, Metric
from espalier_core.types.status import JobPhase
from espalier_core.types.task import Score


def brief(score: Score | None) -> str:
    """Return a score with its name, in short form."""
    return "no score" if score is None else f"{score.by.title} {score.value:.3f}"


def progress_of(step: int, done: float | None, metrics: Iterable[Metric]) -> str:
    """Return the progress of a program as text."""
    parts = [f"step {step:,}"] if step else []
    parts += [] if done is None else [f"{100 * done:.0f} % done"]
    return ", ".join([*parts, *(f"{figure.name} {figure.value:.4g}" for figure in metrics)])


def line_for(event: AnyEvent) -> str | None:
    """Return the line of a plain log for an event; None for an event that would only be noise."""
    match event:
        case TrainerStarted():
            how = f"resumed at epoch {event.epoch}, step {event.step}" if event.resumed else "training starts"
            return f"{how} on {event.device}: depth {event.depth}, {event.parameters:,} parameters"
        case AllocationChanged():
            allocation = event.allocation
            return (
                f"allocation {allocation.generation}: {number_of(allocation.gpus, 'GPU')}, "
                f"{allocation.direction}{_why(allocation.reason)}"
            )
        case AllocationAcknowledged():
            return f"allocation {event.generation} acknowledged after {event.seconds:.2f} s"
        case AdaptationFinished():
            return _adaptation(event.adaptation)
        case TrialStarted():
            size = f"depth {event.depth}, {event.parameters:,} parameters"
            return f"a smaller model ({size}) learns from the grown one; compared in {event.seconds:.3g} s"
        case TrialsStarted():
            workers = number_of(event.workers, "extra worker")
            return f"{workers} try {', '.join(event.actions)}, for {event.seconds:.3g} s each; the base trains on"
        case WorkersChanged(workers=1):
            return f"trains alone again, after a pause of {event.seconds:.2f} s"
        case WorkersChanged():
            return f"{event.workers} workers train together, after a pause of {event.seconds:.2f} s"
        case BatchSizeChanged(goodput=None):
            return f"batch size {event.before} to {event.batch_size}, in passes: {event.message}"
        case BatchSizeChanged():
            return (
                f"batch size {event.before} to {event.batch_size} for {event.goodput:.2f} times the goodput, "
                f"learning rate times {event.learning_rate_factor:.2f}"
            )
        case GPUsChanged():
            return f"GPUs: {event.change:+d}, now {event.total}"
        case JobChanged():
            if event.phase == JobPhase.FAILED and event.message:
                return f"{event.phase}, {event.reason}: {event.message}"
            why = _why(event.reason).replace(f", {event.phase}: ", ": ", 1)  # not "Running, Running: ..."
            return f"{event.phase}{why}{'' if event.message in why else f' ({event.message})'}"
        case Warned():
            return f"warning: {event.reason}: {event.message}"
        case TrainerFinished(score=Score() as score):
            return f"{score.by.title} on the test split: {score.shown}"
        case EpochFinished() | CheckpointSaved() | TrainerFinished() | ProgressRead():
            return None
    return None


def told(event: AnyEvent) -> tuple[str, str] | None:
    """Return an event as a reason and a message, as in Kubernetes; None for an event that would only be noise."""
    if isinstance(event, Warned):
        return event.reason, event.message
    if isinstance(event, JobChanged):
        return event.reason, event.message or sentence_of(event.reason)
    line = line_for(event)
    return None if line is None else (event.type, line)


def sentence_of(reason: str) -> str:
    """Return the sentence of a reason; '' for a reason of a newer version."""
    return SENTENCES[Reason(reason)] if reason in list(Reason) else ""


def _why(reason: str) -> str:
    return ": ".join(part for part in (f", {reason}", sentence_of(reason)) if part) if reason else ""


def _adaptation(adaptation: Adaptation) -> str:
    verb = "tries" if adaptation.source is AdaptationSource.MEASUREMENT else "says"
    text = f"{adaptation.decider} {verb} {adaptation.action}: {adaptation.outcome}"
    if adaptation.timed:
        text += f", {adaptation.timed}"
    if adaptation.source is AdaptationSource.RECLAIM:
        text += f", {adaptation.reason}"
    if adaptation.depth_after != adaptation.depth_before:
        text += (
            f", depth {adaptation.depth_before} -> {adaptation.depth_after}, parameters "
            f"{adaptation.parameters_before:,} -> {adaptation.parameters_after:,}, "
            f"in {adaptation.seconds * 1000:.0f} ms"
        )
    if adaptation.loss_before is not None and adaptation.loss_after is not None:
        text += f", loss on a batch {adaptation.loss_before:.3g} -> {adaptation.loss_after:.3g}"
    return text + (f" ({adaptation.message})" if adaptation.message else "")
