"""Kubernetes Events about a job: what was told of it, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from espalier_kube.resources import Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One Event."""

    uid: str
    about: str
    """Name of the job or the pod that it is about."""
    at: float
    """When it was last told, epoch seconds."""
    reason: str
    message: str
    warning: bool
    times: int
    """How often."""


def told_of(raw: Raw) -> Told:
    """Return what an Event says."""
    metadata, about, series = raw["metadata"], raw.get("involvedObject") or {}, raw.get("series") or {}
    times = (series.get("lastObservedTime"), raw.get("lastTimestamp"), raw.get("eventTime"))
    at = next((time for time in times if time), metadata["creationTimestamp"])
    return Told(
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


def newest(events: Iterable[Told], most: int) -> list[Told]:
    """Return the `most` newest, oldest first."""
    return sorted(events, key=lambda event: event.at)[-most:]
