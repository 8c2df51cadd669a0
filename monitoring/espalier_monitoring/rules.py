"""The alerts as Prometheus reads them."""

from __future__ import annotations

import json
from typing import Final

from espalier_monitoring.alerts import ALERTS, Alert

RUNBOOKS: Final = "docs/alerts.md"
"""Where it says what to do; a heading for each alert, under the alert's name."""

_HEAD: Final = "# Written by `make dashboards` from monitoring/espalier_monitoring/alerts.py; change them there.\n"


def rules_text() -> str:
    """Return the rule file, in YAML whose texts are written as JSON: nothing in them is taken for YAML."""
    lines = [_HEAD + "groups:", "  - name: espalier", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_text(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity.value}",
            "        annotations:",
            *(f"          {name}: {_text(value)}" for name, value in says(alert).items()),
        ]
    return "\n".join(lines) + "\n"


def says(alert: Alert) -> dict[str, str]:
    """Return what an alert says."""
    return {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{RUNBOOKS}#{anchor(alert.name)}",
    }


def anchor(heading: str) -> str:
    """Return the anchor that a page gives to a heading of one word."""
    return heading.lower()


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
