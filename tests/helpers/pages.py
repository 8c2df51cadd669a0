"""The commands that a page of the documentation tells to type."""

from __future__ import annotations

import re


def commands(text: str) -> list[str]:
    """Return the commands of the `sh` blocks, each on one line, without comments at its end."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
