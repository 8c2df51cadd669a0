"""A local view of objects of one kind: list, then watch, over dropped connections, expired versions and restarts of the
API server.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from espalier_core.k8s.errors import ApiError, ExpiredError, RefusedError, Retries
from espalier_core.k8s.resources import Raw, Resource, version_of

if TYPE_CHECKING:
    from espalier_core.k8s.client import Client, Watch

_STABLE_SECONDS: Final = 1.0
"""Seconds after which a watch counts as successful; a shorter one is followed by a pause."""

_MOMENT_SECONDS: Final = 0.25
_CLOSE_SECONDS: Final = 2.0

_PAUSES: Final = Retries(first_wait=0.2, longest_wait=5.0)


@dataclass(frozen=True, slots=True)
class Changed:
    """An object as it is now."""

    object: Raw


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted."""

    object: Raw


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The API server does not answer and is tried again. Given once until it is `Reconnected`."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The API server answers again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more comes: the API server refuses, or was away for longer than `patience`."""

    error: ApiError


Change = Changed | Deleted | Disconnected | Reconnected | Failed


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Times of a reflector, in seconds."""

    watch: int = 30
    """Length of one watch."""
    silence: float = 40.0
    """Seconds without an event after which a connection counts as dead."""
    patience: float = math.inf
    """Seconds for which an API server may be away. If finite, a missing right at the start is an error at once."""
    retries: Retries = _PAUSES
    """Pauses between two attempts."""


class Reflector:
    """Follows the objects of one kind in a namespace (None: in all) that match a field selector, in a thread.

    Listed objects come first, each as `Changed`. A watch that ends in order continues from its last version. After an
    error or silence everything is listed again, because another API server may answer that does not know that version;
    objects that vanished meanwhile are `Deleted`.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None,
        fields: str,
        handle: Callable[[Change], None],
        *,
        rhythm: Rhythm | None = None,
        known: Iterable[Raw] = (),
        synced: Callable[[], None] = lambda: None,
    ) -> None:
        """No request is sent before `start`. `handle` and `synced` (after each list) are called in the thread.

        For objects in `known`, only changes are given, their deletion included.
        """
        self._client, self._resource, self._namespace, self._fields = client, resource, namespace, fields
        self._handle, self._synced, self._rhythm = handle, synced, rhythm or Rhythm()
        self._known = {raw["metadata"]["uid"]: raw for raw in known}
        self._listed = False
        self._watching: Watch | None = None
        self._stop = threading.Event()
        self._random = random.Random()  # not the global generator: training is seeded by it
        # A daemon: a process that ends does not wait for a read to end.
        self._thread = threading.Thread(target=self._run, name=f"reflect-{resource.plural}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Give no more changes, and end the watch. The thread may still wait for an answer; see `join`."""
        self._stop.set()
        if self._watching is not None:
            self._watching.close()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the thread."""
        self._thread.join(seconds)

    def is_alive(self) -> bool:
        """Return whether its thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        version: int | None = None
        away_since: float | None = None
        tried = 0
        while not self._stop.is_set():
            began, broken, listing = time.monotonic(), False, version is None
            try:
                if version is None:
                    version = self._list()
                    listing = False
                    if away_since is not None:
                        away_since = None
                        self._give(Reconnected())
                version = self._watch(version)
            except ExpiredError:
                version = None
            except ApiError as error:
                version, broken = None, True
                if listing:  # a broken watch is not an outage while lists are answered
                    if not self._listed and isinstance(error, RefusedError) and self._rhythm.patience < math.inf:
                        self._give(Failed(error))
                        return
                    # An API server that has just started refuses requests until it has loaded everything: later
                    # refusals may pass.
                    if away_since is None:
                        away_since = began
                        self._give(Disconnected(error))
                    if time.monotonic() - away_since >= self._rhythm.patience:
                        self._give(Failed(error))
                        return
            if time.monotonic() - began >= _STABLE_SECONDS and away_since is None:
                tried = 0
                if not broken:
                    continue
            tried += 1
            self._stop.wait(self._rhythm.retries.wait(tried, jitter=self._random.random()))

    def _list(self) -> int:
        listing = self._client.list(self._resource, self._namespace, fields=self._fields, tries=1)
        found = {raw["metadata"]["uid"]: raw for raw in listing.items}
        for uid in [uid for uid in self._known if uid not in found]:
            self._give(Deleted(self._known.pop(uid)))
        for uid, raw in found.items():
            if uid not in self._known or version_of(self._known[uid]) != version_of(raw):
                self._known[uid] = raw
                self._give(Changed(raw))
        self._listed = True
        self._synced()
        return listing.version

    def _watch(self, version: int) -> int:
        """Give the changes after `version` until the watch is over; return its last version."""
        self._watching = self._client.watch(
            self._resource,
            self._namespace,
            version,
            seconds=self._rhythm.watch,
            silence=self._rhythm.silence,
            fields=self._fields,
        )
        if self._stop.is_set():  # `stop` was called meanwhile and could not close it
            self._watching.close()
        for event in self._watching:
            raw: Raw = event["object"]
            version = version_of(raw)
            if event["type"] in ("ADDED", "MODIFIED"):
                self._known[raw["metadata"]["uid"]] = raw
                self._give(Changed(raw))
            elif event["type"] == "DELETED":
                self._known.pop(raw["metadata"]["uid"], None)
                self._give(Deleted(raw))
        return version

    def _give(self, change: Change) -> None:
        if not self._stop.is_set():
            self._handle(change)


def followed(
    client: Client, namespace: str | None, watched: Iterable[tuple[Resource, str, Iterable[Raw]]], rhythm: Rhythm
) -> Generator[tuple[Resource, Change] | None, None, None]:
    """Yield the changes of several kinds of objects, without end; None after a moment without changes.

    `watched` are kinds with a field selector and the objects that are known already. Close it after use.
    """
    news: queue.SimpleQueue[tuple[Resource, Change]] = queue.SimpleQueue()

    def reflector(resource: Resource, fields: str, known: Iterable[Raw]) -> Reflector:
        def put(change: Change) -> None:
            news.put((resource, change))

        return Reflector(client, resource, namespace, fields, put, rhythm=rhythm, known=known)

    reflectors = [reflector(*each) for each in watched]
    for each in reflectors:
        each.start()
    try:
        while True:
            try:
                yield news.get(timeout=_MOMENT_SECONDS)
            except queue.Empty:
                yield None
    finally:
        for each in reflectors:
            each.stop()
        for each in reflectors:
            each.join(_CLOSE_SECONDS)
