"""Election of the one operator that acts, the holder of a Lease, by `kubernetes.aio.leaderelection`.

Added here: requests have deadlines, and a failed request counts as an answer; the holder stops before another operator
may start; an operator that ends normally releases the Lease, so that its successor need not wait; and the holder leaves
notes for its successor in annotations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp
from kubernetes.aio.client import V1Lease, V1ObjectMeta
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

logger = logging.getLogger(__name__)

T = TypeVar("T")


LEASE_SECONDS: Final = 15
SHORTEST_LEASE_SECONDS: Final = 3
NOTE_SECONDS: Final = 30.0
"""Interval at which notes are written with a renewal. They are also written at the release of the Lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times of the election, in seconds."""

    duration: int
    """Wait of other operators after the last renewal that they saw."""
    renewal: float
    """Time for which the holder continues without a renewal."""
    retry: float
    """Interval of attempts."""
    request: float = 2.0
    """Deadline of one request."""

    @classmethod
    def of(cls, duration: int) -> LeaseTimes:
        """Return the times for `duration`, in the proportions of Kubernetes' own controllers (15, 10, 2)."""
        return cls(duration=duration, renewal=duration * 10 / 15, retry=max(1.0, duration * 2 / 15))


class LeaseLostError(Exception):
    """The Lease could not be renewed in time, or another operator has it, so that this one must stop acting."""


class Lease:
    """This operator's part in the election."""

    def __init__(self, api: ApiClient, namespace: str, name: str, identity: str, seconds: int = LEASE_SECONDS) -> None:
        """Take the parts without sending a request; no other process may have this `identity`."""
        self._times = LeaseTimes.of(seconds)
        self._lock = _Lock(name, namespace, identity, api, self._times.request, self._times.duration)
        # The callbacks are not used: `hold` drives the election itself, as it must know how the work ended.
        never = asyncio.sleep
        self._election = LeaderElection(
            Config(self._lock, self._times.duration, self._times.renewal, self._times.retry, never, never)  # type: ignore[arg-type]
        )

    @property
    def holder(self) -> str | None:
        """The last seen holder."""
        record = self._election.observed_record
        return None if record is None else record.holder_identity

    @property
    def is_held(self) -> bool:
        """Whether it was renewed recently enough for this operator to act, by a clock that runs while it is frozen."""
        return time.monotonic() < self._lock.renewed_at + self._times.renewal

    @property
    def tried_at(self) -> float | None:
        """Time of the last read of the Lease, by `time.monotonic`; None before the first."""
        return self._lock.tried_at

    def note(self, annotation: str) -> str | None:
        """Return a note as last read."""
        reference = self._lock.lease_reference
        metadata = None if reference is None else reference.metadata
        return None if metadata is None else (metadata.annotations or {}).get(annotation)

    def keep_notes(self, notes: Mapping[str, Callable[[], str]]) -> None:
        """Write the results of these functions from now on, by annotation."""
        self._lock.notes = notes

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        await self._election.acquire()
        logger.info("holding the lease %s/%s as %s", self._lock.namespace, self._lock.name, self._lock.identity)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[asyncio.Task[None]]:
        """Hold the acquired Lease, and release it at the end; the yielded task ends when it is lost."""
        keeping = asyncio.create_task(self._keep(), name="lease")
        try:
            yield keeping
        finally:
            lost = keeping.done()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            if not lost:
                await self._release()

    async def _keep(self) -> None:
        """Renew until renewals fail for too long."""
        renewing = asyncio.create_task(self._election.renew_loop())
        try:
            while not renewing.done():
                if not self.is_held:
                    return
                left = self._lock.renewed_at + self._times.renewal - time.monotonic()
                await asyncio.wait([renewing], timeout=max(0.0, left))
        finally:
            renewing.cancel()
            for error in await asyncio.gather(renewing, return_exceptions=True):
                if isinstance(error, Exception):
                    logger.error("renewal of the lease ended with %s", type(error).__name__, exc_info=error)

    async def _release(self) -> None:
        """Release the Lease, so that another operator may take it at once."""
        if await self._lock.release():
            logger.info("the lease %s/%s is released", self._lock.namespace, self._lock.name)
        else:
            logger.warning("cannot release the lease; other operators wait %g s for it", self._times.duration)


class _Lock(LeaseLock):
    """A LeaseLock whose requests have a deadline, and which reports its failures.

    It is not taken from a holder that renewed it within `duration` by a clock that does not jump: the library counts by
    the time of day, so that a machine whose clock was set forward would become a second acting operator.
    """

    def __init__(
        self, name: str, namespace: str, identity: str, api: ApiClient, seconds: float, duration: float
    ) -> None:
        super().__init__(name, namespace, identity, api)
        self._seconds, self._duration = seconds, duration
        self._seen: tuple[str | None, str | None] = None, None
        """Holder and time of renewal as last read."""
        self._seen_at = 0.0
        self.tried_at: float | None = None
        self.renewed_at = 0.0
        self.notes: Mapping[str, Callable[[], str]] = {}
        self._noted_at: float | None = None

    async def get(self, name: str, namespace: str) -> Any:
        self.tried_at = time.monotonic()
        failed = (False, ApiException(status=0, reason="no answer"))
        found, record = await self._within(super().get(name, namespace), failed)
        if isinstance(record, LeaderElectionRecord):
            seen = record.holder_identity, record.renew_time
            if seen != self._seen:
                self._seen, self._seen_at = seen, time.monotonic()
        return found, record

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        # Not the base's, which requests pretty=True, refused by the client's own validation (kubernetes 37.0.2).
        asked_at = time.monotonic()
        lease = V1Lease(metadata=V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        created = await self._within(self.api_instance.create_namespaced_lease(namespace, lease), None)
        done = created is not None
        self.renewed_at = asked_at if done else self.renewed_at
        return done

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        asked_at = time.monotonic()
        holder, _ = self._seen
        if holder and holder != self.identity and asked_at < self._seen_at + self._duration:
            logger.warning("the clock was set forward: the lease of %s has not expired and is not taken", holder)
            return False
        if self._noted_at is None or asked_at >= self._noted_at + NOTE_SECONDS:
            self._add_notes(asked_at)
        done = await self._within(super().update(name, namespace, updated_record), False)
        self.renewed_at = asked_at if done else self.renewed_at
        return done

    async def release(self) -> bool:
        """Clear the holder of the Lease, if it is still ours; return whether it was cleared."""
        found, record = await self.get(self.name, self.namespace)
        lease = self.lease_reference
        if not found or record.holder_identity != self.identity or lease is None or lease.spec is None:
            return False
        lease.spec.holder_identity = ""
        self._add_notes(time.monotonic())
        writing = self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
        return await self._within(writing, None) is not None

    def _add_notes(self, now: float) -> None:
        lease = self.lease_reference
        if self.notes and lease is not None and lease.metadata is not None:
            written = {annotation: note() for annotation, note in self.notes.items()}
            lease.metadata.annotations = {**(lease.metadata.annotations or {}), **written}
            self._noted_at = now

    async def _within(self, request: Awaitable[T], otherwise: T) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await request
        except (TimeoutError, aiohttp.ClientError, OSError, ApiException) as error:
            logger.warning("lease %s/%s: %s: %s", self.namespace, self.name, type(error).__name__, error)
            return otherwise
