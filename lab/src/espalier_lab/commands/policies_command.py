"""`espalier policies`: learned scheduling policies, as files."""

from __future__ import annotations

from typing import Final

from espalier_core.console import LazyGroup

policies: Final = LazyGroup(
    name="policies",
    help="Learn scheduling policies, and compare them with rules.",
    elsewhere={
        "retrain": "espalier_lab.commands.policies.retrain:retrain",
        "learn": "espalier_lab.commands.policies.learn:learn",
        "evaluate": "espalier_lab.commands.policies.evaluate:evaluate",
    },
)
"""A group of commands that are imported on use: torch alone takes seconds."""
