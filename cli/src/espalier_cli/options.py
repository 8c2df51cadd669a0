"""Options shared by several commands: a file for a picture, and a scheduling policy with its settings.

The file is checked before a command begins, since some train for hours. A command draws last, after it has printed its
results: a disk can still be full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from espalier_cli.errors import InputError

PICTURES: Final = (".png", ".svg")
"""Suffixes of the supported formats."""


def picture_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option `--picture FILE` that draws `what`; its file has a known suffix and lies in a folder."""
    return click.option(
        "--picture",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"Draw {what} into this file, {' or '.join(PICTURES)}.",
        callback=_drawable,
    )


def _drawable(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        folder = path.absolute().parent
        if path.suffix.lower() not in PICTURES:
            raise click.BadParameter(f"{path} must end with {' or '.join(PICTURES)}", context, parameter)
        if not folder.is_dir():
            raise click.BadParameter(f"{path}: there is no folder {folder}", context, parameter)
    return path


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Draw to `path` inside; raise `InputError` if it cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--picture: {path}: cannot be written: {error.strerror or error}") from error


def policy_option(help_text: str, default: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option `--policy NAME[:KEY=VALUE,...]` that takes any registered scheduling policy."""
    return click.option(
        "--policy",
        metavar="NAME[:KEY=VALUE,...]",
        default=default,
        show_default=default is not None,
        help=help_text,
        callback=_known,
        shell_complete=_policies,
    )


def _policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from espalier_operator.policies import POLICIES  # takes long to import

    return [name for name in POLICIES.names() if name.startswith(incomplete)]


def _known(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from espalier_operator.policies.settings import configured  # takes long to import

    # Not a `click.Choice`, which would search all installed packages at every start of the command.
    if value is not None:
        try:
            configured(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
    return value
