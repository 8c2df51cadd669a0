"""Output on stdout: durations, counts and names in words, tables for people, JSON and YAML for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from espalier_cli.tables import console_of_stdout, fitting, lists_of
from espalier_core.base import number_of

_BYTES = ("memory", "ephemeral-storage")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
Row = Sequence[str]


def duration(seconds: float) -> str:
    """Return `4.2 s`, `75 s`, `12 min 5 s`, `5 h 10 min` or `3 d 4 h`; nothing below zero."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    return " ".join(f"{count} {unit}" for count, unit in _two_largest(seconds))


def short(seconds: float) -> str:
    """Return `4s`, `12m5s`, `5h10m` or `3d4h`: a duration for a column, without blanks."""
    return "".join(f"{count}{unit[0]}" for count, unit in _two_largest(max(0.0, seconds)))


def count(number: int, noun: str) -> str:
    """Return `1 GPU`, `2 GPUs`, `no GPUs`."""
    return number_of(number, noun) if number else f"no {noun}s"


def amount(resource: str, value: int) -> str:
    """Return an amount of a resource in the planner's units as text: `1.5` CPUs, `2Gi` of memory, `4,000` of others."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    return f"{value / 2**30:g}Gi" if resource in _BYTES else f"{value:,}"


def of_type(gpu_type: str | None) -> str:
    """Return ` of type X`, or '' if nodes have no types."""
    return f" of type {gpu_type}" if gpu_type else ""


def listed(parts: list[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _two_largest(seconds: float) -> list[tuple[int, str]]:
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or parts or unit == "s":
            parts.append((number, unit))
    return [part for part in parts[:2] if part[0]] or [(0, "s")]


def print_data(data: Any, form: str) -> None:
    """Print plain JSON types as `json` or `yaml`."""
    click.echo(json.dumps(data, indent=1) if form == "json" else _yaml(data), nl=form == "json")


def print_table(columns: Sequence[str], rows: Iterable[Row], *, right: Iterable[str] = ()) -> None:
    """Print a table with a heading per column; figures in the columns `right` are flush right.

    If it is too wide for the terminal, columns without information go first; then its rows are printed as lists.
    """
    rows, right, console = list(rows), tuple(right), console_of_stdout()
    shown = fitting(columns, rows, console.width, right=right)
    if shown is None:
        console.print(*lists_of(columns, rows), sep="\n", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in shown:
        # Only the last column, which has sentences, is wrapped on a narrow terminal.
        last, name = index == shown[-1], columns[index]
        table.add_column(name, justify="right" if name in right else "left", no_wrap=not last or name in right)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    with console.capture() as capture:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_heading(text: str) -> None:
    """Print a heading, bold on a terminal."""
    console_of_stdout().print(Text(text, style="bold"), soft_wrap=True)


def _yaml(data: Any) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()
