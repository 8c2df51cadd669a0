"""The data of a dashboard: all its queries, run on a Prometheus.

Texts are interpreted as by Grafana: variables in queries, labels in legends, lengths of time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import httpx
import numpy as np
from grafana_foundation_sdk.models.dashboard import GridPos
from numpy.typing import NDArray

from espalier_monitoring.boards import Annotation, Board, Panel, Row, places

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_VALUES: Final = re.compile(r"label_values\((?P<match>.+),\s*(?P<label>\w+)\s*\)")
_LENGTH: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCRAPES_A_RATE: Final = 4
"""Scrapes in the window of a rate, which survives a failed one; Grafana's number."""
_ANSWER_SECONDS: Final = 60.0
Values = NDArray[np.float64]


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with the value of each `$name` and `${name}`; raise `ValueError` if one has no value."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            raise ValueError(f"${name} in {text!r} has no value; known: {', '.join(sorted(values)) or 'none'}")
        return values[name]

    return _VARIABLE.sub(value, text)


def quoted(value: str) -> str:
    """Return a value escaped for a PromQL string."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def legend(form: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series: `form` with its labels, or the labels alone if there is no form."""
    if not form:
        inside = ", ".join(f'{name}="{quoted(value)}"' for name, value in labels.items() if name != "__name__")
        return f"{labels.get('__name__', '')}{{{inside}}}"
    return _LABEL.sub(lambda found: labels.get(found[1], ""), form).strip()


def label_values(query: str) -> tuple[str, str]:
    """Return (selector, label) of a variable's `label_values(selector, label)`; `ValueError` for another query."""
    found = _VALUES.fullmatch(query.strip())
    if found is None:
        raise ValueError(f"the query of a variable must be label_values(SELECTOR, LABEL), not {query!r}")
    return found["match"].strip(), found["label"]


def seconds_of(text: str) -> float:
    """Return the seconds of a length of time such as `15m` or `1h30m`; raise `ValueError` with the allowed form."""
    parts = _LENGTH.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text or not any(int(n) for n, _ in parts):
        raise ValueError(f"{text!r} is not a length of time; write it as 30s, 15m, 3h, 2d or 1h30m")
    return float(sum(int(number) * _UNITS[unit] for number, unit in parts))


def length_of(seconds: float) -> str:
    """Return seconds in the notation of PromQL, to the millisecond."""
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(1000 * seconds)}ms"


def rate_interval(step: float, scrape: float) -> float:
    """Return `$__rate_interval` in seconds, for points `step` apart and scrapes `scrape` apart."""
    return max(step + scrape, _SCRAPES_A_RATE * scrape)


class PrometheusError(Exception):
    """Prometheus gave no answer, or refused; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time range and its points, in epoch seconds."""

    start: float
    end: float
    step: float

    @classmethod
    def until(cls, now: float, seconds: float, least_step: float, points: int) -> Window:
        """Return the last `seconds` with at most `points` points, at whole multiples of their step."""
        step = max(least_step, float(math.ceil(seconds / points)))
        end = math.floor(now / step) * step
        return cls(start=end - math.floor(seconds / step) * step, end=end, step=step)

    @property
    def points(self) -> int:
        """Number of points."""
        return round((self.end - self.start) / self.step) + 1

    @property
    def times(self) -> NDArray[np.float64]:
        """Times of all points."""
        return np.linspace(self.start, self.end, self.points, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Samples:
    """One series of an answer."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, str]]
    """Times and values, in Prometheus' notation."""


class Prometheus:
    """The Prometheus at `url`; a context manager."""

    def __init__(self, url: str) -> None:
        """Raise `PrometheusError` if `url` is not a URL."""
        self._url = url
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise PrometheusError(f"{url!r} is not a URL ({error}); write it as http://127.0.0.1:9090") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise PrometheusError(f"{url!r} is not the URL of a Prometheus; write it as http://127.0.0.1:9090")
        # Prometheus is near, often forwarded to this machine: a proxy in the environment is not used.
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=_ANSWER_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def now(self, expression: str, at: float) -> list[Samples]:
        """Return the series of an expression at one moment."""
        found = self._get("query", {"query": expression, "time": repr(at)})
        return [Samples(each["metric"], [each["value"]]) for each in found["result"]]

    def over(self, expression: str, window: Window) -> list[Samples]:
        """Return the series of an expression over a time range."""
        asked = {"query": expression, "start": repr(window.start), "end": repr(window.end), "step": repr(window.step)}
        return [Samples(each["metric"], each["values"]) for each in self._get("query_range", asked)["result"]]

    def values(self, selector: str, label: str, window: Window) -> list[str]:
        """Return the values that a label had, in order."""
        asked = {"match[]": selector, "start": repr(window.start), "end": repr(window.end)}
        return sorted(self._get(f"label/{label}/values", asked))

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        try:
            answer = self._http.get(f"/api/v1/{path}", params=parameters)
        except httpx.TimeoutException as error:
            raise PrometheusError(
                f"{self._url} did not answer in {_ANSWER_SECONDS:g} s; try a shorter --last"
            ) from error
        except httpx.HTTPError as error:
            raise PrometheusError(f"{self._url} cannot be reached ({error}); is --prometheus right?") from error
        other = f"{self._url} is not a Prometheus: it answered"
        try:
            body = answer.json()
        except ValueError as error:
            raise PrometheusError(f"{other} {answer.status_code} and no JSON; is --prometheus right?") from error
        body = body if isinstance(body, dict) else {}
        if body.get("status") == "success":
            return body["data"]
        if "error" not in body:
            raise PrometheusError(f"{other} {answer.text[:200]!r}; is --prometheus right?")
        refused = f"{self._url} refused: {body['error']}"
        raise PrometheusError(f"{refused}; does the query run on its page /graph? Prometheus 2.26 and newer can")


class ReadingError(Exception):
    """A dashboard cannot be drawn; the message names the panel, its query and the remedy."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series at the points of the window; NaN where it had no value."""

    name: str
    values: Values


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A panel with its data."""

    panel: Panel
    place: GridPos
    lines: tuple[Series, ...]
    """Series with data; those of a single value have one value each."""


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
    """Label and chosen value of each variable."""
    window: Window
    headings: tuple[tuple[str, GridPos], ...]
    panels: tuple[DrawnPanel, ...]
    marks: tuple[Marked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads dashboards from one Prometheus, for one time range."""

    prometheus: Prometheus
    window: Window
    now: float
    """Time of single values, in epoch seconds."""
    scrape_seconds: float
    given: Mapping[str, str]
    """Chosen values of variables."""

    def read(self, board: Board) -> DrawnBoard:
        """Run the queries of a dashboard; raise `ReadingError` if one fails."""
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

    def _lines(
        self, where: str, expression: str, form: str, values: Mapping[str, str], single: bool
    ) -> Iterator[Series]:
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
                yield Series(legend(form, series.labels), line)

    def _marked(self, board: Board, mark: Annotation, values: Mapping[str, str]) -> Marked:
        where = f"{board.title}: annotation {mark.name!r}"
        there = np.zeros(self.window.points, dtype=bool)
        for line in self._lines(where, mark.expression, "", values, single=False):
            there |= np.nan_to_num(line.values) != 0
        # Points in a row are one event, which lasts as long as its rate interval.
        begins = [at + 1 for at, (before, after) in enumerate(pairwise(there)) if after and not before]
        first = [0] if there[0] else []
        return Marked(mark.title, tuple(self.window.start + at * self.window.step for at in (*first, *begins)))
