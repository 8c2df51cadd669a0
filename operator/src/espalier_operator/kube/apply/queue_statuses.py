"""Writes the statuses of queues, which are for people: rarely, and after all else.

A status is written if it differs from this operator's last write, not from the stored one: two operators whose jobs
name the same queue do not overwrite each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from espalier_core.k8s import resources
from espalier_core.types.queue import QueueStatus
from espalier_operator.clock import Clock
from espalier_operator.kube.client import KubeClient
from espalier_operator.kube.objects.queues import statuses
from espalier_operator.kube.watch.store import Store
from espalier_operator.loop import BackendError
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Plan

logger = logging.getLogger(__name__)

WRITE_SECONDS: Final = 5.0
"""Minimum seconds between two writes of a queue."""


class QueueStatuses:
    """The statuses of all queues as of the last plan, and the last written ones."""

    def __init__(self, client: KubeClient, store: Store, clock: Clock, seconds: float = WRITE_SECONDS) -> None:
        """Take the parts; nothing is written before `run`."""
        self._client, self._store, self._clock, self._seconds = client, store, clock, seconds
        self._planned: tuple[Snapshot, Plan] | None = None
        self._written: dict[str, tuple[str, QueueStatus]] = {}
        """UID and last written status of each queue, by name."""
        self._news = asyncio.Event()

    def take(self, snapshot: Snapshot, plan: Plan) -> None:
        """Queue the statuses that a plan changed for writing."""
        if snapshot.queues:
            self._planned = snapshot, plan
            self._news.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.write()
            await asyncio.sleep(self._seconds)

    async def write(self) -> None:
        """Write changed statuses once; failed writes are tried again with the next plan."""
        if self._planned is None:
            return
        objects = {each.queue.name: each for each in self._store.queue_objects.values()}
        for name, each in objects.items():
            if each.status is not None and self._written.get(name, ("",))[0] != each.uid:
                self._written[name] = each.uid, each.status
        self._written = {name: known for name, known in self._written.items() if name in objects}
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        before = {name: status for name, (_, status) in self._written.items()}
        for name, status in statuses(objects.values(), *self._planned, before, now).items():
            if status == before.get(name):
                continue
            body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
            try:
                uid, version = objects[name].uid, objects[name].version
                answer = await self._client.put_status(resources.QUEUES, "", name, uid, version, body)
            except BackendError as error:
                logger.warning("queue %s: cannot write its status: %s", name, error)
                continue
            if answer is not None:
                self._written[name] = uid, status
                self._store.queue_objects.put(answer)
