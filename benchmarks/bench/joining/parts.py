"""One repetition of each part: what a change costs elastic workers; and examples a second, also of plain processes."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from typing import Final

from bench.joining.models import Model
from bench.joining.place import (
    BATCH,
    FOLLOWING,
    Place,
    Steps,
    first_of,
    gap,
    pause,
    placed,
    redone,
    samples_a_second,
    usual,
)
from espalier_core.types.job import ElasticBatch

LEAST_STEPS: Final = 4
"""Of a window."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds."""

    parameters: int
    alone: float
    """A step of one worker."""
    together: float
    """A step of two."""
    start: float
    """From the start of the extra worker's process to the end of the first joint step."""
    first_join: float
    """By a process that has just started."""
    join: float
    """By one that waited."""
    leave: float
    growth: float
    checkpoint: float
    """The longest step while the grown model is copied and written."""
    death: float
    redone: int
    """Steps, after all of these."""


def pauses(model: Model) -> Pauses:
    """Measure once, in new processes."""
    with placed(model) as place:
        place.allocate(1, 1)
        place.lead()
        alone = place.some_more()
        place.allocate(2, 2)
        started = time.monotonic()
        place.follow(0)
        first = _world(place, 2, alone, "the first joint step")
        together = place.some_more()
        place.allocate(1, 1)
        left = _world(place, 1, together, "a step alone after the leave")
        before = place.some_more()
        place.allocate(2, 2)
        joined = _world(place, 2, before, "a joint step after the second join")
        before = place.some_more()
        place.allocate(2, 1)
        grown = place.until(lambda: first_of(place.steps, 2, before, grown=1), "a step of the grown model")
        before = place.some_more()
        place.until(lambda: True if _saved(place) else None, "the checkpoint of the grown model")
        place.kill("extra-0")
        alone_again = _world(place, 1, before, "a step alone after the death")
        steps = place.steps
        changes = (first, left, joined, grown, alone_again)
        return Pauses(
            parameters=next(event.parameters for event in place.events() if event.type == "TrainerStarted"),
            alone=usual(steps, FOLLOWING, alone),
            together=usual(steps, first + FOLLOWING, together),
            start=steps[first].ended - started,
            first_join=pause(steps, first),
            join=pause(steps, joined),
            leave=pause(steps, left),
            growth=gap(steps, grown),
            checkpoint=pause(steps, grown + 1),
            death=pause(steps, alone_again),
            redone=sum(redone(steps, place) for place in changes),
        )


def _saved(place: Place) -> bool:
    return any(event.type == "CheckpointSaved" for event in place.events())


def _world(place: Place, world: int, after: int, what: str) -> int:
    return place.until(lambda: first_of(place.steps, world, after), what)


@dataclass(frozen=True, slots=True)
class Rates:
    """Examples a second, one of each pair of windows."""

    elastic: tuple[float, ...]
    plain: tuple[float, ...]


def rates(model: Model, policy: ElasticBatch, world: int, windows: int, seconds: float) -> Rates:
    """Let an elastic job and plain processes train the same in turn, in windows of `seconds`.

    The others stand still (SIGSTOP), and continue where they were: so other load on the machine meets both alike. The
    windows are equally long, not of equally many steps: a process that has just been woken is given more of a busy CPU.
    """
    with placed(model, policy) as place:
        place.allocate(world, world)
        place.lead()
        for index in range(world - 1):
            place.follow(index)
        place.until(lambda: first_of(place.steps, world, 0), f"steps of {world} workers")
        ours = list(place.processes)
        plain, theirs = Steps(place.folder / "plain-steps"), [f"plain-{rank}" for rank in range(world)]
        (place.folder / "case.json").write_text(json.dumps({"policy": policy, "log": "plain-steps"}))
        for rank, name in enumerate(theirs):
            place.start(name, ["-m", "bench.joining.ddp", str(place.folder), str(world), str(rank)])
        place.until(lambda: True if len(plain.look()) > FOLLOWING else None, "steps of plain processes")
        place.signal([*ours, *theirs], signal.SIGSTOP)
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(windows):
            for names, steps, into in ((ours, place.steps, found[0]), (theirs, plain, found[1])):
                into.append(_window(place, names, steps, seconds))
        return Rates(tuple(found[0]), tuple(found[1]))


def _window(place: Place, names: list[str], steps: Steps, seconds: float) -> float:
    """Let these processes take steps, four at least; returns the examples a second."""
    # The first one was begun in an earlier window.
    first, since = len(steps.look()) + 1, time.monotonic()
    place.signal(names, signal.SIGCONT)
    enough = first + LEAST_STEPS
    place.until(
        lambda: True if len(steps.look()) >= enough and time.monotonic() - since > seconds else None,
        "the steps of a window",
    )
    place.signal(names, signal.SIGSTOP)
    steps.look()
    return samples_a_second(steps, first, len(steps) - first, BATCH)
