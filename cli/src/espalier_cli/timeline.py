"""`--arrive 20s:1` and `--depart 45s:1`: when simulated GPUs come and go."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+\Z", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%\Z", re.ASCII)


class TimelineError(ValueError):
    """A moment or a change of GPUs cannot be read. The message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class GpuChange:
    """`count` GPUs come (positive) or go (negative) at `at` budget seconds of the run."""

    at: float
    count: int


def parse_moment(text: str, budget_seconds: float) -> float:
    """Return the budget seconds of `20s`, `1m30s`, `500ms`, a bare number of seconds, or `30%` of the budget."""
    if percent := _PERCENT.match(text):
        return float(percent[1]) / 100 * budget_seconds
    if _DURATION.match(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    raise TimelineError(f"{text!r} is no moment; write 20s, 1m30s, 500ms or 30% (of the time budget)")


def parse_change(text: str, sign: int, budget_seconds: float) -> GpuChange:
    """Return the change that `MOMENT:COUNT` means; `sign` is +1 for arrivals and -1 for departures."""
    moment, separator, count = text.partition(":")
    if not separator or not count.isdecimal() or int(count) < 1:
        raise TimelineError(f"{text!r} is no change of GPUs; write MOMENT:COUNT, as 20s:1 (one GPU after 20 seconds)")
    return GpuChange(at=parse_moment(moment, budget_seconds), count=sign * int(count))
