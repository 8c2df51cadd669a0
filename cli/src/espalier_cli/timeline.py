"""`--arrive 20s:1` and `--depart 45s:1`: when simulated GPUs come and go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from espalier_operator.local.settings import GpuChange

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+\Z", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%\Z", re.ASCII)
_SECONDS = re.compile(r"\d+(?:\.\d+)?\Z", re.ASCII)


class TimelineError(ValueError):
    """A moment or a change of GPUs cannot be read. The message names it and what is allowed."""


def parse_moment(text: str, budget_seconds: float) -> float:
    """Return the budget seconds of `20s`, `1m30s`, `500ms`, a bare number of seconds, or `30%` of the budget."""
    if percent := _PERCENT.match(text):
        return float(percent[1]) / 100 * budget_seconds
    if _DURATION.match(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if _SECONDS.match(text):
        return float(text)
    raise TimelineError(f"{text!r} is not a moment; write 20s, 1m30s, 500ms or 30% (of the time budget)")


def parse_arrival(text: str, budget_seconds: float) -> GpuChange:
    """Return the arrival that `MOMENT:COUNT` means."""
    at, count = _change(text, budget_seconds)
    return GpuChange(at_seconds=at, change=count)


def parse_departure(text: str, budget_seconds: float, notice_seconds: float) -> GpuChange:
    """Return the departure that `MOMENT:COUNT` means, announced `notice_seconds` before."""
    at, count = _change(text, budget_seconds)
    return GpuChange(at_seconds=at, change=-count, notice_seconds=min(notice_seconds, at))


def require_in_time(changes: Sequence[GpuChange], budgets: Sequence[float], submit_at: Mapping[str, float]) -> None:
    """Raise `TimelineError` for a change that never comes, because all jobs have ended before.

    `budgets` are the jobs' time budgets; `submit_at` are the moments of those that are submitted later. Jobs that run
    one after the other take the longest.
    """
    end = max(submit_at.values(), default=0.0) + sum(budgets)
    late = next((change for change in changes if change.at_seconds > end), None)
    if late is not None:
        kind, option = ("arrival", "--arrive") if late.change > 0 else ("departure", "--depart")
        raise TimelineError(
            f"{option}: the {kind} at {late.at_seconds:g} s never comes: the time budget ends at {end:g} s; name an "
            "earlier moment"
        )


def _change(text: str, budget_seconds: float) -> tuple[float, int]:
    moment, separator, count = text.partition(":")
    if not separator or not re.fullmatch(r"\d+", count, re.ASCII) or int(count) < 1:
        raise TimelineError(
            f"{text!r} is not a change of GPUs; write MOMENT:COUNT, as 20s:1 (one GPU after 20 seconds)"
        )
    if (percent := _PERCENT.match(moment)) and float(percent[1]) > 100:
        raise TimelineError(f"{text!r} is after the end of the time budget; write at most 100%")
    return parse_moment(moment, budget_seconds), int(count)
