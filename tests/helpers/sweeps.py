"""How much of its sweeps a run of the tests does, and which part: decided here alone.

A sweep asks the same question of many cases: torchvision's models, mutated jobs, moments at which an operator is
killed. `make test` asks it of a sample that the day draws; `make test-all` asks it of every case. The header of pytest
prints the seed; `ESPALIER_SWEEP_SEED=N` draws the same sample again, and `ESPALIER_SWEEPS=all` takes every case.
Properties play half of their examples in `make test`, those that take seconds a quarter.
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
    "places of a torchvision model": 3,
    "blocks of torchvision, timm and Hugging Face": 1,
    "loops of other libraries": 1,
    "models of the zoo": 1,
    "models that nobody named": 2,
    "forwards that count": 2,
    "ways that gradients take": 2,
    "generators that a model holds": 1,
    "descriptions that grow by a block": 2,
    "networks that grow in any order": 1,
    "layers and activations": 12,
    "structures that widen": 8,
    "stops of a trial": 1,
    "optimizers and schedules that resume": 1,
    "stops of a run": 1,
    "ways to write a loop": 1,
    "kinds of insertion": 1,
    "encoders and rewards": 1,
    "values of the chart": 2,
    "traces of Pollux": 2,
    "traces of Gavel": 1,
    "simulated histories of decisions": 1,
    "signals that end a server": 1,
    "mutated jobs sent to the server": 75,
    "jobs whose series go with them": 20,
    "cases of the operator's benchmark": 1,
    "dashboards that are drawn": 1,
    "lives of planned jobs": 10,
    "plans of a simulated cluster": 40,
    "queues of simulated jobs": 50,
    "texts that are no job": 50,
    "histories of a shared cluster": 3,
}
"""Cases of each sweep that `make test` takes."""

# Workers of pytest-xdist inherit it: all of them draw the same sample, past midnight too.
SEED = int(os.environ.setdefault("ESPALIER_SWEEP_SEED", f"{datetime.now(UTC):%Y%m%d}"))
WHOLE = os.environ.get("ESPALIER_SWEEPS") == "all"


def examples(whole: int) -> int:
    """Return how many examples to play of a property that takes seconds."""
    return whole if WHOLE else (whole + 3) // 4


DEFAULT_EXAMPLES = 100 if WHOLE else 50
"""Examples of a property that does not say how many."""


def size(sweep: str, whole: int) -> int:
    """Return how many cases to make of a sweep that has `whole` of them."""
    return whole if WHOLE else min(whole, SAMPLES[sweep])


def sample(sweep: str, cases: Sequence[Case], of: str = "") -> list[Case]:
    """Return the cases to take, in their order; `of` tells apart the tests that share a sweep."""
    chosen = random.Random(f"{SEED} {sweep} {of}").sample(range(len(cases)), size(sweep, len(cases)))
    return [cases[index] for index in sorted(chosen)]
