"""`espalier agent`: the agent's own commands, and `collect`, which needs a trainer."""

from __future__ import annotations

import click

from espalier_agent.commands.agent import agent as own
from espalier_cli.collect.command import collect

agent = click.Group(
    name=own.name,
    help=own.help,
    epilog=own.epilog,
    commands={**own.commands, "collect": collect},
)
