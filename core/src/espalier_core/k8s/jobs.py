"""Where a job stands and why, read from what the API server has: the job itself and the Events about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from espalier_core.k8s.resources import Raw
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.status import Condition, ConditionStatus, ConditionType, JobStatus, parse_status
from espalier_core.types.task import Score, score_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is shown: also one whose specification cannot be run, or that nobody has looked at yet."""

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: float
    deleting: bool
    spec: dict[str, Any]
    """As the API server has it."""
    status: JobStatus
    """An empty one where there is none yet, or none that can be read."""
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
        """The condition of its end, None before it."""
        return self.status.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Why a job is where it is: the one reason that matters most."""

    reason: Reason | None
    """None where no operator has written one yet."""
    message: str
    since: float | None = None
    """Epoch seconds."""


def job_of(raw: Raw) -> Job:
    """Return a job of the API server, whatever its specification and status are like."""
    metadata = raw["metadata"]
    try:
        status = parse_status(raw)
    except ValueError:  # of another version
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
    """Return the one word for printing."""
    return "Deleting" if job.deleting else str(job.status.phase)


def standing(job: Job) -> Standing:
    """Return why it ended; else why it waits, why it does not train yet, or what holds of its extra GPUs."""
    chosen = job.outcome
    if chosen is None:
        chosen = _unless_true(job.status.condition(ConditionType.ADMITTED))
        if chosen is None:
            chosen = _unless_true(job.status.condition(ConditionType.RUNNING))
        if chosen is None:
            chosen = job.status.condition(ConditionType.EXTRA_GPUS_GRANTED)
    if chosen is None:
        message = "no operator has looked at it yet" if not job.seen else "the operator has not reported on it yet"
        return Standing(reason=None, message=message)
    message = " ".join(chosen.message.split()) or SENTENCES[chosen.reason]
    return Standing(reason=chosen.reason, message=message, since=chosen.last_transition_time.timestamp())


def _unless_true(condition: Condition | None) -> Condition | None:
    return None if condition is None or condition.status is ConditionStatus.TRUE else condition


def score_of(job: Job) -> Score | None:
    """Return the score on the test split, before the end that on the validation split, where it is reported."""
    metrics = {metric.name: metric.value for metric in job.status.training.metrics}
    return score_in(metrics, "test") or score_in(metrics, "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One Event."""

    uid: str
    about: str
    """Name of the job or the pod that it is about."""
    at: float
    """When it last happened, epoch seconds."""
    reason: str
    message: str
    warning: bool
    times: int
    """How often."""


def event_of(raw: Raw) -> Event:
    """Return an Event, read."""
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
    """Return whether an Event is about the object of this UID: one of the same name may have been there before."""
    return bool((raw.get("involvedObject") or {}).get("uid", uid) == uid)


def newest(events: Iterable[Event], most: int) -> list[Event]:
    """Return the `most` newest, oldest first."""
    return sorted(events, key=lambda event: event.at)[-most:]
