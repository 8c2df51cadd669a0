"""What all dashboards share: a selectable data source, the layout of panels in rows, and the JSON output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    VariableRefresh,
    VariableSort,
)

from espalier_monitoring.promql import Query

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    about: str
    """What it shows and how to read it."""
    unit: str = "short"
    """Grafana's name of the unit: `s`, `short`, `percentunit`, `ops`, `reqps`."""
    queries: tuple[Query, ...]
    stacked: bool = False
    single: bool = False
    """Show the latest value as a number instead of a line."""
    names: bool = False
    """For a single value: show its legend instead of the value."""
    least: float | None = 0.0
    """Minimum of the axis; None if values can be negative."""
    decimals: int | None = None
    width: int = 12
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading with panels below it, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str, str]] = ()
    """Name, label and query of each."""
    annotations: Sequence[dashboard.AnnotationQuery] = field(default_factory=tuple)


def build(board: Board) -> Dashboard:
    """Return the dashboard. Panels get numbers and positions in their order."""
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
    for annotation in board.annotations:
        made.annotation(annotation)
    number, top = 0, 0
    for row in board.rows:
        number += 1
        made.with_row(dashboard.Row(row.title).id(number).grid_pos(GridPos(x=0, y=top, w=_COLUMNS, h=1)))
        top += 1
        left, tallest = 0, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            number += 1
            place = GridPos(x=left, y=top, w=panel.width, h=panel.height)
            made.with_panel(_panel(panel).id(number).grid_pos(place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return made.build()


def board_text(board: Dashboard) -> str:
    """Return a dashboard as the JSON that Grafana reads."""
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


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
