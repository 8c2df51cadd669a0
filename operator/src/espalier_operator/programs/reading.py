"""The values that were read of a program, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from espalier_core.base import MAX_NUMBER
from espalier_core.types.program import KNOWN_VALUES, MAX_VALUES
from espalier_core.types.report import Metric

MAX_NUMBER_LENGTH: Final = 64
"""Maximum length of a number in a text, in characters."""


def number_of(value: Any) -> float | None:
    """Return a finite number; None for anything else. A text is read as a number, with or without `%` at its end."""
    if isinstance(value, str):
        text = value.strip().removesuffix("%").strip()
        if len(text) > MAX_NUMBER_LENGTH:
            return None
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest value of each name."""

    values: Mapping[str, float] = field(default_factory=dict)
    planned_steps: int | None = None
    """The steps in all by the job's specification, for a program that does not say it."""

    def then(self, newer: Mapping[str, float], steps: int | None = None) -> Reading:
        """Return the reading after `newer` values; `steps` are those in all, if the program does not say it."""
        merged = {**self.values, **newer}
        if merged == self.values and steps == self.planned_steps:
            return self
        return Reading(dict(list(merged.items())[:MAX_VALUES]), steps)

    @property
    def step(self) -> int:
        """Steps done; 0 if that is not known."""
        return self._count("step")

    @property
    def epoch(self) -> int:
        """Epochs done; 0 if that is not known."""
        return self._count("epoch")

    @property
    def fraction(self) -> float | None:
        """The part of its work that is done, 0 to 1; None if that is not known.

        What the program says of it goes first, then the share of its steps, then that of its epochs.
        """
        if "fraction" in self.values:
            return _clamped(self.values["fraction"])
        if "percent" in self.values:
            return _clamped(self.values["percent"] / 100)
        wholes = {"step": self.values.get("steps", self.planned_steps or 0.0), "epoch": self.values.get("epochs", 0.0)}
        for done, whole in wholes.items():
            if done in self.values and whole > 0:
                return _clamped(self.values[done] / whole)
        return None

    @property
    def figures(self) -> tuple[Metric, ...]:
        """All other values."""
        return tuple(Metric(name=name, value=value) for name, value in self.values.items() if name not in KNOWN_VALUES)

    def _count(self, name: str) -> int:
        return int(max(0.0, min(self.values.get(name, 0.0), float(MAX_NUMBER))))


NOTHING: Final = Reading()


def _clamped(share: float) -> float:
    return max(0.0, min(1.0, share))
