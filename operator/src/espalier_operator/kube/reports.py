"""Report ConfigMaps as the store keeps them. Most changes of a report are figures only, which can wait.

A trainer, or anyone who may write in the namespace, decides on the size and rate of reports, and the operator has one
thread for all jobs. So a report of more than `MAX_REPORT_BYTES` is not read, a text is read once, and the reports of
each job are read at a limited rate: of those in between only the newest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from espalier_core.files.documents import DocumentError, loads
from espalier_core.k8s.resources import Raw
from espalier_core.types.job import REPORT_KEY
from espalier_core.types.measurements import Measurements, has_new_configuration
from espalier_core.types.report import MAX_REPORT_BYTES, Report
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.names import JobRef, owner_of
from espalier_operator.kube.reading import entries, mapping, time

READS_PER_SECOND: Final = 1.0
"""Long-run rate of reads of one job's reports. A leader without news reports every two to ten seconds."""
READS_AT_ONCE: Final = 8.0
"""Number of reports that are read without delay, for example when a leader ends one phase and begins the next."""
TOO_LARGE: Final = (
    f"its report is not read: data[{REPORT_KEY}] of its report ConfigMap has more than {MAX_REPORT_BYTES} bytes; "
    "let the trainer report fewer or shorter adaptations, figures and messages, or use the ready trainer's reporter"
)


class UnreadableReport(StrEnum):
    """Reason for which the newest report of a job is not read."""

    TOO_LARGE = "TooLarge"
    MALFORMED = "Malformed"
    TOO_FREQUENT = "TooFrequent"
    """It is read a little later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportObject:
    """A job's report as written by its leader."""

    owner: JobRef
    """The job whose report it claims to be."""
    text: str | None
    """Text of the report; None where there is none yet, or it is too large."""
    too_large: bool = False
    report: Report | None = None
    """The parsed report; None where there is none yet, or it cannot be read."""
    problem: str = ""
    """Reason for which it cannot be read."""
    changed_at: float
    """Time of the write, in epoch seconds of the API server's clock."""
    newer: ReportObject | None = None
    """A newer report that is not read yet."""
    reads_left: float = READS_AT_ONCE
    """Number of reports of the job that may be read without delay, as of `read_at`, in epoch seconds."""
    read_at: float = 0.0

    @property
    def news(self) -> tuple[object, ...]:
        """The part whose change needs a plan at once: equal for two reports that differ in figures only."""
        return (self.text, self.problem) if self.report is None else news_of(self.report)

    @property
    def unread(self) -> UnreadableReport | None:
        """Reason for which the newest report is not read; None where it is."""
        if self.newer is not None:
            return UnreadableReport.TOO_FREQUENT
        if self.too_large:
            return UnreadableReport.TOO_LARGE
        return UnreadableReport.MALFORMED if self.problem else None


def report_object(raw: Raw, received_at: float) -> ReportObject | None:
    """Return the unread report in a ConfigMap; None where it is not the report of the job that owns it.

    Without a time of the write from the API server, `received_at` is used.
    """
    owner = owner_of(raw)
    if owner is None or raw["metadata"]["name"] != names.report_name(owner.name):
        return None
    text = _text(raw)
    too_large = text is not None and _is_too_large(text)
    changed_at = _changed_at(raw, received_at)
    return ReportObject(owner=owner, text=None if too_large else text, too_large=too_large, changed_at=changed_at)


def read(found: ReportObject, known: ReportObject | None, now: float) -> ReportObject:
    """Return `found`, read at `now` (epoch seconds), or `known` of the same job with `found` as the newer one.

    The latter if the job has reported too often. An unchanged text is not read again.
    """
    if known is None:
        known = replace(found, text=None, too_large=False, read_at=now)
    elif (known.text, known.too_large) == (found.text, found.too_large):
        return replace(known, changed_at=found.changed_at, newer=None)
    left = min(READS_AT_ONCE, known.reads_left + max(0.0, now - known.read_at) * READS_PER_SECOND)
    if left < 1:
        return replace(known, newer=found)
    report, problem = (None, TOO_LARGE) if found.too_large else _parse(found.text)
    return replace(found, report=report, problem=problem, reads_left=left - 1, read_at=now)


def parse_report(raw: Raw) -> tuple[Report | None, str]:
    """Return the report in a ConfigMap, None where there is none yet or it cannot be read, and the reason for that."""
    text = _text(raw)
    return (None, TOO_LARGE) if text is not None and _is_too_large(text) else _parse(text)


def measures_more(before: ReportObject, after: ReportObject) -> bool:
    """Return whether a report has the first measurement of a configuration, by which policies may decide at once."""
    known = Measurements() if before.report is None else before.report.measurements
    return after.report is not None and has_new_configuration(known, after.report.measurements)


def news_of(report: Report | None) -> tuple[object, ...]:
    """Return the part of a report other than figures, by which a decision may follow at once."""
    if report is None:
        return ()
    grown = len(report.adaptations)
    return (report.incarnation, report.phase, report.reason, report.acknowledged_generation, grown)


def _text(raw: Raw) -> str | None:
    text = mapping(raw, "data").get(REPORT_KEY)
    return text if isinstance(text, str) else None


def _is_too_large(text: str) -> bool:
    return len(text) > MAX_REPORT_BYTES or (
        not text.isascii() and len(text.encode(errors="surrogatepass")) > MAX_REPORT_BYTES
    )


def _parse(text: str | None) -> tuple[Report | None, str]:
    try:
        return None if text is None else loads(text, Report, "its report ConfigMap"), ""
    except DocumentError as error:
        return None, str(error)


def _changed_at(raw: Raw, received_at: float) -> float:
    """Return the API server's time of the write: the clock of the leader's node may be wrong."""
    times = (time(entry, "time") for entry in entries(raw, "metadata", "managedFields"))
    return min(max((at for at in times if at is not None), default=received_at), received_at)
