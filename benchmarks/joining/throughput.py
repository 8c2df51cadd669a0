"""One repetition of examples a second: elastic workers, and torch's DistributedDataParallel."""

from __future__ import annotations

import json
from dataclasses import dataclass

from espalier_api.job import ElasticBatch
from joining.models import Model
from joining.place import BATCH, Place, placed
from joining.steps import FOLLOWING, Steps, samples_a_second

Throughput = dict[tuple[ElasticBatch, int], float]
"""Examples a second by policy and number of workers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    policies: tuple[ElasticBatch, ...] = (ElasticBatch.KEEP_GLOBAL, ElasticBatch.SCALE_LINEAR)
    worlds: tuple[int, ...] = (1, 2, 4)
    """Rising."""
    steps: int = 160
    """Of each figure, after some that do not count."""


def elastic(model: Model, policy: ElasticBatch, plan: Plan) -> Throughput:
    """Let one job have the numbers of workers in turn."""
    with placed(model, policy) as place:
        place.allocate(plan.worlds[0], plan.worlds[0])
        place.lead()
        for index in range(max(plan.worlds) - 1):
            place.follow(index)
        _all_wait(place, max(plan.worlds) - 1)
        found = {}
        for world in plan.worlds:
            place.allocate(world, world)
            found[policy, world] = place.until(lambda: _figure(place.steps, world, plan.steps), f"{world} workers")  # noqa: B023
        return found


def plain(model: Model, plan: Plan) -> Throughput:
    """Let plain processes train the same."""
    with placed(model) as place:
        cases = {(policy, each): f"{policy}-{each}" for policy in plan.policies for each in plan.worlds}
        body = [
            {"policy": policy, "world": world, "steps": plan.steps + FOLLOWING, "log": log}
            for (policy, world), log in cases.items()
        ]
        (place.folder / "cases.json").write_text(json.dumps(body))
        place.start("plain", ["-m", "joining.ddp", str(place.folder), str(max(plan.worlds))])
        found = {}
        for (policy, world), log in cases.items():
            steps = Steps(place.folder / log)
            found[policy, world] = place.until(
                lambda: _figure(steps.look(), world, plan.steps),  # noqa: B023
                f"{log} of plain processes",
            )
        return found


def _figure(steps: Steps, world: int, count: int) -> float | None:
    """Return the throughput of the last `count` steps that `world` workers took, if there were that many."""
    first = next((place for place, step in enumerate(steps) if step.world == world), len(steps)) + FOLLOWING
    if len(steps) < first + count:
        return None
    return samples_a_second(steps, first, count, BATCH)


def _all_wait(place: Place, extras: int) -> None:
    """Wait until all are there, so that none still imports while others are measured."""
    logs = [place.folder / f"extra-{index}.log" for index in range(extras)]
    place.until(lambda: True if all("is ready" in log.read_text() for log in logs) else None, "workers that wait")
    place.some_more(seconds=1.0)
