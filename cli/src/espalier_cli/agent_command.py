"""`espalier agent`: the agent's own commands, and `collect` and `judge`, which need a trainer."""

from __future__ import annotations

from typing import Final

from espalier_agent.commands.agent import COMMANDS, HELP
from espalier_agent.commands.lazy import LazyGroup

agent: Final = LazyGroup(
    name="agent",
    help=HELP,
    elsewhere={
        **COMMANDS,
        "collect": "espalier_cli.collect.command:collect",
        "judge": "espalier_cli.judge.command:judge",
    },
)
