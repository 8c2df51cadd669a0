"""GPUs that become free one after the other, and the jobs' leaders, which learn of them.

As far as the API server sees it, each leader watches its own job and reports into its ConfigMap. The trainer's adapter
does the same with a thread a job; here a thousand of them are tasks of one process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench.load import objects
from bench.load.api import Api, for_all
from bench.load.objects import JOBS_API, Case, path_of, report
from bench.load.world import StuckError, World
from bench.statistics import percentile

_LOST_SECONDS: Final = 60.0
"""Seconds after which a freed GPU that no leader was granted counts as lost: the benchmark fails."""


@dataclass(frozen=True, slots=True)
class Freed:
    """One GPU."""

    at: float
    """Monotonic seconds of the API server's answer to what freed it."""
    by_end: bool
    """A job's end, otherwise the deletion of somebody else's pod."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The allocation of a job, as its leader saw it."""

    job: str
    """Key."""
    at: float
    """Monotonic seconds."""


async def free_gpus(
    api: Api, world: World, leaders: Leaders, foreign: list[str], raises: list[Raised], case: Case
) -> dict[str, float | None]:
    """Free GPUs at their times, whether the one before was seen or not, and return how long each took to be seen.

    Every second one is of a job of one worker that ends: its leader reports so, and its pod succeeds. The others are of
    somebody else's pod that is deleted. Each gives one worker to the first job in the scheduler's order that has
    less than its most; so the n-th worker that is lent is the answer to the n-th GPU that came free.
    """
    chance = random.Random(case.seed + 1)
    chance.shuffle(foreign)
    raises.clear()
    world.stages.clear()
    ending = [leader for leader in reversed(leaders.all) if leader.replicas == 1][: case.events // 2]
    freed: list[Freed] = []
    due = time.monotonic()
    for number in range(case.events):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += chance.uniform(0.5, 1.5) * case.spacing
        if number % 2 and ending:
            freed.append(Freed(await _end(api, world, leaders, ending.pop(0)), True))
        else:
            path = objects.path_of("pods", objects.NAMESPACES[0], foreign.pop())
            await api.request("DELETE", path, {"gracePeriodSeconds": 0})
            freed.append(Freed(time.monotonic(), False))
    await world.wait_for("each freed GPU is lent", lambda: len(raises) >= len(freed), _LOST_SECONDS)
    if len(raises) > len(freed):
        raise StuckError(f"{len(raises)} workers were lent, {len(freed)} GPUs came free")
    seconds = [max(0.0, seen.at - each.at) for seen, each in zip(raises, freed, strict=True)]
    after_end = [took for took, each in zip(seconds, freed, strict=True) if each.by_end]
    after_deletion = [took for took, each in zip(seconds, freed, strict=True) if not each.by_end]
    figures: dict[str, float | None] = {"events": len(seconds), "reactionMaxMs": 1000 * max(seconds)}
    for name, part in (("", seconds), ("End", after_end), ("Deletion", after_deletion)):
        for share in (50, 99):
            figures[f"reaction{name}P{share}Ms"] = 1000 * percentile(part, share / 100) if part else None
    return figures | _parts(freed, raises, world)


def _parts(freed: list[Freed], raises: list[Raised], world: World) -> dict[str, float | None]:
    """Return how long each part of the way took, from the pod that was lent a GPU: in the order of their making."""
    parts: dict[str, list[float]] = {"Made": [], "Bound": [], "Runs": [], "Seen": []}
    left = sorted(world.stages.values(), key=lambda stages: stages.made)
    for each, raised in zip(freed, raises, strict=True):
        stages = next((one for one in left if one.job == raised.job and one.runs > 0), None)
        if stages is None:
            continue
        left.remove(stages)
        times = (each.at, stages.made, stages.bound, stages.runs, raised.at)
        for part, before, after in zip(parts.values(), times, times[1:], strict=False):
            part.append(max(0.0, after - before))
    return {
        f"part{name}P{share}Ms": 1000 * percentile(part, share / 100) if part else None
        for name, part in parts.items()
        for share in (50, 99)
    }


async def _end(api: Api, world: World, leaders: Leaders, leader: Leader) -> float:
    """Let a job end as its leader does; return when its pod was answered to have."""
    await leaders.report(leader, completed=True)
    name = f"{leader.name}-base-0-0"
    pod = world.pods[f"{leader.namespace}/{name}"].raw
    if pod is None:
        raise RuntimeError(f"{leader.name} has no pod to end")
    path = objects.path_of("pods", leader.namespace, name) + "/status"
    await api.request("PATCH", path, objects.pod_end(pod))
    return time.monotonic()


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
