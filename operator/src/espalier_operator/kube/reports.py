"""Report ConfigMaps as the store keeps them: most of what leaders say are figures, and those have time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from espalier_api.job import KIND
from espalier_api.signal import REPORT_KEY
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.resources import Raw, controller_of

_NEWS: Final = ("incarnation", "phase", "reason", "acknowledgedGeneration")
"""Fields of a report that a decision may follow from at once; `adaptations` are counted besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportObject:
    """A job's report as its leader wrote it; read as a whole when it is needed."""

    job_uid: str
    text: str | None
    news: Any = field(init=False)
    """What of it is worth a plan at once: equal to that of a report that differs in figures alone."""

    def __post_init__(self) -> None:
        """Take the news out of the text."""
        object.__setattr__(self, "news", _news(self.text))


def parse_report_object(raw: Raw) -> ReportObject | None:
    """Return the report in a ConfigMap; None where it is not the one of the job that owns it."""
    job = controller_of(raw)
    if job.get("kind") != KIND or raw["metadata"]["name"] != names.report_name(job["name"]):
        return None
    return ReportObject(job_uid=job["uid"], text=(raw.get("data") or {}).get(REPORT_KEY))


def _news(text: str | None) -> Any:
    try:
        report = json.loads(text or "")
    except (ValueError, RecursionError):
        return text
    if not isinstance(report, dict):
        return text
    adaptations = report.get("adaptations")
    return [*(report.get(name) for name in _NEWS), len(adaptations) if isinstance(adaptations, list) else 0]
