"""Traces of DL2's cluster: the arrivals of jobs by slot, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.source import AllocationSettings
from espalier_lab.scheduling.seed_split import SeedSplit


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Jobs in order of arrival."""

    kinds: NDArray[np.int64]
    """(jobs): the type of each."""
    slots: NDArray[np.int64]
    """(jobs): the slot at whose beginning each arrives; not decreasing."""


def draw(source: AllocationSettings, purpose: SeedSplit, index: int, kinds: Sequence[int] | None = None) -> Trace:
    """Draw the trace of this number, as the source does (`Google_Trace` arrivals, `Normal` lengths).

    `kinds`: the types of jobs, by default all.
    """
    rng = np.random.default_rng((41, purpose, index))
    offset = int(rng.integers(source.offsets))
    slots: list[int] = []
    slot = 0
    while len(slots) < source.jobs:
        coming = source.arrivals[(slot + offset) % len(source.arrivals)]
        slots += [slot] * min(source.most_arrivals, coming, source.jobs - len(slots))
        slot += 1
    known = np.arange(len(source.names)) if kinds is None else np.array(kinds)
    return Trace(known[rng.integers(len(known), size=source.jobs)], np.array(slots))
