"""One repetition of what a change costs the worker that runs: a join, a leave, a growth, a death."""

from __future__ import annotations

import time
from dataclasses import dataclass

from joining.models import Model
from joining.place import Place, placed
from joining.steps import FOLLOWING, first_of, gap, pause, redone, usual


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
    """Which follows the growth."""
    death: float
    redone: int
    """Steps, after all of these."""


def pauses(model: Model) -> Pauses:
    """Measure once, in new processes."""
    with placed(model) as place:
        place.allocate(1, 1)
        place.lead()
        alone = place.some_more(30)
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
            checkpoint=gap(steps, grown + 1),
            death=pause(steps, alone_again),
            redone=sum(redone(steps, place) for place in changes),
        )


def _world(place: Place, world: int, after: int, what: str) -> int:
    return place.until(lambda: first_of(place.steps, world, after), what)
