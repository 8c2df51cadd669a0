"""Reads the Events about workers whose nodes do not start them, for what is in no status of a pod.

Nothing is watched, and nothing is read while workers start as they should: only of a pod that has been bound for some
seconds, and whose volumes and sandbox are not there, the Events are listed now and then. An API server looks through
all Events of a namespace for that, so few lists are made at a time.
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
"""Wall seconds after which is looked again who waits."""
AT_ONCE: Final = 4
"""Maximum number of pods of which the Events are read in a tick; those that were not read for longest come first."""
AFTER: Final = 10.0
"""Seconds that a pod waits until the Events about it are read."""
EVERY: Final = 20.0
"""Seconds between two reads of the same pod."""
FORBIDDEN_SECONDS: Final = 600.0
"""Nothing is asked again for so long in a namespace where the operator may not read Events."""


class StartEvents:
    """Reads for all jobs of an operator in turn."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        waiting: Callable[[], Iterable[tuple[str, Pod]]],
        take: Callable[[str, str, StartTrouble | None], None],
    ) -> None:
        """`waiting` are UIDs of jobs, with pods that wait for their nodes now; `take` gets those of job and pod."""
        self._client, self._clock, self._waiting, self._take = client, clock, waiting, take
        self._since: dict[str, float] = {}
        """By pod: since when it was seen to wait."""
        self._due: dict[str, float] = {}
        """By pod: when the Events about it are to be read."""
        self._forbidden: dict[str, float] = {}
        """By namespace: until when nothing is asked there."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read_due()
            await asyncio.sleep(TICK)

    async def read_due(self) -> None:
        """Read the Events about those pods that are due."""
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
                    logger.debug("%s: the Events about it were not read: %s", pod.key, error)
                    return
                logger.info("%s: what keeps it from starting is not known: %s", pod.key, error)
                self._forbidden[pod.namespace] = now + FORBIDDEN_SECONDS
        trouble = trouble or trouble_without_events(pod)
        self._take(job, pod.uid, trouble and replace(trouble, since=self._since[pod.uid]))
