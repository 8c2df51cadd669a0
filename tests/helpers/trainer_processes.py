"""Trainer processes of a workplace: what they do is awaited, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import waiting
from espalier_core.types.report import Adaptation

Workplace = Any
"""That of `tests/unit/trainer/conftest.py`."""

SHORT_TRIALS = """
import espalier_trainer.trials.growth_trial as leading
import espalier_trainer.trials.rules as rules
rules.SHARES = leading.SHARES = {rules.Trials.CONFIRM: 1 / 2400, rules.Trials.RACE: 1 / 1200}
rules._START_SECONDS = 120.0
"""
"""Arms train for 1.5 and 3 of the 3600 s of a budget: no machine is so slow that it ends while workers still start."""

ASKS = """
import os
from pathlib import Path
from espalier_trainer.elastic.rendezvous import RendezvousClient
at_once = RendezvousClient.plan
def plan(self, *given):
    Path({folder!r}, f"asks-{{os.getpid()}}").touch()
    return at_once(self, *given)
RendezvousClient.plan = plan
"""
"""A worker tells that it has arrived, by a file of its process."""


def until(condition: Callable[[], Any], place: Workplace) -> Any:
    """Return the first true value of `condition`; fails with what the processes have logged."""
    return waiting.until(condition, lambda: _logs(place))


def ended(process: Any, place: Workplace) -> int:
    """Wait until the process has ended, and return its exit code."""
    process.join(waiting.PATIENCE)
    assert not process.is_alive(), _logs(place)
    code: int = process.exitcode
    return code


def of(place: Workplace, kind: str) -> list[Any]:
    """Return the events of a kind, in order."""
    return [event for event in place.events() if event.type == kind]


def members(place: Workplace) -> list[int]:
    """Return how many workers there were after each change."""
    return [int(event.workers) for event in of(place, "WorkersChanged")]


def meet(place: Workplace, extras: int = 1) -> list[Any]:
    """Start the leader and so many extra workers, and wait until all train together; returns their processes."""
    place.allocate(1 + extras)
    processes = [place.start(), *(place.start(index) for index in range(extras))]
    until(lambda: members(place)[-1:] == [1 + extras], place)
    return processes


def decided(place: Workplace) -> Adaptation:
    """Wait until the first adaptation has been decided, and return it."""
    found: Adaptation = until(lambda: of(place, "AdaptationFinished"), place)[0].adaptation
    return found


def _logs(place: Workplace) -> str:
    return "\n".join([place.log, place.logs(0), place.logs(1)])
