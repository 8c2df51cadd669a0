"""How the agent's commands refuse: one line with the cause, then a hint."""

from __future__ import annotations

import click


class CommandError(click.ClickException):
    """One line with the cause, then a hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: object = None) -> None:
        """Print to stderr."""
        click.echo(f"error: {self.message}", err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", err=True)
