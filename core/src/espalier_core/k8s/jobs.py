"""The state of a job and its cause, from the objects of the API server: the job itself and its Events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from espalier_core.k8s.resources import ATTEMPT_LABEL, INDEX_LABEL, ROLE_LABEL, Raw, mapping, text, trainer_of
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.result import RunResult, dataset_of
from espalier_core.types.status import Condition, ConditionStatus, ConditionType, JobStatus, parse_status
from espalier_core.types.task import Score, accuracy_of, other_than_accuracy, score_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job for display, even if its specification is invalid or no operator has seen it yet."""

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: float
    deleting: bool
    spec: dict[str, Any]
    """The specification as the API server has it."""
    status: JobStatus
    """The status; an empty one if there is none yet, or none that can be parsed."""
    seen: bool
    """Whether an operator has written a status."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def budget_seconds(self) -> float:
        """`spec.timeBudgetSeconds`."""
        return float(self.spec.get("timeBudgetSeconds") or 0.0)

    @property
    def remaining_seconds(self) -> float:
        """Budget seconds left, by what was last counted."""
        return max(0.0, self.budget_seconds - self.status.time_budget.used_seconds)

    @property
    def outcome(self) -> Condition | None:
        """The condition of its end; None before it."""
        return self.status.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The most important reason for a job's current state."""

    reason: Reason | None
    """None if no operator has written one yet."""
    message: str
    since: float | None = None
    """Time since which it holds, in epoch seconds; None if unknown."""


def job_of(raw: Raw) -> Job:
    """Return a job of the API server, whatever the validity of its specification and status."""
    metadata = raw["metadata"]
    try:
        status = parse_status(raw)
    except ValueError:  # a status of another version
        status = None
    return Job(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata["uid"],
        generation=int(metadata.get("generation", 0)),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        deleting="deletionTimestamp" in metadata,
        spec=dict(raw.get("spec") or {}),
        status=status or JobStatus(),
        seen=status is not None,
    )


def phase(job: Job) -> str:
    """Return the phase for display, in one word."""
    return "Deleting" if job.deleting else str(job.status.phase)


def standing(job: Job) -> Standing:
    """Return why it ended; else why it waits or does not train yet, or the state of its extra GPUs."""
    chosen = job.outcome
    if chosen is None:
        chosen = _unless_true(job.status.condition(ConditionType.ADMITTED))
        if chosen is None:
            chosen = _unless_true(job.status.condition(ConditionType.RUNNING))
        if chosen is None:
            chosen = job.status.condition(ConditionType.EXTRA_GPUS_GRANTED)
    if chosen is None:
        message = "no operator has seen it yet" if not job.seen else "the operator has not reported on it yet"
        return Standing(reason=None, message=message)
    message = " ".join(chosen.message.split()) or SENTENCES[chosen.reason]
    return Standing(reason=chosen.reason, message=message, since=chosen.last_transition_time.timestamp())


def _unless_true(condition: Condition | None) -> Condition | None:
    return None if condition is None or condition.status is ConditionStatus.TRUE else condition


def score_of(job: Job) -> Score | None:
    """Return the score on the test split if it is reported; else the score on the validation split."""
    metrics = {metric.name: metric.value for metric in job.status.training.metrics}
    return score_in(metrics, "test") or score_in(metrics, "validation")


@dataclass(frozen=True, slots=True)
class Event:
    """One Event."""

    uid: str
    about: str
    """Name of the job or the pod that it is about."""
    at: float
    """Time of its last occurrence, epoch seconds."""
    reason: str
    message: str
    warning: bool
    times: int
    """Number of occurrences."""

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.reason}: {self.message}"


def event_of(raw: Raw) -> Event:
    """Return the parsed Event."""
    metadata, about, series = raw["metadata"], raw.get("involvedObject") or {}, raw.get("series") or {}
    times = (series.get("lastObservedTime"), raw.get("lastTimestamp"), raw.get("eventTime"))
    at = next((time for time in times if time), metadata["creationTimestamp"])
    return Event(
        uid=metadata["uid"],
        about=about.get("name", ""),
        at=datetime.fromisoformat(at).timestamp(),
        reason=raw.get("reason") or "",
        message=" ".join((raw.get("message") or "").split()),
        warning=raw.get("type") == "Warning",
        times=int(series.get("count") or raw.get("count") or 1),
    )


def is_about(raw: Raw, uid: str) -> bool:
    """Return whether an Event is about the object of this UID, rather than an earlier one of the same name."""
    return bool((raw.get("involvedObject") or {}).get("uid", uid) == uid)


def newest(events: Iterable[Event], most: int) -> list[Event]:
    """Return the `most` newest, oldest first."""
    return sorted(events, key=lambda event: event.at)[-most:]


def result_of(job: Job) -> RunResult:
    """Return the result of a job; its status keeps the newest consultations only."""
    status, training, why = job.status, job.status.training, standing(job)
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": job.name, "namespace": job.namespace}}
    try:
        known = AdaptiveTrainingJob.model_validate_json(json.dumps({**head, "spec": job.spec}))
    except ValidationError:
        known = None
    figures = {metric.name: metric.value for metric in training.metrics}
    test, validation = score_in(figures, "test"), score_in(figures, "validation")
    first = next(iter(status.adaptations), None)
    return RunResult(
        job=job.key,
        seed=0 if known is None else known.spec.training.seed,
        phase=phase(job),
        reason="" if why.reason is None else str(why.reason),
        message=why.message,
        dataset="" if known is None else dataset_of(known),
        time_budget_seconds=job.budget_seconds,
        used_seconds=status.time_budget.used_seconds,
        gpu_seconds_used=status.time_budget.gpu_seconds_used,
        test_accuracy=accuracy_of(test),
        test_score=other_than_accuracy(test),
        test_loss=figures.get("test_loss"),
        validation_accuracy=accuracy_of(validation),
        validation_score=other_than_accuracy(validation),
        epochs=training.epoch,
        steps=training.step,
        depth_before=training.depth if first is None else first.depth_before,
        depth_after=training.depth,
        parameters_before=training.parameters if first is None else first.parameters_before,
        parameters_after=training.parameters,
        adaptations=status.adaptations,
        done=None if training.done_percentage is None else training.done_percentage / 100,
        metrics=training.metrics if job.spec.get("program") is not None else (),
    )


def worker_log(pods: Iterable[Raw], name: str | None = None) -> tuple[str, str] | None:
    """Return the pod and the container that write the log of the worker `name`; None if there is no such pod.

    Without a name, this is the leader: the newest pod of base worker 0.
    """
    chosen = min((pod for pod in pods if name in (None, pod["metadata"]["name"])), key=_leader_first, default=None)
    if chosen is None:
        return None
    return chosen["metadata"]["name"], trainer_of(chosen["spec"])


def _leader_first(pod: Raw) -> tuple[bool, str, int]:
    """Return a sort key that puts the newest pod of base worker 0 first."""
    labels = mapping(pod, "metadata", "labels")
    attempt = text(labels, ATTEMPT_LABEL)
    ours = text(labels, ROLE_LABEL) == "base" and attempt.isdecimal()
    return not ours, text(labels, INDEX_LABEL), -int(attempt) if ours else 0
