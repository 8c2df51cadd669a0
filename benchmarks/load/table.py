"""The figures of all cases as one table: a row a figure, a column a case, and one of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness.printed import aligned

from load.case import Case

_ROWS: Final = (
    ("jobs admitted", "admitted", "{:.0f}"),
    ("their pods", "workers", "{:.0f}"),
    ("start to first plan, s", "startSeconds", "{:.1f}"),
    ("CPU s until it rests", "startCpuSeconds", "{:.1f}"),
    ("all jobs submitted, s", "submitSeconds", "{:.1f}"),
    ("converged, s", "convergeSeconds", "{:.1f}"),
    ("operator's CPU s for that", "convergeCpuSeconds", "{:.1f}"),
    ("requests a job", "requestsPerJob", "{:.2f}"),
    ("/healthz waits, p99 ms", "convergeWaitP99Ms", "{:.0f}"),
    ("/healthz waits, max ms", "convergeWaitMaxMs", "{:.0f}"),
    ("GPUs freed", "events", "{:.0f}"),
    ("freed → seen, p50 ms", "reactionP50Ms", "{:.0f}"),
    ("freed → seen, p99 ms", "reactionP99Ms", "{:.0f}"),
    ("freed → seen, max ms", "reactionMaxMs", "{:.0f}"),
    ("by a job's end, p50 ms", "reactionEndP50Ms", "{:.0f}"),
    ("by a job's end, p99 ms", "reactionEndP99Ms", "{:.0f}"),
    ("by a deletion, p50 ms", "reactionDeletionP50Ms", "{:.0f}"),
    ("by a deletion, p99 ms", "reactionDeletionP99Ms", "{:.0f}"),
    ("freed → pod made, p50 ms", "partMadeP50Ms", "{:.0f}"),
    ("freed → pod made, p99 ms", "partMadeP99Ms", "{:.0f}"),
    ("made → bound, p50 ms", "partBoundP50Ms", "{:.0f}"),
    ("made → bound, p99 ms", "partBoundP99Ms", "{:.0f}"),
    ("bound → runs, p50 ms", "partRunsP50Ms", "{:.0f}"),
    ("bound → runs, p99 ms", "partRunsP99Ms", "{:.0f}"),
    ("runs → seen, p50 ms", "partSeenP50Ms", "{:.0f}"),
    ("runs → seen, p99 ms", "partSeenP99Ms", "{:.0f}"),
    ("cores the operator uses", "steadyCores", "{:.2f}"),
    ("cores the benchmark uses", "loadCores", "{:.2f}"),
    ("its requests a second", "steadyRequestsPerSecond", "{:.1f}"),
    ("API server's own time for its writes, p50 ms", "steadyWriteP50Ms", "{:.0f}"),
    ("API server's own time for its writes, p99 ms", "steadyWriteP99Ms", "{:.0f}"),
    ("/healthz waits, p99 ms", "steadyWaitP99Ms", "{:.0f}"),
    ("/healthz waits, max ms", "steadyWaitMaxMs", "{:.0f}"),
    ("plan() alone, median ms", "planMs", "{:.1f}"),
    ("plan() alone, max ms", "planMaxMs", "{:.1f}"),
    ("peak memory, MiB", "peakMiB", "{:.0f}"),
    ("warnings in its log", "warnings", "{:.0f}"),
)
_BY_VERB: Final = "requestsPerJob "


def table(cases: Sequence[Case], results: Sequence[dict[str, float | None]]) -> str:
    """Return the table as text; a dash where a case has no such figure.

    Where there are several cases, the last column is the last of them over the first.
    """
    compared = len(cases) > 1
    head = [f"{case.nodes} nodes, {case.jobs} jobs" for case in cases]
    rows = [["", *head, *([f"{cases[-1].nodes} / {cases[0].nodes}"] if compared else [])]]
    for title, name, shape in _ROWS:
        rows.append([title, *_cells(results, name, shape)])
        if name == "requestsPerJob":
            kinds = {kind for result in results for kind in result if kind.startswith(_BY_VERB)}
            often = [kind for kind in kinds if max(result.get(kind) or 0.0 for result in results) >= 0.01]
            rows += [[f"  {kind.removeprefix(_BY_VERB)}", *_cells(results, kind, shape)] for kind in sorted(often)]
    return "\n".join(line.rstrip() for line in aligned(rows))


def _cells(results: Sequence[dict[str, float | None]], name: str, shape: str) -> list[str]:
    """Return the figure of each case, and where there are several the last over the first."""
    values = [result.get(name) for result in results]
    first, last = values[0], values[-1]
    ratio = None if not first or last is None else last / first
    return [_cell(value, shape) for value in values] + ([_cell(ratio, "{:.2f}")] if len(values) > 1 else [])


def _cell(value: float | None, shape: str) -> str:
    return "–" if value is None else shape.format(value)
