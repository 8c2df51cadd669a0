"""Errors that are the person's to mend."""

from __future__ import annotations

from espalier_agent.commands.console import CommandError


class InputError(CommandError):
    """What the person gave cannot be used."""

    exit_code = 2
