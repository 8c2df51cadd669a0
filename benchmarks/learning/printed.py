"""Figures as tables, for people or as Markdown, and how far the benchmark is."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Sequence

T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 19: 2.093}
"""Student's t, two-sided 95 %, by degrees of freedom; beyond, the normal's 1.96 understates a little."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, half the width of its 95 % interval, and n."""
    half = 0.0
    if len(values) > 1:
        factor = T_95.get(len(values) - 1, 1.96)
        half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": statistics.fmean(values), "half_width": half, "n": len(values)}


def share(value: float, places: int = 4) -> str:
    """Return a figure that lies between -1 and 1, without its leading 0."""
    return f"{value:.{places}f}".replace("0.", ".", 1)


def rendered(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool) -> str:
    """Return a table; its first column is text, the others are figures."""
    lines = [list(head), *(list(row) for row in rows)]
    if markdown:
        rule = ["---", *["---:"] * (len(head) - 1)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))
        return f"**{title}**\n\n{body}\n"
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    body = "\n".join(
        "  " + "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
    return f"{title}\n{body}\n"


def told(line: str) -> None:
    """Say on stderr how far it is."""
    print(line, file=sys.stderr, flush=True)
