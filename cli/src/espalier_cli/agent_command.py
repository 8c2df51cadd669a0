"""`espalier agent`: the agent's own commands, and those that need more: a trainer, or what draws."""

from __future__ import annotations

import click

from espalier_agent.commands.agent import agent as own
from espalier_cli.collect.command import collect
from espalier_cli.study.command import reproduce

agent = click.Group(
    name=own.name,
    help=own.help,
    epilog=own.epilog,
    commands={**own.commands, "collect": collect, "reproduce": reproduce},
)
