"""Shared parts of all dashboards: PromQL, a selectable data source, panels laid out in rows, and the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    VariableRefresh,
    VariableSort,
)

Query = tuple[str, str]
"""PromQL and its legend, which names labels as `{{label}}`."""
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the user selects at the top."""

_OTHERS: Final = (
    dashboard.DashboardLink("Espalier")
    .type(DashboardLinkType.DASHBOARDS)
    .tags(["espalier"])
    .as_dropdown(False)
    .keep_time(True)
)
"""Links at the top to the other dashboards."""

_COLUMNS: Final = 24
_FEW: Final = 5.0
"""Fill opacity under a line, in percent; stacked series are filled."""
_STACKED: Final = 60.0


def risen(metric: str, selector: str, window: str) -> str:
    """Return PromQL for the rise of a counter in `window`, for each of its series.

    `increase` alone misses the first event of a series, which is created at 1, and the first event of a rare kind is
    often the only one. A series counts as new if it did not exist in the hour before: a shorter gap in the scrapes does
    not make it new. An exporter that removes a series must bring it back at 0, before its next event.
    """
    series = f"{metric}{selector}"
    new = f"({series} unless max_over_time({series}[1h] offset {window}))"
    return f"({new} or increase({series}[{window}]))"


def apart(aggregate: str, labels: str, series: str, legend: str = "") -> Query:
    """Return a query that aggregates `series` by `labels`, and its legend: `legend`, or the labels."""
    by = f" by ({labels})" if labels else ""
    return f"{aggregate}{by} ({series})", legend or " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))


def named(series: str, label: str, name: str) -> str:
    """Return `series` with `name` in place of an empty `label`: an empty legend cannot be read."""
    return f'label_replace({series}, "{label}", "{name}", "{label}", "")'


def rate(metric: str, labels: str = "", legend: str = "") -> Query:
    """Return a query for the rate of a counter by `labels`."""
    return apart("sum", labels, f"rate({metric}[$__rate_interval])", legend)


def rises(metric: str, labels: str = "", legend: str = "") -> Query:
    """Return a query for the rise of a counter of rare events, by `labels`."""
    return apart("sum", labels, risen(metric, "", "$__rate_interval"), legend)


def quantiles(metric: str, by: str = "", selector: str = "", *, rare: bool = False) -> tuple[Query, ...]:
    """Return queries and legends for the median and 99th percentile of a histogram, separately by the label `by`.

    `rare` is for rare events, so that the first one counts, too.
    """
    buckets = f"{metric}_bucket"
    rise = risen(buckets, selector, "$__rate_interval") if rare else f"rate({buckets}{selector}[$__rate_interval])"
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"histogram_quantile({share}, sum by ({labels}) ({rise}))", name)
        for share, name in ((0.5, f"p50{legend}"), (0.99, f"p99{legend}"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    about: str
    """The content of the panel, and how to read it."""
    unit: str = "short"
    """Grafana's name of the unit: `s`, `short`, `percentunit`, `ops`, `reqps`."""
    queries: tuple[Query, ...]
    stacked: bool = False
    single: bool = False
    """Whether to show the latest value as a number instead of a line."""
    names: bool = False
    """Whether a single value shows its legend instead of the value."""
    least: float | None = 0.0
    """Minimum of the axis; None if values can be negative."""
    decimals: int | None = None
    width: int = 12
    height: int = 8


class Row:
    """A heading with panels below it, from left to right."""

    def __init__(self, title: str, *panels: Panel) -> None:
        self.title, self.panels = title, panels


@dataclass(frozen=True, slots=True)
class Annotation:
    """An annotation: a mark in all panels wherever its query returns something."""

    name: str
    title: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str, str]] = ()
    """Name, label and query of each variable."""
    marks: Sequence[Annotation] = ()


def places(board: Board) -> Iterator[tuple[Row | Panel, GridPos]]:
    """Yield the headings and panels in their order, each with its place in Grafana's grid."""
    top = 0
    for row in board.rows:
        yield row, GridPos(x=0, y=top, w=_COLUMNS, h=1)
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            yield panel, GridPos(x=left, y=top, w=panel.width, h=panel.height)
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def board_text(board: Board) -> str:
    """Return a dashboard as the JSON that Grafana reads."""
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["espalier"])
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_OTHERS)
        .with_variable(source)
    )
    for name, label, query in board.variables:
        made.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    for mark in board.marks:
        made.annotation(_MarkBuilder(mark))
    for number, (item, place) in enumerate(places(board), 1):
        if isinstance(item, Row):
            made.with_row(dashboard.Row(item.title).id(number).grid_pos(place))
        else:
            made.with_panel(_panel(item).id(number).grid_pos(place))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


class _TitledAnnotation(AnnotationQuery):
    """An annotation with a title, which the SDK does not support."""

    title = ""

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title}


class _MarkBuilder(dashboard.AnnotationQuery):
    def __init__(self, mark: Annotation) -> None:
        super().__init__()
        self._internal = _TitledAnnotation()
        self._internal.title = mark.title
        self.name(mark.name).datasource(SOURCE).enable(True).icon_color("purple").expr(mark.expression)


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made = _single(panel) if panel.single else _lines(panel)
    made.title(panel.title).description(panel.about).unit(panel.unit).datasource(SOURCE)
    if panel.least is not None:
        made.min(panel.least)
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    for number, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
        made.with_target((query.instant() if panel.single else query.range()).ref_id(chr(ord("A") + number)))
    return made


def _single(panel: Panel) -> stat.Panel:
    mode = BigValueTextMode.NAME if panel.names else BigValueTextMode.AUTO
    latest = common.ReduceDataOptions().calcs(["lastNotNull"])
    return stat.Panel().graph_mode(BigValueGraphMode.NONE).text_mode(mode).reduce_options(latest).no_value("–")


def _lines(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    made = timeseries.Panel().legend(legend).tooltip(tooltip).fill_opacity(_STACKED if panel.stacked else _FEW)
    return made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)) if panel.stacked else made
