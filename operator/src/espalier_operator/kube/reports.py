"""Report ConfigMaps as the store keeps them. Most changes of a report are figures only, and these can wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from espalier_api.documents import DocumentError, loads
from espalier_api.report import Report
from espalier_api.signal import REPORT_KEY
from espalier_kube.resources import Raw
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.owners import JobRef, owner_of
from espalier_operator.kube.reading import entries, time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportObject:
    """A job's report as its leader wrote it."""

    owner: JobRef
    """The job whose report it claims to be."""
    text: str | None
    report: Report | None = None
    """None where there is none yet, or one that cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    changed_at: float
    """When it was written, epoch seconds of the API server's clock."""

    @property
    def news(self) -> Any:
        """The part whose change needs a plan at once: equal for two reports that differ in figures only."""
        return self.text if self.report is None else news_of(self.report)


def parse_report_object(raw: Raw, received_at: float) -> ReportObject | None:
    """Return the report in a ConfigMap; None where it is not the one of the job that owns it.

    Where the API server does not say when it was written, it counts as written when it was received.
    """
    owner = owner_of(raw)
    if owner is None or raw["metadata"]["name"] != names.report_name(owner.name):
        return None
    report, problem = parse_report(raw)
    text = (raw.get("data") or {}).get(REPORT_KEY)
    return ReportObject(
        owner=owner, text=text, report=report, problem=problem, changed_at=_changed_at(raw, received_at)
    )


def _changed_at(raw: Raw, received_at: float) -> float:
    """The clock of the leader's node may be wrong, and what the report says of it as well."""
    times = (time(entry, "time") for entry in entries(raw, "metadata", "managedFields"))
    return min(max((at for at in times if at is not None), default=received_at), received_at)


def parse_report(raw: Raw) -> tuple[Report | None, str]:
    """Return the report that a ConfigMap holds, None where there is none yet, or one that cannot be read, and why."""
    text = (raw.get("data") or {}).get(REPORT_KEY)
    try:
        return None if text is None else loads(text, Report, "its report ConfigMap"), ""
    except DocumentError as error:
        return None, str(error)


def news_of(report: Report | None) -> tuple[object, ...]:
    """Return the part of a report that is not figures: a decision may follow from it at once."""
    if report is None:
        return ()
    grown = len(report.adaptations)
    return (report.incarnation, report.phase, report.reason, report.acknowledged_generation, grown)
