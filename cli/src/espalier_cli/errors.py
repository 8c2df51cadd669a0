"""Errors that the user can fix."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from espalier_core.console import CommandError, NotInstalledError

INSTALL: Final = "pip install 'espalier-cli[train]' installs what trains models"


class InputError(CommandError):
    """The person's input cannot be used."""


def check_trainer(command: str) -> None:
    """Raise `NotInstalledError` if the trainer is not installed."""
    if find_spec("espalier_trainer") is None:
        raise NotInstalledError(command, "espalier_trainer", INSTALL)
