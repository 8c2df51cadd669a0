"""All queries of a dashboard, run: what there is to draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
class Place:
    """Where a panel is, in Grafana's grid of 24 columns."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True, slots=True)
class Line:
    """A series at the points of the window; NaN where there was nothing."""

    name: str
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPanel:
    """A panel with its data."""

    title: str
    place: Place
    unit: str
    least: float | None
    """Where the axis begins, if it is set."""
    decimals: int | None
    stacked: bool
    single: bool
    """Whether its latest values are shown in figures."""
    names: bool
    """Of a single one: whether the names are shown, not the values."""
    lines: tuple[Line, ...]
    """Those with data; of a single one each has one value."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation."""

    title: str
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBoard:
    """A dashboard with its data."""

    title: str
    chosen: tuple[tuple[str, str], ...]
    """Label and value of each variable."""
    window: Window
    headings: tuple[tuple[str, Place], ...]
    panels: tuple[DrawnPanel, ...]
    marks: tuple[Mark, ...]


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

    def read(self, board: Mapping[str, Any]) -> DrawnBoard:
        """Run the queries of a dashboard, given as Grafana's JSON; `ReadingError` where one cannot be run."""
        values = self._built_in()
        chosen = []
        for variable in board["templating"].get("list", ()):
            if variable["type"] == "query":
                found = self._choice(board, variable, values)
                values[variable["name"]] = quoted(found)
                chosen.append((variable["label"], found))
        rows = [panel for panel in board["panels"] if panel["type"] == "row"]
        return DrawnBoard(
            title=board["title"],
            chosen=tuple(chosen),
            window=self.window,
            headings=tuple((row["title"], _place(row)) for row in rows),
            panels=tuple(self._panel(board, panel, values) for panel in board["panels"] if panel["type"] != "row"),
            marks=tuple(self._mark(board, each, values) for each in board["annotations"].get("list", ())),
        )

    def _built_in(self) -> dict[str, str]:
        interval = rate_interval(self.window.step, self.scrape_seconds)
        return {
            "datasource": "",
            "__rate_interval": length_of(interval),
            "__interval": length_of(self.window.step),
            "__range": length_of(max(1.0, self.window.end - self.window.start)),
        }

    def _choice(self, board: Mapping[str, Any], variable: Mapping[str, Any], values: Mapping[str, str]) -> str:
        name = str(variable["name"])
        if name in self.given:
            return self.given[name]
        where = f"{board['title']}: variable {name}: {variable['query']}"
        try:
            selector, label = label_values(substituted(variable["query"], values))
            found = self.prometheus.values(selector, label, self.window)
        except (ValueError, PrometheusError) as error:
            raise ReadingError(f"{where}: {error}") from error
        if not found:
            raise ReadingError(f"{where} finds nothing; is the operator scraped? a longer --last may find older ones")
        return found[0]

    def _panel(self, board: Mapping[str, Any], panel: Mapping[str, Any], values: Mapping[str, str]) -> DrawnPanel:
        where = f"{board['title']}: panel {panel['title']!r}"
        single = panel["type"] == "stat"
        if not single and panel["type"] != "timeseries":
            raise ReadingError(f"{where} is a {panel['type']}; only stat and timeseries are drawn")
        defaults = panel["fieldConfig"]["defaults"]
        lines: list[Line] = []
        for target in panel["targets"]:
            lines.extend(self._lines(where, target["expr"], target["legendFormat"], values, single))
        return DrawnPanel(
            title=panel["title"],
            place=_place(panel),
            unit=defaults["unit"],
            least=defaults.get("min"),
            decimals=defaults.get("decimals"),
            stacked=defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal",
            single=single,
            names=panel["options"].get("textMode") == "name",
            lines=tuple(lines),
        )

    def _lines(self, where: str, expression: str, form: str, values: Mapping[str, str], single: bool) -> Iterator[Line]:
        asked = ""
        try:
            asked = substituted(expression, values)
            found = self.prometheus.now(asked, self.now) if single else self.prometheus.over(asked, self.window)
        except (ValueError, PrometheusError) as error:
            raise ReadingError(f"{where}: query {asked or expression}: {error}") from error
        for series in found:
            line = np.full(1 if single else self.window.points, math.nan)
            for time, value in series.samples:
                at = 0 if single else round((time - self.window.start) / self.window.step)
                line[at] = value if math.isfinite(value) else math.nan
            if np.isfinite(line).any():
                yield Line(legend(form, series.labels), line)

    def _mark(self, board: Mapping[str, Any], annotation: Mapping[str, Any], values: Mapping[str, str]) -> Mark:
        where = f"{board['title']}: annotation {annotation['name']!r}"
        there = np.zeros(self.window.points, dtype=bool)
        for line in self._lines(where, annotation["expr"], "", values, single=False):
            there |= np.nan_to_num(line.values) != 0
        # Points in a row are one event, seen for as long as its rate interval lasts.
        begins = [at + 1 for at, (before, after) in enumerate(pairwise(there)) if after and not before]
        first = [0] if there[0] else []
        times = tuple(self.window.start + at * self.window.step for at in (*first, *begins))
        return Mark(annotation.get("titleFormat") or annotation["name"], times)


def _place(panel: Mapping[str, Any]) -> Place:
    at = panel["gridPos"]
    return Place(at["x"], at["y"], at["w"], at["h"])
