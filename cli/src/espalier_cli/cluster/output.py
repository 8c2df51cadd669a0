"""Data on stdout: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from espalier_cli.tables import console_of_stdout

Row = Sequence[str]


def print_data(data: Any, form: str) -> None:
    """Print plain JSON types as `json` or `yaml`."""
    click.echo(json.dumps(data, indent=1) if form == "json" else _yaml(data), nl=form == "json")


def print_table(columns: Sequence[str], rows: Iterable[Row], *, right: Iterable[str] = ()) -> None:
    """Print a table with a heading a column; `right` are those whose figures are flush right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        # Only the last column, the words, is wrapped on a narrow terminal.
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name != columns[-1])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = console_of_stdout()
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
