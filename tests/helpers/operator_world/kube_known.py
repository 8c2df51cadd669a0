"""A store of what the operator knows, and a time that is ours."""

from __future__ import annotations

import itertools
from typing import Any

from espalier_core.k8s.resources import Resource
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import EPOCH, Raw, at


class Clock:
    """A time that a test sets."""

    def __init__(self, time: float = EPOCH) -> None:
        """Show this time."""
        self.time = time

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self.time

    def wall_seconds(self, seconds: float) -> float:
        """Return as many."""
        return seconds


class Known:
    """A store that is told of one change after another, each of the next version."""

    def __init__(self, settings: KubeSettings | None = None, now: float = EPOCH, **told: Any) -> None:
        """Know nothing; `told` are what the store calls."""
        self.now = now
        self.store = Store(settings or KubeSettings(), lambda: self.now, **told)
        self._versions = itertools.count(2)

    def versioned(self, raw: Raw) -> Raw:
        """Return an object as of the next version."""
        return at(next(self._versions), raw)

    def take(self, resource: Resource, raw: Raw, event: str | None = "MODIFIED") -> Raw:
        """Take an event of the next version; return the object as of that."""
        raw = self.versioned(raw)
        self.store.take(resource, event, raw)
        return raw

    def remove(self, resource: Resource, raw: Raw) -> None:
        """Let an object be gone, also to who looks it up."""
        self.take(resource, raw, "DELETED")
        for pod, version in list(self.store.doubtful.values()):
            self.store.settle(pod, version, None)
