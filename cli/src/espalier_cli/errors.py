"""Errors that the user can fix."""

from __future__ import annotations

from espalier_agent.commands.console import CommandError


class InputError(CommandError):
    """What the person gave cannot be used."""

    exit_code = 2
