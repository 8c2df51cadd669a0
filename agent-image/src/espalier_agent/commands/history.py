"""What `learn` and `promote` share: the option for a history, its reading, and its summary."""

from __future__ import annotations

from pathlib import Path

import click

from espalier_agent.history import decisions
from espalier_agent.history.episodes import Gathered, gather

history_option = click.option(
    "--from-history",
    "histories",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Database of `serve --explore SHARE --outcomes-db FILE`, or a folder of them (*.db), with decisions and their "
    "outcomes. Repeatable.",
)


def read_history(sources: tuple[Path, ...]) -> Gathered:
    """Read a history and print on stderr which part of it can be used. Raise `StoreError` if it cannot be read."""
    history = gather(decisions(*sources))
    click.echo(
        f"history: {len(history.episodes)} jobs with {history.decisions} decisions; left out: "
        f"{history.without_outcome} decisions without outcome, {history.certain} jobs with a choice that was certain, "
        f"{history.alone} jobs alone of their kind",
        err=True,
    )
    if history.certain and not history.episodes:
        click.echo(
            "warning: the service took its best action always, and nothing tells what another would have led to; "
            "`agent serve --explore SHARE` tries others",
            err=True,
        )
    return history
