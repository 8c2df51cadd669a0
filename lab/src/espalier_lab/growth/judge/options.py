"""Option parsers shared by several commands."""

from __future__ import annotations

import click


def shares(_context: click.Context, _option: click.Parameter, text: str) -> tuple[float, ...]:
    """Return the shares of the budget in `20%,50%`, ascending."""
    found = []
    for part in text.split(","):
        number = part.strip().removesuffix("%")
        if not number.replace(".", "", 1).isdecimal() or not 0 < float(number) < 100:
            raise click.BadParameter(f"{part!r} is not a share of the budget; write 20%,50%")
        found.append(float(number) / 100)
    return tuple(sorted(set(found)))
