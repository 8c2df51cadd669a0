"""All queries of a dashboard, run: what there is to draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from grafana_foundation_sdk.models.dashboard import GridPos
from numpy.typing import NDArray

from espalier_monitoring.boards import Board, Mark, Panel, Row, places
from espalier_monitoring.drawing.prometheus import Prometheus, PrometheusError, Window
from espalier_monitoring.drawing.substitution import (
    label_values,
    legend,
    length_of,
    quoted,
    rate_interval,
    substituted,
)

Values = NDArray[np.float64]


class ReadingError(Exception):
    """A dashboard cannot be drawn; the message names the panel, its query and what to do."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series at the points of the window; NaN where there was nothing."""

    name: str
    values: Values


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A panel with its data."""

    panel: Panel
    place: GridPos
    lines: tuple[Line, ...]
    """Those with data; of a single one each has one value."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark with its times, in epoch seconds."""

    title: str
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBoard:
    """A dashboard with its data."""

    title: str
    chosen: tuple[tuple[str, str], ...]
    """Label and value of each variable."""
    window: Window
    headings: tuple[tuple[str, GridPos], ...]
    panels: tuple[DrawnPanel, ...]
    marks: tuple[Marked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads dashboards from one Prometheus, for one stretch of time."""

    prometheus: Prometheus
    window: Window
    now: float
    """When single values are looked at, epoch seconds."""
    scrape_seconds: float
    given: Mapping[str, str]
    """Values of variables that were chosen."""

    def read(self, board: Board) -> DrawnBoard:
        """Run the queries of a dashboard; `ReadingError` where one cannot be run."""
        values = {
            "__rate_interval": length_of(rate_interval(self.window.step, self.scrape_seconds)),
            "__interval": length_of(self.window.step),
            "__range": length_of(max(1.0, self.window.end - self.window.start)),
        }
        chosen = []
        for name, label, query in board.variables:
            where = f"{board.title}: variable {name}: {query}"
            found = self.given[name] if name in self.given else self._choice(where, query, values)
            values[name] = quoted(found)
            chosen.append((label, found))
        panels, headings = [], []
        for item, place in places(board):
            if isinstance(item, Row):
                headings.append((item.title, place))
                continue
            where = f"{board.title}: panel {item.title!r}"
            lines = [line for query in item.queries for line in self._lines(where, *query, values, item.single)]
            panels.append(DrawnPanel(item, place, tuple(lines)))
        return DrawnBoard(
            title=board.title,
            chosen=tuple(chosen),
            window=self.window,
            headings=tuple(headings),
            panels=tuple(panels),
            marks=tuple(self._marked(board, mark, values) for mark in board.marks),
        )

    def _choice(self, where: str, query: str, values: Mapping[str, str]) -> str:
        try:
            selector, label = label_values(substituted(query, values))
            found = self.prometheus.values(selector, label, self.window)
        except (ValueError, PrometheusError) as error:
            raise ReadingError(f"{where}: {error}") from error
        if not found:
            raise ReadingError(f"{where} finds nothing; is the operator scraped? a longer --last may find older ones")
        return found[0]

    def _lines(self, where: str, expression: str, form: str, values: Mapping[str, str], single: bool) -> Iterator[Line]:
        asked = ""
        try:
            asked = substituted(expression, values)
            found = self.prometheus.now(asked, self.now) if single else self.prometheus.over(asked, self.window)
        except (ValueError, PrometheusError) as error:
            raise ReadingError(f"{where}: query {asked or expression}: {error}") from error
        for series in found:
            line = np.full(1 if single else self.window.points, math.nan)
            for time, value in ((float(time), float(value)) for time, value in series.samples):
                at = 0 if single else round((time - self.window.start) / self.window.step)
                line[at] = value if math.isfinite(value) else math.nan
            if np.isfinite(line).any():
                yield Line(legend(form, series.labels), line)

    def _marked(self, board: Board, mark: Mark, values: Mapping[str, str]) -> Marked:
        where = f"{board.title}: annotation {mark.name!r}"
        there = np.zeros(self.window.points, dtype=bool)
        for line in self._lines(where, mark.expression, "", values, single=False):
            there |= np.nan_to_num(line.values) != 0
        # Points in a row are one event, seen for as long as its rate interval lasts.
        begins = [at + 1 for at, (before, after) in enumerate(pairwise(there)) if after and not before]
        first = [0] if there[0] else []
        return Marked(mark.title, tuple(self.window.start + at * self.window.step for at in (*first, *begins)))
