"""`python -m espalier_agent`: what the agent's image runs."""

from __future__ import annotations

from espalier_agent.commands import agent

if __name__ == "__main__":
    agent(prog_name="python -m espalier_agent")
