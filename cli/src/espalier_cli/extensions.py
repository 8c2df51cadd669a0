"""Commands that other packages add to `espalier`, as entry points of the group `espalier.commands`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "espalier.commands"


def installed_commands(group: str = "") -> dict[str, str]:
    """Return what installed packages add to a group of commands: name → `module:attribute`.

    An entry point's name is the command's, after its group and a dot: `simulate`, `agent.judge`.
    """
    found = {}
    for entry in entry_points(group=GROUP):
        parent, _, name = entry.name.rpartition(".")
        if parent == group:
            found[name] = entry.value
    return found
