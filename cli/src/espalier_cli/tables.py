"""Tables that break no words: where a table is too wide for the terminal, its rows follow each other as lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_FRAME = 3
"""Characters of a column's frame and padding; the table has one more."""


def table_for(
    width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False
) -> RenderableType:
    """Return `rows` under `columns` for a terminal of `width` characters; `right` aligns all columns but the first."""
    least = [max(map(_longest_word, cells)) for cells in zip(columns, *rows, strict=True)]
    if sum(least) + _FRAME * len(columns) + 1 > width:
        return Group(*_lists(columns, rows))
    table = Table(title_justify="left", header_style="bold")
    for index, (column, longest) in enumerate(zip(columns, least, strict=True)):
        table.add_column(column, min_width=longest, justify="right" if right and index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def turned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with rows and columns exchanged; the first column holds the rows' names."""
    names = [columns[0], *(row[0] for row in rows)]
    return names, [list(cells) for cells in zip(columns[1:], *(row[1:] for row in rows), strict=True)]


def _lists(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    indent = max(map(len, columns[1:]), default=0)
    for row in rows:
        yield Text(row[0], style="bold")
        yield from (
            Text(f"  {column:<{indent}}  {cell}") for column, cell in zip(columns[1:], row[1:], strict=True) if cell
        )


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
