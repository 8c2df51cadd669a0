"""Kubernetes Events about a job, as they are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from espalier_core.k8s.resources import Raw


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
