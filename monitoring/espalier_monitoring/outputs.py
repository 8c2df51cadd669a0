"""All files that are written, by their path in the project."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from espalier_monitoring import agent, fleet, job
from espalier_monitoring.alerts import rules_text
from espalier_monitoring.boards import board_text
from espalier_monitoring.page import metrics_page

DASHBOARDS: Final = "charts/espalier/dashboards"
RULES: Final = "charts/espalier/rules/espalier.yaml"
METRICS_PAGE: Final = "docs/metrics.md"


def dashboards() -> dict[str, Dashboard]:
    """Return the dashboards by the name of their file."""
    return {"fleet": fleet.dashboard(), "job": job.dashboard(), "agent": agent.dashboard()}


def outputs() -> dict[str, str]:
    """Return the text of each file."""
    boards = {f"{DASHBOARDS}/{name}.json": board_text(board) for name, board in dashboards().items()}
    return {**boards, RULES: rules_text(), METRICS_PAGE: metrics_page()}
