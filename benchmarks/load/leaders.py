"""What the jobs' leaders do, as far as the API server sees it: each watches its own job and reports into its ConfigMap.

The trainer's adapter does the same with a thread a job; here a thousand of them are tasks of one process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from load.api import Api, for_all
from load.objects import JOBS_API, path_of, report

Raw = dict[str, Any]
_OPENED_AT_ONCE: Final = 16
"""Watches that are opened at a time; each is a connection."""


@dataclass
class Leader:
    """One job's leader."""

    namespace: str
    name: str
    pod_uid: str
    begun: float
    """Monotonic seconds."""
    generation: int = 0
    replicas: int = 0
    training: bool = False
    """The operator knows that it trains."""
    done: bool = False
    watches: asyncio.Event = field(default_factory=asyncio.Event)


class Leaders:
    """All leaders."""

    def __init__(self, api: Api, interval: float, seed: int, raised: Callable[[str, float, int], None]) -> None:
        """Nobody leads yet.

        `interval`: seconds from one report to the next while nothing happens; 0: only what is news is reported.
        `raised` receives the key of a job whose leader saw its allocation rise, when (monotonic seconds), and by how
        many workers.
        """
        self._api, self._interval, self._raised = api, interval, raised
        self._chance = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self.all: list[Leader] = []

    async def start(self, group: asyncio.TaskGroup, found: list[tuple[Raw, Raw]]) -> None:
        """Let the leaders of (job, its leader's pod) watch and report; return when all have begun to."""

        async def begin(pair: tuple[Raw, Raw]) -> None:
            job, pod = pair
            place = job["metadata"]
            leader = Leader(place["namespace"], place["name"], pod["metadata"]["uid"], time.monotonic())
            self._take(leader, job)
            self.all.append(leader)
            self._tasks.append(group.create_task(self._watch(leader, place["resourceVersion"], group)))
            await leader.watches.wait()
            await self.report(leader)
            if self._interval:
                self._tasks.append(group.create_task(self._report_regularly(leader)))

        await for_all(found, begin, _OPENED_AT_ONCE)

    def stop(self) -> None:
        """End all watches and reports."""
        for task in self._tasks:
            task.cancel()

    def all_train(self) -> bool:
        """Return whether by the operator's statuses all of them train."""
        return all(leader.training for leader in self.all)

    async def report(self, leader: Leader, *, completed: bool = False) -> None:
        """Patch the leader's report into its ConfigMap."""
        leader.done |= completed
        patch = report(
            leader.name,
            leader.pod_uid,
            generation=leader.generation,
            seconds=time.monotonic() - leader.begun,
            completed=completed,
        )
        await self._api.request("PATCH", path_of("configmaps", leader.namespace, f"{leader.name}-report"), patch)

    async def _report_regularly(self, leader: Leader) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._interval))
        while not leader.done:
            await self.report(leader)
            await asyncio.sleep(self._interval)

    async def _watch(self, leader: Leader, version: str, group: asyncio.TaskGroup) -> None:
        path = path_of("adaptivetrainingjobs", leader.namespace, api=JOBS_API)
        selector = f"metadata.name={leader.name}"
        async for at, _, job in self._api.watch(path, version, leader.watches.set, fieldSelector=selector):
            before, known = leader.replicas, leader.generation
            self._take(leader, job)
            if leader.replicas > before:
                self._raised(f"{leader.namespace}/{leader.name}", at, leader.replicas - before)
            if leader.generation > known and not leader.done:
                group.create_task(self.report(leader))  # acknowledges it

    def _take(self, leader: Leader, job: Raw) -> None:
        status = job.get("status", {})
        allocation = status.get("allocation", {})
        leader.generation, leader.replicas = allocation.get("generation", 0), allocation.get("replicas", 0)
        leader.training = bool(status.get("scheduling", {}).get("trained"))
