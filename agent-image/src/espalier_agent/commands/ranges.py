"""The numbers that options of commands accept."""

from __future__ import annotations

import math
from typing import Any

import click

SEEDS = click.IntRange(0, 2**32 - 1)
"""The range of a job's seed, too. torch takes 64 bits, and `distilled` multiplies seeds."""


class RealRange(click.FloatRange):
    """The real numbers of a range: `FloatRange` accepts NaN, which is neither below nor above a limit, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number.

        Raises:
            click.BadParameter: It is not a number, not finite, or outside of the range.
        """
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
