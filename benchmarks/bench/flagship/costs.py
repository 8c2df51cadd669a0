"""What a step costs on a device: measured once, and kept with the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.flagship.results import Head
from bench.flagship.subject import LARGE, SMALL, StepCost, Subject
from bench.flagship.training import Bench
from espalier_lab.run_store import head_of

_STEPS: Final = (100, 400)
"""Of two runs: what differs between their durations are steps, as they begin and end alike."""
_UNIT: Final = StepCost(1.0, 0.0)


def measured(subject: Subject) -> StepCost:
    """Return what a step of the trainer costs now, in seconds, from four short runs after one unmeasured."""
    bench = Bench(replace(subject, cost=_UNIT), (1.0,), Path())
    bench.seconds(subject.first_rate, LARGE, _STEPS[0])
    found = {}
    for blocks in (SMALL, LARGE):
        short, long = (bench.seconds(subject.first_rate, blocks, steps) for steps in _STEPS)
        found[blocks] = (long - short) / (_STEPS[1] - _STEPS[0])
    block = (found[LARGE] - found[SMALL]) / (LARGE - SMALL)
    return StepCost(found[SMALL] - SMALL * block, block)


def with_cost(subject: Subject, runs: Path | None) -> Subject:
    """Return the subject with the costs that the file of runs begins with; measured where there is none."""
    if (head := head_of(runs, Head)) is not None:
        return replace(subject, cost=StepCost(head.base, head.block))
    return replace(subject, cost=measured(subject))
