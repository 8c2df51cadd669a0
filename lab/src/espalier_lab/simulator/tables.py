"""Text and CSV files, plain or gzip, as typed rows; an error names the file, the line and the field."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from espalier_lab.simulator.errors import TraceError

MAX_SECONDS: Final = 1e9
"""About 32 years. Longer times in a trace are taken for mistakes, lest a simulation never end."""
LAST_SECOND: Final = 1e11
"""In the year 5138. A greater time since 1970 is not in seconds: milliseconds since then are more from 1973 on."""
UNIT: Final = "write all times in seconds: divide milliseconds by 1e3, microseconds by 1e6, nanoseconds by 1e9"
"""The remedy for a time that is too great."""
MIN_SECONDS: Final = 1e-3
"""Jobs that take less have ended at once: how much longer they took than alone would be no number."""
_GZIP: Final = b"\x1f\x8b"
_DELIMITERS: Final = ",;\t"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of a table."""

    path: Path
    line: int
    cells: Mapping[str, str]
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the file calls a field, where it is not by its name."""

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

    def seconds(self, field: str) -> float:
        """Return a number of seconds, from 0 to `MAX_SECONDS`; `TraceError` otherwise."""
        value = self.number(field)
        if value > MAX_SECONDS:
            raise self.fault(
                field,
                f"is {self.text(field)!r}; it must be a number of at least 0, and at most {MAX_SECONDS:g}; {UNIT}",
            )
        return value

    def count(self, field: str) -> int:
        """Return a whole number of at least 1; `TraceError` otherwise."""
        value = self.number(field, above=0.0)
        if value != int(value):
            raise self.fault(field, f"is {self.text(field)!r}; it must be a whole number")
        return int(value)

    def place(self, field: str) -> str:
        """Return file, line and field, as errors name them."""
        return f"{self.path}:{self.line}: {self.columns.get(field, field)}"

    def fault(self, field: str, problem: str) -> TraceError:
        """Return the error of a field."""
        return TraceError(f"{self.place(field)}: {problem}")


def text_of(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark, plain or gzip. Raises `TraceError`."""
    try:
        found = path.read_bytes()
        return (gzip.decompress(found) if found.startswith(_GZIP) else found).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: cannot be read: it is not UTF-8 text ({error.reason}); convert it") from error


def rows(
    path: Path,
    fields: Sequence[str],
    aliases: Mapping[str, Sequence[str]] | None = None,
    optional: Sequence[str] = (),
) -> Iterator[TableRow]:
    """Yield the lines of a CSV file that has a header with `fields`, without blank ones. Raises `TraceError`.

    Columns may have any order and case, and there may be more of them; commas, semicolons or tabs separate them.
    `aliases` are what else a field may be called; `optional` fields need no column.
    """
    text = text_of(path)
    header = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(reader, [])]
        if not any(names):
            raise TraceError(f"{path}:1: has no header; it must name {', '.join(fields)}")
        found = {name.casefold(): place for place, name in reversed(list(enumerate(names)))}
        places: dict[str, int] = {}
        for wanted in (*fields, *optional):
            known = (wanted, *(aliases or {}).get(wanted, ()))
            place = next((found[name] for name in known if name in found), None)
            if place is None and wanted in optional:
                continue
            if place is None:
                other = f" (or {', '.join(known[1:])})" if known[1:] else ""
                raise TraceError(f"{path}:1: {wanted}{other}: no such column; the header must name {', '.join(fields)}")
            if sum(name.casefold() == names[place].casefold() for name in names) > 1:
                raise TraceError(f"{path}:1: {names[place]}: two columns are called so; remove or rename one")
            places[wanted] = place
        columns = {wanted: names[place] for wanted, place in places.items()}
        for cells in reader:
            if any(map(str.strip, cells)):
                values = {wanted: cells[place] for wanted, place in places.items() if place < len(cells)}
                yield TableRow(path, reader.line_num, values, columns)
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: cannot be read: {error}") from error
