"""The option that names a scheduling policy, with its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from espalier_operator.policies.settings import configured


def policy_option(help_text: str, default: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option `--policy NAME[:KEY=VALUE,...]` that takes any registered scheduling policy."""
    return click.option(
        "--policy",
        metavar="NAME[:KEY=VALUE,...]",
        default=default,
        show_default=default is not None,
        help=help_text,
        callback=_known,
    )


def _known(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    # Not a `click.Choice`: it would look through all installed packages at every start of the command.
    if value is not None:
        try:
            configured(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
    return value
