"""Errors that are the person's to mend."""

from __future__ import annotations

import click


class BadInput(click.ClickException):
    """What the person gave cannot be used: one line with the cause, then a hint."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: object = None) -> None:
        """Print cause and hint to stderr."""
        click.echo(f"error: {self.message}", err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", err=True)
