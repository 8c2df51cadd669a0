"""The reference of all commands, from their help.

`python -m espalier_generate.command_reference` prints it; with the path of a page, it renews what is between its marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from espalier_cli.main import cli
from espalier_core.files.documents import write_text_atomically

BEGIN, END = "<!-- BEGIN reference -->", "<!-- END reference -->"
_WIDTH = 100


def reference() -> str:
    """Return a heading and the help of each command, subcommands included, in Markdown."""
    return "\n".join(f"\n### `{one.command_path}`\n\n```text\n{one.command.get_help(one)}\n```" for one in commands())


def commands() -> Iterator[click.Context]:
    """Return a context of each command that is not hidden, subcommands included, groups excluded."""
    settings = {**cli.context_settings, "terminal_width": _WIDTH}
    return _commands(cli, click.Context(cli, info_name="espalier", **settings))


def renewed(page: str, text: str) -> str:
    """Return a page with `text` between its marks; `ValueError` where it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _commands(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        own = click.Context(command, parent=context, info_name=name, terminal_width=_WIDTH)
        if isinstance(command, click.Group):
            yield from _commands(command, own)
            continue
        yield own


def main(arguments: Sequence[str]) -> None:
    """Print the reference, or renew the page at the path that is given."""
    if not arguments:
        print(reference())
        return
    path = Path(arguments[0])
    write_text_atomically(path, renewed(path.read_text(encoding="utf-8"), reference()))


if __name__ == "__main__":
    main(sys.argv[1:])
