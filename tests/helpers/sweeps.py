"""How much of its sweeps a run of the tests does, and which part: decided here alone.

A sweep asks the same question of many cases: torchvision's models, mutated jobs, moments at which an operator is
killed. `make test` asks it of a sample that the day draws; `make test-all` asks it of every case. The header of pytest
prints the seed; `ESPALIER_SWEEP_SEED=N` draws the same sample again, and `ESPALIER_SWEEPS=all` takes every case.
Properties that take seconds play half of their examples in `make test`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

Case = TypeVar("Case")

SAMPLES = {
    "torchvision models": 1,
    "places of a torchvision model": 5,
    "blocks of torchvision, timm and Hugging Face": 1,
    "loops of other libraries": 1,
    "models of the zoo": 1,
    "models that nobody named": 2,
    "forwards that count": 2,
    "ways that gradients take": 2,
    "generators that a model holds": 1,
    "descriptions that grow by a block": 3,
    "stops of a trial": 1,
    "optimizers and schedules that resume": 2,
    "stops of a run": 2,
    "ways to write a loop": 1,
    "kinds of insertion": 1,
    "encoders and rewards": 1,
    "values of the chart": 3,
    "mutated jobs sent to the server": 300,
    "mutated jobs that an operator runs": 25,
    "lives with a killed operator": 6,
    "jobs whose series go with them": 30,
    "cases of the operator's benchmark": 1,
    "dashboards that are drawn": 1,
    "moments at which stand-ins end": 3,
    "lives of simulated jobs": 15,
    "lives of jobs on one machine": 10,
    "lives of planned jobs": 30,
    "plans of a simulated cluster": 125,
    "queues of simulated jobs": 150,
    "texts that are no job": 150,
    "histories of a shared cluster": 4,
}
"""Cases of each sweep that `make test` takes."""

# Workers of pytest-xdist inherit it: all of them draw the same sample, past midnight too.
SEED = int(os.environ.setdefault("ESPALIER_SWEEP_SEED", f"{datetime.now(UTC):%Y%m%d}"))
WHOLE = os.environ.get("ESPALIER_SWEEPS") == "all"


def examples(whole: int) -> int:
    """Return how many examples to play of a property that takes seconds."""
    return whole if WHOLE else (whole + 1) // 2


def size(sweep: str, whole: int) -> int:
    """Return how many cases to make of a sweep that has `whole` of them."""
    return whole if WHOLE else min(whole, SAMPLES[sweep])


def sample(sweep: str, cases: Sequence[Case], of: str = "") -> list[Case]:
    """Return the cases to take, in their order; `of` tells apart the tests that share a sweep."""
    chosen = random.Random(f"{SEED} {sweep} {of}").sample(range(len(cases)), size(sweep, len(cases)))
    return [cases[index] for index in sorted(chosen)]
