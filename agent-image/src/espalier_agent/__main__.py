"""`python -m espalier_agent`: the process of the agent's image."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The first process of a container gets only the signals that it handles, and importing torch takes seconds.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

    from espalier_agent.commands.agent import agent

    agent(prog_name="python -m espalier_agent")
