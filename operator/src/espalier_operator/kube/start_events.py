"""Reads the Events about workers whose nodes do not start them, for causes that no pod status contains.

Events are not watched, and not read while workers start normally. They are listed at intervals only for a pod that has
been bound for some seconds without volumes and sandbox. An API server searches all Events of a namespace for that, so
few lists are made at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from espalier_core.k8s.resources import EVENTS
from espalier_operator.clock import Clock
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects.events import StartTrouble, trouble_in, trouble_without_events
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.loop import BackendError

logger = logging.getLogger(__name__)

TICK: Final = 1.0
"""Wall seconds between two checks for waiting pods."""
AT_ONCE: Final = 4
"""Maximum number of pods whose Events are read in a tick; the longest unread come first."""
AFTER: Final = 10.0
"""Seconds that a pod waits before its Events are read."""
EVERY: Final = 20.0
"""Seconds between two reads of the same pod."""
FORBIDDEN_SECONDS: Final = 600.0
"""Seconds without reads in a namespace where the operator may not read Events."""


class StartEvents:
    """Reads the Events about waiting pods of all jobs in turn."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        waiting: Callable[[], Iterable[tuple[str, Pod]]],
        take: Callable[[str, str, StartTrouble | None], None],
    ) -> None:
        """Take `waiting`, which returns (UID of a job, waiting pod), and `take(UID of job, UID of pod, trouble)`."""
        self._client, self._clock, self._waiting, self._take = client, clock, waiting, take
        self._since: dict[str, float] = {}
        """Time since which each pod was seen to wait."""
        self._due: dict[str, float] = {}
        """Time of the next read for each pod."""
        self._forbidden: dict[str, float] = {}
        """Time of the end of the pause in each namespace where reading is forbidden."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read_due()
            await asyncio.sleep(TICK)

    async def read_due(self) -> None:
        """Read the Events about the pods that are due."""
        now, waiting = self._clock.now(), {pod.uid: (job, pod) for job, pod in self._waiting()}
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._due = {uid: self._due.get(uid, now + AFTER) for uid in waiting}
        due = sorted((at, uid) for uid, at in self._due.items() if now >= at)[:AT_ONCE]
        self._due.update((uid, now + EVERY) for _, uid in due)
        for _, uid in due:
            await self._read(*waiting[uid], now)

    async def _read(self, job: str, pod: Pod, now: float) -> None:
        trouble = None
        if now >= self._forbidden.get(pod.namespace, now):
            try:
                found = await self._client.list(EVENTS, pod.namespace, fields=f"involvedObject.uid={pod.uid}")
                trouble = trouble_in(found.items)
            except BackendError as error:
                if not (isinstance(error, ApiRefusalError) and error.status.is_forbidden):
                    logger.debug("%s: cannot read its Events: %s", pod.key, error)
                    return
                logger.info("%s: the cause of its slow start is unknown: %s", pod.key, error)
                self._forbidden[pod.namespace] = now + FORBIDDEN_SECONDS
        trouble = trouble or trouble_without_events(pod)
        self._take(job, pod.uid, trouble and replace(trouble, since=self._since[pod.uid]))
