"""Tables that never break words: if a table is too wide for the terminal, its rows are printed as lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

_FRAME = 3
"""Width of a column's frame and padding, in characters; the table has one more."""


_GAP = 2
"""Characters between the columns of a table without a frame."""
_NOTHING = ("", "-", "0", "0.0")


_WIDE = 100_000
"""Width in columns if stdout is not a terminal: nothing is wrapped or cut for `grep` and `awk`."""


def plain_console(width: int | None = None) -> Console:
    """Return a console that prints text unchanged: names and messages may contain brackets, which are not markup."""
    return Console(width=width, highlight=False, markup=False)


def console_of_stdout() -> Console:
    """Return a plain console as wide as the terminal, or very wide if stdout is not one."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=_WIDE)


def table_for(
    width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> RenderableType:
    """Return `rows` under `columns` for a terminal of `width` characters; the columns `right` are flush right."""
    least = [max(map(_longest_word, cells)) for cells in zip(columns, *rows, strict=True)]
    if sum(least) + _FRAME * len(columns) + 1 > width:
        return Group(*lists_of(columns, rows))
    table = Table(title_justify="left", header_style="bold")
    widths = _widths(least, [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)], width)
    for column, chosen in zip(columns, widths, strict=True):
        table.add_column(column, width=chosen, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def turned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with rows and columns exchanged; the first column holds the rows' names."""
    names = [columns[0], *(row[0] for row in rows)]
    return names, [list(cells) for cells in zip(columns[1:], *(row[1:] for row in rows), strict=True)]


def _widths(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Return the columns' widths: the maximum that fits into `width` characters, taken from the widest first."""
    found, room = list(most), width - _FRAME * len(most) - 1
    while sum(found) > room:
        spare = [have - need for have, need in zip(found, least, strict=True)]
        found[spare.index(max(spare))] -= 1
    return found


def fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, right: Collection[str] = ()
) -> list[int] | None:
    """Return the numbers of the columns that a table without a frame shows in `width` characters.

    Columns without information in any row go first. None if the others do not fit: figures and names are never cut.
    Only the last column is wrapped, unless it is in `right`.
    """

    def needed(chosen: list[int]) -> int:
        cells = [[columns[index], *(row[index] for row in rows)] for index in chosen]
        wraps = bool(chosen) and columns[chosen[-1]] not in right
        sizes = [max(map(_longest_word if wraps and each is cells[-1] else len, each)) for each in cells]
        return sum(sizes) + _GAP * (len(sizes) - 1)

    every = list(range(len(columns)))
    saying = [index for index in every if any(row[index] not in _NOTHING for row in rows)]
    return next((chosen for chosen in (every, saying) if needed(chosen) <= width), None)


def lists_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    """Yield the lines of rows as lists: the first cell, then the others with their columns."""
    indent = max(map(len, columns[1:]), default=0)
    for row in rows:
        yield Text(row[0], style="bold")
        yield from (
            Text(f"  {column:<{indent}}  {cell}") for column, cell in zip(columns[1:], row[1:], strict=True) if cell
        )


def _longest_word(text: str) -> int:
    """Return the length of the longest unbreakable part: a word, or a change from one figure to another."""
    return max(map(len, re.split(r"(?<!->)\s+(?!->)", text.strip())), default=0)
