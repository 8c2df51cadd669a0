"""Text and CSV files, plain or gzip, as typed rows; an error names the file, the line and the field."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from espalier_lab.simulator.columns import Header, Selection, is_product
from espalier_lab.simulator.errors import TraceError

MAX_SECONDS: Final = 1e9
"""Limit on times in a trace, about 32 years. Longer ones are considered mistakes, so that a simulation ends."""
LAST_SECOND: Final = 1e11
"""Limit on a time since 1970, in the year 5138. Greater ones are not in seconds: milliseconds exceed it from 1973."""
UNIT: Final = "write all times in seconds: divide milliseconds by 1e3, microseconds by 1e6, nanoseconds by 1e9"
"""The remedy for a time that is too great."""
MIN_SECONDS: Final = 1e-3
"""Minimum duration of a job: for shorter ones, the ratio to their time alone would have no meaning."""
_GZIP: Final = b"\x1f\x8b"
_DELIMITERS: Final = ",;\t|"
_COMMENT: Final = re.compile(r"\s*(#|;(\s|$)|$)")
"""Comment lines before the table; in the Standard Workload Format they begin with a semicolon and a blank."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of a table."""

    path: Path
    line: int | str
    """Number of the line; in JSON, the name of the job."""
    cells: Mapping[str, str]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of fields in the file, if they differ."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Values of the columns for the selection of lines."""

    def text(self, field: str) -> str:
        """Return the text of the field; raise `TraceError` if it is empty."""
        value = (self.cells.get(field) or "").strip()
        if not value:
            raise self.fault(field, "is missing")
        return value

    def number(self, field: str, *, above: float | None = None) -> float:
        """Return a finite number of at least 0, or greater than `above`; raise `TraceError` otherwise."""
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
        """Return a number of seconds, from 0 to `MAX_SECONDS`; raise `TraceError` otherwise."""
        value = self.number(field)
        if value > MAX_SECONDS:
            raise self.fault(
                field,
                f"is {self.text(field)!r}; it must be a number of at least 0, and at most {MAX_SECONDS:g}; {UNIT}",
            )
        return value

    def count(self, field: str) -> int:
        """Return a whole number of at least 1; raise `TraceError` otherwise."""
        value = self.number(field, above=0.0)
        if value != int(value):
            raise self.fault(field, f"is {self.text(field)!r}; it must be a whole number")
        return int(value)

    def place(self, field: str) -> str:
        """Return file, line and field for an error."""
        return f"{self.path}:{self.line}: {self.columns.get(field, field)}"

    def fault(self, field: str, problem: str) -> TraceError:
        """Return the error of a field."""
        return TraceError(f"{self.place(field)}: {problem}")


def text_of(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark, plain or gzip. Raise `TraceError`."""
    try:
        found = path.read_bytes()
        return (gzip.decompress(found) if found.startswith(_GZIP) else found).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: cannot be read: it is not UTF-8 text ({error.reason}); convert it") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a table."""

    required: Sequence[str]
    optional: Sequence[str] = ()
    """Fields without a required column."""
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Alternative names of their columns."""
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Fields that together replace a required one."""
    moments: Sequence[str] = ()
    """Fields in one unit: if the column of one is scaled, the columns of the others must be named, too."""

    @property
    def names(self) -> list[str]:
        """Names of all fields."""
        return [*self.required, *self.optional, *(each for others in self.instead.values() for each in others)]

    def columns(self, header: Header, named: Mapping[str, str] | None) -> dict[str, str]:
        """Return the column of each field: the one that is `named`, else one of its names. Raise `TraceError`."""
        known = {wanted: (wanted, *self.aliases.get(wanted, ())) for wanted in self.names}
        found = {
            wanted: header.names[place]
            for wanted, names in known.items()
            if (place := next((at for at in map(header.place, names) if at is not None), None)) is not None
        } | dict(named or {})
        explicit, wanted = named or {}, list(self.required)
        for name, others in self.instead.items():
            if explicit.keys() & set(others) or (name not in found and found.keys() >= set(others)):
                place = wanted.index(name)
                wanted[place : place + 1] = others
        for name in wanted:
            if name not in found:
                remedy = f"the header must name {', '.join(self.required)}"
                raise header.missing(name, remedy if named is None else f"say which it is with --columns {name}=COLUMN")
        read = {name: found[name] for name in (*wanted, *self.optional) if name in found}
        scaled = [f"{name}={explicit[name]}" for name in self.moments if is_product(explicit.get(name, ""))]
        for name in self.moments:
            if scaled and name in read and name not in explicit:
                where = f"{header.path}:{header.line}: {read[name]}"
                raise TraceError(f"{where}: is not scaled, but {scaled[0]} is: name {name}, too, with --columns")
        return read


def rows(path: Path, fields: Fields, selection: Selection | None = None) -> Iterator[TableRow]:
    """Yield the lines of a CSV file that has a header with `fields`, without blank ones. Raise `TraceError`.

    Columns may have any order and case, and there may be more of them; commas, semicolons, tabs, bars or blanks
    separate them. Lines before the header that begin with `#` or `; ` are comments. A `selection` may name other
    columns, and more that are read.
    """
    text, selected = text_of(path), selection or Selection()
    if text.lstrip()[:1] in ("[", "{"):
        raise TraceError(f"{path}: is JSON, not a table; if it is cluster_job_log of Philly, add --format philly")
    lines = text.split("\n")
    before = next((number for number, line in enumerate(lines) if not _COMMENT.match(line)), 0)
    delimiter = _delimiter(lines[before])
    body = io.StringIO("\n".join(lines[before:]), newline="")
    reader = csv.reader(body, delimiter=delimiter, skipinitialspace=delimiter == " ")
    try:
        first = next(reader, [])
        if not any(map(str.strip, first)):
            raise TraceError(f"{path}:{before + 1}: has no header; it must name {', '.join(fields.required)}")
        names = [name.strip() for name in first]
        if not selected.has_header:
            names = [f"#{place}" for place in range(1, len(first) + 1)]
        header = Header(path, before + 1, names)
        columns = fields.columns(header, None if selection is None else selected.columns)
        read = {name: header.reader(column) for name, column in columns.items()}
        read_others = {name: header.reader(name) for name in selected.keep}
        for cells in reader if selected.has_header else chain([first], reader):
            if any(map(str.strip, cells)):
                values = {name: reading(cells) for name, reading in read.items()}
                others = {name: reading(cells).strip() for name, reading in read_others.items()}
                yield TableRow(path, reader.line_num + before, values, columns, others)
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num + before}: cannot be read: {error}") from error


def _delimiter(line: str) -> str:
    """Return the separator of the columns: a list inside a column may contain commas if bars or tabs separate."""
    if listed := next((each for each in "|\t" if line.count(each) > 1), ""):
        return listed
    return max(_DELIMITERS, key=line.count) if any(each in line for each in _DELIMITERS) else " "
