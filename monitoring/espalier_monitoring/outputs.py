"""All files that are written, by their path in the project."""

from __future__ import annotations

from typing import Final

from espalier_monitoring import agent, fleet, job
from espalier_monitoring.alerts import rules_text
from espalier_monitoring.boards import board_text
from espalier_monitoring.page import metrics_page

DASHBOARDS: Final = "charts/espalier/dashboards"
RULES: Final = "charts/espalier/rules/espalier.yaml"
METRICS_PAGE: Final = "docs/metrics.md"


BOARDS: Final = {"fleet": fleet.BOARD, "job": job.BOARD, "agent": agent.BOARD}
"""The dashboards by the name of their file."""


def outputs() -> dict[str, str]:
    """Return the text of each file."""
    boards = {f"{DASHBOARDS}/{name}.json": board_text(board) for name, board in BOARDS.items()}
    return {**boards, RULES: rules_text(), METRICS_PAGE: metrics_page()}
