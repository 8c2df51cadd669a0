"""`espalier agent`: the agent's own commands, and those that other packages add."""

from __future__ import annotations

from typing import Final

from espalier_agent.commands.agent import COMMANDS, HELP
from espalier_cli.extensions import installed_commands
from espalier_core.console import LazyGroup

agent: Final = LazyGroup(
    name="agent",
    help=HELP,
    elsewhere=installed_commands("agent") | COMMANDS,
)
