"""`espalier agent`: the agent's own commands, and commands that other packages add."""

from __future__ import annotations

from typing import Final

from espalier_agent.commands.agent import COMMANDS as AGENT_COMMANDS
from espalier_agent.commands.agent import HELP
from espalier_core.console import COMMANDS, LazyGroup

agent: Final = LazyGroup(
    name="agent",
    help=HELP,
    elsewhere=AGENT_COMMANDS,
    group=COMMANDS,
    prefix="agent.",
)
