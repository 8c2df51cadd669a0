"""Following objects of one kind: list, then watch, over dropped connections, forgotten moments and restarts of the API
server, with a limit to patience.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from espalier_cli.cluster.client import Cluster, Object
from espalier_cli.cluster.errors import ClusterError, ExpiredError, UnreachableError
from espalier_operator.kube.objects.resources import Resource, version_of

WATCH_SECONDS: Final = 30
"""Length of one watch: a connection that died in silence is noticed a little after it."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before trying again; doubles."""
_STABLE_SECONDS: Final = 1.0
"""A watch that went on for so long was a good one; after a shorter one there is a pause."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An object as it is now."""

    object: Object


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was deleted."""

    object: Object


@dataclass(frozen=True, slots=True)
class Lost:
    """The API server does not answer any more; it is tried again. Said once until it is `Back`."""

    error: ClusterError


@dataclass(frozen=True, slots=True)
class Back:
    """The API server answers again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes: the API server refuses, or was away for longer than there is patience."""

    error: ClusterError


Change = Seen | Gone | Lost | Back | Ended


class Follower:
    """Follows the objects of one kind in a namespace that a field selector chooses, in a thread of its own.

    What was listed comes first, each object as `Seen`; after a gap all are listed anew, and what went meanwhile is
    `Gone`. `tell` is called in the thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        namespace: str,
        selector: str,
        tell: Callable[[Change], None],
        *,
        patience: float,
        known: Iterable[Object] = (),
    ) -> None:
        """Nothing is asked before `start`. `patience`: seconds for which an API server may be away.

        Of the objects `known` only what changes is told, that they are gone included.
        """
        self._cluster, self._resource, self._namespace = cluster, resource, namespace
        self._selector, self._tell, self._patience = selector, tell, patience
        self._known = {raw["metadata"]["uid"]: raw for raw in known}
        self._listed = False
        self._stop = threading.Event()
        # A daemon: who interrupts a watch does not wait for a read to end.
        self._thread = threading.Thread(target=self._run, name=f"follow-{resource.plural}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say no more. The thread ends when its connection is closed (`Cluster.close`)."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, for at most so long."""
        self._thread.join(seconds)

    def is_alive(self) -> bool:
        """Return whether its thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        version: int | None = None
        away_since: float | None = None
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            began = time.monotonic()
            listing = version is None
            try:
                if version is None:
                    version = self._list()
                    if away_since is not None:
                        away_since = None
                        self._say(Back())
                version = self._watch(version)
            except ExpiredError:
                version = None
            except ClusterError as error:
                if not self._listed and not isinstance(error, UnreachableError):
                    self._say(Ended(error))  # a right that is missing from the beginning is not waited for
                    return
                # It may be another API server that comes back, one that knows no old moments: listed anew. Of a watch
                # that broke nothing is said while lists are answered. One that has just started refuses what it does
                # not know yet, so later refusals are got over too.
                if listing and version is None:
                    if away_since is None:
                        away_since = began
                        self._say(Lost(error))
                    if time.monotonic() - away_since >= self._patience:
                        self._say(Ended(error))
                        return
                version = None
            lasted = time.monotonic() - began >= _STABLE_SECONDS
            if lasted and away_since is None:
                pause = FIRST_PAUSE
            elif self._stop.wait(pause):
                return
            else:
                pause = min(2 * pause, LONGEST_PAUSE)

    def _list(self) -> int:
        listed = self._cluster.list_all(self._resource, self._namespace, attempts=1, fieldSelector=self._selector)
        found = {raw["metadata"]["uid"]: dict(raw) for raw in listed.items}
        for uid in [uid for uid in self._known if uid not in found]:
            self._say(Gone(self._known.pop(uid)))
        for uid, raw in found.items():
            if uid not in self._known or version_of(self._known[uid]) != version_of(raw):
                self._known[uid] = raw
                self._say(Seen(raw))
        self._listed = True
        return listed.version

    def _watch(self, version: int) -> int:
        """Tell what happens after `version` until the watch is over; return the version to go on from."""
        parameters = {"fieldSelector": self._selector}
        with self._cluster.watch(self._resource, self._namespace, version, WATCH_SECONDS, **parameters) as changes:
            for change in changes:
                raw = change["object"]
                version = version_of(raw)
                uid = raw["metadata"].get("uid", "")
                if change["type"] in ("ADDED", "MODIFIED"):
                    self._known[uid] = raw
                    self._say(Seen(raw))
                elif change["type"] == "DELETED":
                    self._known.pop(uid, None)
                    self._say(Gone(raw))
        return version

    def _say(self, change: Change) -> None:
        if not self._stop.is_set():
            self._tell(change)
