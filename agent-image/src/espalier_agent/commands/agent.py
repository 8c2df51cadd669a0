"""`espalier agent ...`, also `python -m espalier_agent ...`: stdout is data, stderr is progress."""

from __future__ import annotations

from typing import Final

from espalier_core.console import LazyGroup

COMMANDS: Final = {
    "evaluate": "espalier_agent.commands.evaluate:evaluate",
    "learn": "espalier_agent.commands.learn:learn",
    "openapi": "espalier_agent.commands.serve:openapi",
    "outcomes": "espalier_agent.commands.outcomes:outcomes",
    "promote": "espalier_agent.commands.evaluate:promote",
    "serve": "espalier_agent.commands.serve:serve",
}
HELP: Final = """Learn, judge and serve the policy that advises how models grow.

Exit codes: 0 success, 1 an input cannot be used, 2 usage error, 3 a policy is not promoted.
"""

agent: Final = LazyGroup(name="agent", help=HELP, elsewhere=COMMANDS)
