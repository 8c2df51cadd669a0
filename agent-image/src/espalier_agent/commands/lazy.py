"""A group of commands that are imported on use: torch alone takes seconds."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, Final

import click

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as that of a program which SIGINT ends; click would exit with 1, as after an error."""


class LazyGroup(click.Group):
    """A group some of whose commands are imported on use.

    `elsewhere` gives for each name the module and the name in it, as `module:name`.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str], **settings: Any) -> None:
        """Take the arguments of `click.Group` in addition."""
        super().__init__(*args, **settings)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return sorted([*super().list_commands(ctx), *self._elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported if need be."""
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        command = pkgutil.resolve_name(self._elsewhere[cmd_name])
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._elsewhere[cmd_name]} is a {type(command).__name__}, not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; Ctrl-C ends it with `INTERRUPTED`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
