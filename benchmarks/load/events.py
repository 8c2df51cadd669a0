"""GPUs that become free, one after the other, and when which leader learns of them."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Final

from harness.statistics import percentile

from load import objects
from load.api import Api
from load.case import Case
from load.leaders import Leader, Leaders
from load.world import StuckError, World

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
