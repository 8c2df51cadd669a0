"""The selection of a table: `--columns` names the column of a field, `--keep` the lines that count."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final

from espalier_lab.simulator.errors import TraceError

_NUMBERED: Final = re.compile(r"(?:^|[*/])\s*#[1-9]\d*\s*(?:$|[*/])")
_SHOWN: Final = 20
"""Number of columns and values that an error names."""

Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class Selection:
    """The columns and lines of a table that are read."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """By field: a column, or a product of columns and numbers, such as `nodes*gpus_per_node` or `submitted_ms/1000`."""
    keep: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By column: patterns, one of which its value must match."""

    @classmethod
    def of(cls, columns: str, keep: Sequence[str], fields: Sequence[str]) -> Selection:
        """Read `FIELD=COLUMN,...` and several `COLUMN=VALUE,...`. Raise `TraceError`."""
        named = dict(_pair("--columns", each) for each in columns.split(",") if each.strip())
        for name in named.keys() - set(fields):
            raise TraceError(f"--columns {columns}: {name} is not a field of a trace; choose from {', '.join(fields)}")
        kept = (_pair("--keep", each) for each in keep)
        return cls(named, {name: [value.strip() for value in values.split(",")] for name, values in kept})

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns; false for columns named `#1`, `#2`."""
        return not any(_NUMBERED.search(each) for each in (*self.columns.values(), *self.keep))

    def keeps(self, values: Mapping[str, str]) -> bool:
        """Return whether a line counts, by its values in the columns of `keep`."""
        return all(
            any(fnmatchcase(values.get(name, "").casefold(), pattern.casefold()) for pattern in patterns)
            for name, patterns in self.keep.items()
        )

    def nothing_kept(self, path: Path, seen: Mapping[str, set[str]]) -> TraceError:
        """Return the error if no line counts, with the values in the columns."""
        told = "; ".join(
            f"{name} is never {' or '.join(patterns)}: it is {_some(sorted(seen.get(name, ())), 'or')}"
            for name, patterns in self.keep.items()
        )
        return TraceError(f"{path}: --keep leaves no line: {told}")


@dataclass(frozen=True, slots=True)
class Header:
    """The names of a table's columns, in order."""

    path: Path
    line: int
    names: Sequence[str]

    def place(self, name: str) -> int | None:
        """Return the index of a column, ignoring case. Raise `TraceError` if there are two."""
        places = [place for place, each in enumerate(self.names) if each.casefold() == name.casefold()]
        if len(places) > 1:
            found = self.names[places[0]]
            raise TraceError(f"{self.path}:{self.line}: {found}: two columns have this name; remove or rename one")
        return places[0] if places else None

    def missing(self, name: str, remedy: str) -> TraceError:
        """Return the error for a missing column."""
        has = _some([each for each in self.names if each], "and")
        return TraceError(f"{self.path}:{self.line}: {name}: no such column; {remedy}. There are {has}")

    def reader(self, wanted: str) -> Callable[[Cells], str]:
        """Return a reader of a column, or a product of columns and numbers, from a line. Raise `TraceError`.

        If a factor is not a number, its text is the result, for an error that names it.
        """
        place = self.place(wanted)
        if place is not None:
            return lambda cells: cells[place] if place < len(cells) else ""
        factors: list[tuple[bool, Callable[[Cells], str]]] = []
        for sign, factor in re.findall(r"(^|[*/])([^*/]*)", wanted):
            name = factor.strip()
            if self.place(name) is not None:
                factors.append((sign == "/", self.reader(name)))
            elif _number(name) is not None:
                factors.append((sign == "/", partial(_constant, name)))
            else:
                raise self.missing(name or wanted, "--columns takes columns of the file, and numbers")

        def product(cells: Cells) -> str:
            result = 1.0
            for divides, text in ((divides, read(cells)) for divides, read in factors):
                value = _number(text)
                if value is None or (divides and not value):
                    return text
                result = result / value if divides else result * value
            return repr(result)

        return product


def is_product(column: str) -> bool:
    """Return whether it is more than a single column."""
    return "*" in column or "/" in column


def _constant(text: str, cells: Cells) -> str:
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise TraceError(f"{option}: {text!r} must be NAME=VALUE")
    return name, value


def _some(values: Sequence[str], last: str) -> str:
    shown = [*values[:_SHOWN], f"{len(values) - _SHOWN} more"] if len(values) > _SHOWN else list(values)
    return f" {last} ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown) or "nothing"
