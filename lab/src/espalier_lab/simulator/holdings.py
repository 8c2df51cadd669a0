"""Spans of simulated time with the number of GPUs that a job held."""

from __future__ import annotations

from typing import NamedTuple


class HeldSpan(NamedTuple):
    """A span of simulated time, in seconds, with a number of held GPUs."""

    start: float
    end: float
    gpus: float
    """Number of GPUs; two jobs on the same GPUs hold half of them each."""


def hold(spans: list[HeldSpan], start: float, end: float, gpus: float) -> float:
    """Add to the spans of a job, all before `start`; return the GPU-seconds. A continuation extends its span."""
    if end > start and gpus:
        last = spans[-1] if spans else None
        if last is not None and (last.end, last.gpus) == (start, gpus):
            spans[-1] = HeldSpan(last.start, end, gpus)
        else:
            spans.append(HeldSpan(start, end, gpus))
    return (end - start) * gpus
