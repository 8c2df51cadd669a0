"""What scheduler and leader of a job tell each other by files: allocations are written, reports are read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from espalier_core.types.allocation import Allocation, AllocationDocument
from espalier_core.types.measurements import Measurements, merged
from espalier_core.types.report import Report
from espalier_operator.local.files import AllocationFile, ReportFile
from espalier_operator.local.layout import ALLOCATION_FILE, REPORT_FILE


class Dialogue:
    """The allocation that was written last, and the last report."""

    def __init__(self, directory: Path, names: tuple[str, ...], warn: Callable[[str, str], None]) -> None:
        """Nothing is written or read yet. `names` are those of the job in reports; `warn(reason, message)`."""
        self._allocations = AllocationFile(directory / ALLOCATION_FILE)
        self._reports = ReportFile(directory / REPORT_FILE, names)
        self._warn = warn
        self.allocation = Allocation()
        self._granted_at = 0.0
        self.acknowledged = 0
        """The generation that the leader has acknowledged."""
        self.report: Report | None = None
        self.reported_at = 0.0
        self.measurements = Measurements()
        """What its trainers measured, over all attempts."""
        self.is_fresh = False
        """Whether `report` is of the leader that was started last."""
        self._earlier: str | None = None
        """The name of the leader in the report before it."""
        self._complaint = ""

    def resume(self) -> None:
        """Read what an earlier run's leader reported last."""
        self.report = self._reports.poll()
        if self.report is not None:
            self.measurements = self.report.measurements

    def leader_starts(self) -> None:
        """Take the last report for that of an earlier leader."""
        self._earlier, self.is_fresh = None if self.report is None else self.report.incarnation, False

    def grant(self, allocation: Allocation) -> None:
        """Begin to wait for the acknowledgement of an allocation that is to be written."""
        self._granted_at, self.allocation = time.monotonic(), allocation

    def write(self, document: AllocationDocument) -> None:
        """Write the allocation; if the disk is full, it is written later."""
        trouble = self._allocations.write(document)
        if trouble is not None:
            self._warn("AllocationNotWritten", trouble)

    def retry(self) -> None:
        """Write the document that could not be written before."""
        self._allocations.retry()

    def read(self, now: float, *, runs: bool) -> float | None:
        """Read the leader's report, which `runs` or has just ended.

        Return after how many wall seconds it has acknowledged the allocation, if it does so now.
        """
        report = self._reports.poll()
        if self._reports.complaint != self._complaint:
            self._complaint = self._reports.complaint
            if self._complaint:
                self._warn("UnreadableReport", f"{self._complaint}; continuing without it")
        if report is None:
            return None
        self.report, self.reported_at = report, now
        self.measurements = merged(self.measurements, report.measurements)
        self.is_fresh = runs and report.incarnation != self._earlier
        generation = self.allocation.generation
        acknowledged = min(report.acknowledged_generation, generation)
        if not self.is_fresh or acknowledged <= self.acknowledged:
            return None
        self.acknowledged = acknowledged
        return time.monotonic() - self._granted_at if acknowledged == generation else None
