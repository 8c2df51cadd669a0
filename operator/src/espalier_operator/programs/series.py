"""The values in a page of Prometheus metrics."""

from __future__ import annotations

from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from espalier_core.types.program import MetricsProgress, selector_of
from espalier_operator.programs.lines import MAX_LINE_BYTES
from espalier_operator.programs.reading import number_of

MAX_PAGE_BYTES: Final = 256 * 1024
"""What is beyond is not read."""
_MAX_CANDIDATES: Final = 1000
"""Maximum number of lines that are parsed: those that begin with the name of a series that is read."""


def values_of_page(page: bytes, metrics: MetricsProgress) -> dict[str, float]:
    """Return the value of each series in `page`; of several that fit, that of the first.

    Only lines that begin with a name that is wanted are parsed, each alone, so that a damaged one costs only itself.
    """
    wanted = {name: selector_of(series) for name, series in metrics.series.items()}
    names = {series for series, _ in wanted.values()}
    found: dict[str, float] = {}
    candidates = 0
    for raw in page[:MAX_PAGE_BYTES].split(b"\n"):
        line = raw.decode("utf-8", errors="replace") if len(raw) <= MAX_LINE_BYTES else ""
        head = line.partition("{")[0].partition(" ")[0]
        if head not in names:
            continue
        candidates += 1
        if candidates > _MAX_CANDIDATES:
            break
        for sample_name, labels, value in _samples(line):
            for name, (series, needed) in wanted.items():
                if series == sample_name and name not in found and needed.items() <= labels.items():
                    number = number_of(value)
                    if number is not None:
                        found[name] = number
    return found


def _samples(line: str) -> list[tuple[str, dict[str, str], float]]:
    try:
        families = list(text_string_to_metric_families(line))
    except (ValueError, IndexError, KeyError):
        return []
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
