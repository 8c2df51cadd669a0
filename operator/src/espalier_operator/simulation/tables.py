"""CSV files as typed rows; an error names the file, the line and the field."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier_operator.simulation.errors import TraceError


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a CSV file with a header."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, field: str) -> str:
        """Return what the field says; `TraceError` if it is empty."""
        value = (self.cells.get(field) or "").strip()
        if not value:
            raise self.fault(field, "is missing")
        return value

    def number(self, field: str, *, above: float | None = None) -> float:
        """Return a finite number of at least 0, or greater than `above`; `TraceError` otherwise."""
        text = self.text(field)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        low = 0.0 if above is None else above
        if not math.isfinite(value) or value < low or (above is not None and value == above):
            bound = "of at least 0" if above is None else f"greater than {above:g}"
            raise self.fault(field, f"is {text!r}; it must be a number {bound}")
        return value

    def count(self, field: str) -> int:
        """Return a whole number of at least 1; `TraceError` otherwise."""
        value = self.number(field, above=0.0)
        if value != int(value):
            raise self.fault(field, f"is {self.text(field)!r}; it must be a whole number")
        return int(value)

    def fault(self, field: str, problem: str) -> TraceError:
        """Return the error of a field."""
        return TraceError(f"{self.path}:{self.line}: {field}: {problem}")


def rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """Yield the lines of a CSV file that has a header with `fields`. Raises `TraceError`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [field for field in fields if field not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}:1: {missing[0]}: no such column; the header must name {', '.join(fields)}")
            for cells in reader:
                yield Row(path, reader.line_num, cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from error
