"""When a simulated job held how many GPUs."""

from __future__ import annotations

from typing import NamedTuple


class HeldSpan(NamedTuple):
    """From when to when, in seconds of simulated time, a number of GPUs was held."""

    start: float
    end: float
    gpus: float
    """Of GPUs that two jobs share, each holds half."""


def hold(spans: list[HeldSpan], start: float, end: float, gpus: float) -> float:
    """Add to the spans of a job, which all lie before `start`; return the GPU-seconds. What goes on is one span."""
    if end > start and gpus:
        last = spans[-1] if spans else None
        if last is not None and (last.end, last.gpus) == (start, gpus):
            spans[-1] = HeldSpan(last.start, end, gpus)
        else:
            spans.append(HeldSpan(start, end, gpus))
    return (end - start) * gpus
